"""Policies on tensors and texts for vectors: versions, guardrails over BYTES, audit hashes, classification, truncation, errors."""

from __future__ import annotations

import base64
import json
import queue
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from onnx import TensorProto, helper

from tests.e2e.harness import KEY, Gatehouse, configuration, errors_of
from tests.unit.engines.onnx.models import classifier_folder, embedding_folder
from tests.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as by_grpc
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

VERSION_KEY = "version-key-0123456789abcdef0123456789ab"
FORBIDDEN = "the forbidden phrase"
Parts = dict[str, Any]


def graph(inputs: dict[str, int], outputs: dict[str, int], nodes: list[Any]) -> bytes:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in outputs.items()],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    """Strings in and out under deny lists, numbers, a small classifier and a small embedding model."""
    root = tmp_path_factory.mktemp("tensors")
    strings = root / "strings.onnx"
    strings.write_bytes(graph({"x": TensorProto.STRING}, {"y": TensorProto.STRING}, [helper.make_node("Identity", ["x"], ["y"])]))
    numbers = root / "numbers.onnx"
    numbers.write_bytes(graph({"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT}, [helper.make_node("Add", ["x", "x"], ["y"])]))
    classifier_folder(root / "classifier")
    embedding_folder(root / "embedder", config={"matryoshka_dimensions": [4]})
    sources = {name: root / f"{name}.onnx" for name in ("strings", "numbers")}
    sources |= {name: root / name for name in ("classifier", "embedder")}
    phrases = {"phrases": [FORBIDDEN]}
    config = configuration(
        root / "state",
        listen={"grpc": "127.0.0.1:0"},
        engines=[{"name": name, "runtime": "onnx", "model": str(path), "slots": 4} for name, path in sources.items()],
        models=[
            *({"name": name, "pool": [name]} for name in ("numbers", "classifier", "embedder")),
            *({"name": name, "pool": ["strings"]} for name in ("read", "written", "masked")),
        ],
        guardrails=[
            {"name": "in", "type": "denylist", "on": ["request"], "models": ["read", "classifier"], "settings": phrases},
            {"name": "out", "type": "denylist", "on": ["response"], "models": ["written"], "settings": phrases},
            {"name": "mask", "type": "denylist", "on": ["response"], "models": ["masked"], "settings": {**phrases, "action": "mask"}},
        ],
    )
    keys = config["identity"]["api_keys"]["static"]
    keys.append({"id": "version", "key": VERSION_KEY, "tenant": "acme", "models": ["numbers@1"]})
    with Gatehouse(root, config) as running:
        yield running


def numbers(*values: float, **change: Any) -> Parts:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": list(values), **change}]}


def infer(gatehouse: Gatehouse, model: str, text: str, *, binary: bool) -> httpx.Response:
    """One BYTES element there and back, as JSON or in binary form."""
    client = triton.InferenceServerClient(url="unused")
    tensor = triton.InferInput("x", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=np.object_), binary_data=binary)
    body, length = client.generate_request_body([tensor], outputs=[triton.InferRequestedOutput("y", binary_data=binary)])
    client.close()
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    with gatehouse.client() as http:
        return http.post(f"/v2/models/{model}/infer", content=bytes(body), headers=headers)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("model", "guardrail"), [("read", "in"), ("written", "out"), ("masked", "mask")])
def test_guardrails_read_bytes_tensors(guarded: Gatehouse, model: str, guardrail: str, binary: bool) -> None:
    passed = infer(guarded, model, "harmless", binary=binary)
    assert passed.status_code == 200 and b"harmless" in passed.content
    refused = infer(guarded, model, f"say {FORBIDDEN.upper()} twice", binary=binary)
    assert refused.status_code == 400 and errors_of(refused)["code"] == guardrail
    assert FORBIDDEN.upper() not in refused.text
    outcome = guarded.outcome(refused.headers["x-request-id"])
    assert (outcome["outcome"], outcome["guardrail"]) == ("denied", guardrail)
    assert FORBIDDEN not in json.dumps(outcome).lower()


@pytest.mark.parametrize("streams", [False, True], ids=["call", "stream"])
@pytest.mark.parametrize(("model", "guardrail"), [("read", "in"), ("written", "out"), ("masked", "mask")])
def test_guardrails_read_what_comes_by_grpc(guarded: Gatehouse, model: str, guardrail: str, streams: bool) -> None:
    address = until(lambda: next((line[6:] for line in guarded.lines if line.startswith("grpc: ")), None), what="the gRPC listener")
    secret = f"say {FORBIDDEN.upper()} twice"

    def asked(client: Any, text: str, number: str) -> Any:
        tensor = by_grpc.InferInput("x", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text], dtype=np.object_))
        outputs, headers = [by_grpc.InferRequestedOutput("y")], {"authorization": f"Bearer {KEY}", "x-request-id": number}
        if not streams:
            return client.infer(model, [tensor], outputs=outputs, headers=headers)
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        client.async_stream_infer(model, [tensor], outputs=outputs)
        result, error = answers.get(timeout=60)
        client.stop_stream()
        if error is not None:
            raise error
        return result

    client = by_grpc.InferenceServerClient(address)
    try:
        assert asked(client, "harmless", f"{model}-{streams}-1").as_numpy("y")[0] == b"harmless"
        with pytest.raises(InferenceServerException) as refused:
            asked(client, secret, f"{model}-{streams}-2")
    finally:
        client.close()
    assert FORBIDDEN.upper() not in str(refused.value)
    records = until(
        lambda: [
            one for one in guarded.audit() if one["kind"] == "outcome" and one.get("guardrail") == guardrail and one["model"] == model
        ],
        what="the record of the refusal",
    )
    assert (records[-1]["outcome"], records[-1]["operation"], records[-1]["principal"]) == ("denied", "infer", "test")
    assert FORBIDDEN not in json.dumps(records).lower()


def test_versions_in_the_path_are_checked_and_can_be_allowed_alone(guarded: Gatehouse) -> None:
    expected = {"/v2/models/numbers": 404, "/v2/models/numbers/versions/1": 200, "/v2/models/numbers/versions/2": 404}
    with guarded.client(VERSION_KEY) as http:
        for path, status in expected.items():
            assert http.get(path).status_code == status, path
            assert http.get(f"{path}/ready").status_code == status, path
            assert http.post(f"{path}/infer", json=numbers(1, 2)).status_code == status, path
    with guarded.client() as http:
        assert http.post("/v2/models/numbers/versions/1/infer", json=numbers(1, 2)).json()["outputs"][0]["data"] == [2, 4]
        wrong = http.post("/v2/models/numbers/versions/9/infer", json=numbers(1, 2))
    assert wrong.status_code == 404 and errors_of(wrong)["message"] == "The model 'numbers' has no version '9'."


def test_records_have_a_hash_for_every_tensor(guarded: Gatehouse) -> None:
    def recorded(body: Parts) -> tuple[Parts, Parts]:
        with guarded.client() as http:
            request_id = http.post("/v2/models/numbers/infer", json=body).headers["x-request-id"]
        outcome = guarded.outcome(request_id)
        return next(r for r in guarded.audit() if r["kind"] == "intent" and r["request_id"] == request_id), outcome

    first, again, other = recorded(numbers(1, 2)), recorded({**numbers(1, 2), "id": "another"}), recorded(numbers(1, 3))
    hashes = [(intent["detail"]["inputs"][0]["hash"], outcome["detail"]["outputs"][0]["hash"]) for intent, outcome in (first, again, other)]
    assert hashes[0] == hashes[1] and all(one != two for one, two in zip(hashes[0], hashes[2], strict=True))
    assert first[0]["body_hash"] != again[0]["body_hash"]


def test_limits_count_elements(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        request_id = http.post("/v2/models/numbers/infer", json=numbers(*range(7))).headers["x-request-id"]
    outcome = guarded.outcome(request_id)
    assert outcome["prompt_tokens"] == 7 and "completion_tokens" not in outcome


def test_tritonclient_raises_what_can_be_read(guarded: Gatehouse) -> None:
    client = triton.InferenceServerClient(url=guarded.url.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {KEY}"}
    tensor = triton.InferInput("x", [2], "INT64")
    tensor.set_data_from_numpy(np.array([1, 2]))
    try:
        with pytest.raises(InferenceServerException) as wrong_type:
            client.infer("numbers", [tensor], headers=headers)
        with pytest.raises(InferenceServerException) as unknown:
            client.get_model_metadata("nothing", headers=headers)
        with pytest.raises(InferenceServerException) as nobody:
            client.infer("numbers", [tensor])
        with pytest.raises(InferenceServerException) as version:
            client.infer("numbers", [tensor], model_version="7", headers=headers)
    finally:
        client.close()
    assert str(wrong_type.value).startswith("[400] ") and "input 'x'" in str(wrong_type.value) and "INT64" in str(wrong_type.value)
    assert str(unknown.value) == "[404] The model 'nothing' does not exist."
    assert str(nobody.value).startswith("[401] ")
    assert str(version.value) == "[404] The model 'numbers' has no version '7'."


def test_other_clients_get_the_error_object(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        wrong = http.post("/v2/models/numbers/infer", json=numbers(1, datatype="INT64"))
    assert wrong.status_code == 400
    error = errors_of(wrong)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_tensor", "input 'x'")


def test_a_small_classifier(guarded: Gatehouse) -> None:
    with guarded.client() as http:
        answer = http.post("/v1/classify", json={"model": "classifier", "input": ["cat", "dog"]})
        refused = http.post("/v1/classify", json={"model": "classifier", "input": ["cat", FORBIDDEN]})
    assert answer.status_code == 200
    body = answer.json()
    assert body["labels"] == ["cats", "dogs"] and body["usage"]["prompt_tokens"] > 0
    for item in body["data"]:
        assert item["num_classes"] == 2 and abs(sum(item["probs"]) - 1) < 1e-5
        assert item["label"] == body["labels"][int(np.argmax(item["probs"]))] and item["score"] == max(item["probs"])
    assert refused.status_code == 400 and errors_of(refused)["code"] == "in"
    assert guarded.outcome(answer.headers["x-request-id"])["operation"] == "classify"


def test_forms_of_embeddings(guarded: Gatehouse) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY, max_retries=0) as client:
        floats = client.embeddings.create(model="embedder", input=[[1, 5, 2], [1, 6, 2]], encoding_format="float")
        one = client.embeddings.create(model="embedder", input=[1, 5, 2], encoding_format="float")
        short = client.embeddings.create(model="embedder", input=[1, 5, 2], dimensions=4, encoding_format="float")
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model="embedder", input="cat", dimensions=5)
    assert len(floats.data) == 2 and floats.usage.prompt_tokens == 6
    assert np.allclose(one.data[0].embedding, floats.data[0].embedding, atol=1e-5)
    assert len(short.data[0].embedding) == 4 and abs(np.linalg.norm(short.data[0].embedding) - 1) < 1e-5
    with guarded.client() as http:
        coded = http.post("/v1/embeddings", json={"model": "embedder", "input": [1, 5, 2], "encoding_format": "base64"}).json()
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert np.allclose(vector, one.data[0].embedding, atol=1e-6)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/classify"])
def test_what_was_cut_is_told(guarded: Gatehouse, path: str) -> None:
    model = "embedder" if path.endswith("embeddings") else "classifier"
    with guarded.client() as http:
        whole = http.post(path, json={"model": model, "input": "cat"})
        cut = http.post(path, json={"model": model, "input": "cat " * 100})
    assert whole.status_code == cut.status_code == 200
    assert "x-gatehouse-truncated" not in whole.headers
    told = cut.json()["truncated"][0]
    assert int(cut.headers["x-gatehouse-truncated"]) == told["tokens"] - told["used"] > 0


def test_a_fallback_of_the_runtime_is_seen_by_operators(tmp_path: Path) -> None:
    """The operator's view names the device, and why it is not the one that was asked for."""
    model = tmp_path / "numbers.onnx"
    model.write_bytes(graph({"x": TensorProto.FLOAT}, {"y": TensorProto.FLOAT}, [helper.make_node("Add", ["x", "x"], ["y"])]))
    config = configuration(
        tmp_path / "state",
        engines=[{"name": "numbers", "runtime": "onnx", "model": str(model), "device": "cuda:63", "fallback": "cpu"}],
        models=[{"name": "numbers", "pool": ["numbers"]}],
        audit={"body_hashes": False},
    )
    with Gatehouse(tmp_path, config) as running:
        with running.client() as http:
            answer = http.post("/v2/models/numbers/infer", json=numbers(1, 2))
        assert answer.json()["outputs"][0]["data"] == [2, 4]
        outcome = running.outcome(answer.headers["x-request-id"])
        events = [r for r in running.audit() if r["kind"] == "event" and r.get("event") == "engine_fallback"]
        assert events and "cuda:63" in events[0]["detail"]["reason"]
    intent = next(r for r in running.audit() if r["kind"] == "intent")
    assert "body_hash" not in intent and "body_hash" not in outcome
    assert "hash" not in intent["detail"]["inputs"][0] and "hash" not in outcome["detail"]["outputs"][0]
