"""Embeddings and tensors through the gateway: the same key, limits and audit as chat, with the clients people use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from onnx import TensorProto, helper

from tests.e2e.harness import KEY, NARROW_KEY, Gatehouse, configuration
from tests.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("tensors")
    model = directory / "double.onnx"
    model.write_bytes(double_model())
    config = configuration(
        directory / "state",
        engines=[
            {"name": "embed", "runtime": "onnx", "model": "demo-embed", "slots": 16},
            {"name": "double", "runtime": "onnx", "model": str(model), "slots": 4},
        ],
        models=[{"name": "demo-embed", "pool": ["embed"]}, {"name": "double", "pool": ["double"]}],
        limits=[{"name": "elements", "match": {"model": "double"}, "tokens": {"rate": 1, "per": "1h", "burst": 100000}}],
    )
    with Gatehouse(directory, config) as running:
        yield running


def double_model() -> bytes:
    """y = x + x over any number of float32 rows of three."""
    shape = ["n", 3]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_the_openai_client_embeds(tensors: Gatehouse) -> None:
    with openai.OpenAI(base_url=f"{tensors.url}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.embeddings.create(model="demo-embed", input=["How do I create a key?", "creating an API key", "the audit log"])
    vectors = np.array([item.embedding for item in answer.data])
    assert vectors.shape[0] == 3 and answer.usage.prompt_tokens > 5
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > similarity[0, 2]


def triton_client(tensors: Gatehouse) -> Any:
    return triton.InferenceServerClient(url=tensors.url.removeprefix("http://"))


def test_tritonclient_is_told_which_paths_there_are(tensors: Gatehouse) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    client = triton_client(tensors)
    try:
        for name, ask in (("config", client.get_model_config), ("stats", client.get_inference_statistics)):
            with pytest.raises(triton.InferenceServerException, match=f"There is no /v2/models/double/{name}. There are GET"):
                ask("double", headers=headers)
    finally:
        client.close()


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_infers(tensors: Gatehouse, binary: bool) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    client = triton_client(tensors)
    try:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("double", headers=headers)
        metadata = client.get_model_metadata("double", headers=headers)
        assert metadata["inputs"][0]["name"] == "x" and metadata["inputs"][0]["datatype"] == "FP32"
        given = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = triton.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(given, binary_data=binary)
        outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
        answer = client.infer("double", [tensor], outputs=outputs, headers=headers, request_id="r1")
        assert np.array_equal(answer.as_numpy("y"), given * 2)
    finally:
        client.close()


def test_shapes_are_recorded_and_elements_are_limited(tensors: Gatehouse) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    with tensors.client() as client:
        response = client.post("/v2/models/double/infer", json=body)
        assert response.status_code == 200 and response.json()["outputs"][0]["data"] == [2, 4, 6]
        request_id = response.headers["x-request-id"]
        assert tensors.outcome(request_id)["detail"]["outputs"][0]["shape"] == [1, 3]
        intent = next(r for r in tensors.audit() if r["kind"] == "intent" and r["request_id"] == request_id)
        recorded = intent["detail"]["inputs"][0]
        assert recorded.pop("hash")[0] == "b"
        assert recorded == {"name": "x", "datatype": "FP32", "shape": [1, 3], "elements": 3}
        used = 100000 - int(response.headers["x-ratelimit-remaining-tokens"])
        assert used >= 3
        rows = 40000
        large = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": [0] * (3 * rows)}]}
        assert client.post("/v2/models/double/infer", json=large).status_code in (200, 429)
        after = client.post("/v2/models/double/infer", json=large)
        assert after.status_code == 429 and after.json()["error"]["code"] == "tokens_exceeded"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [1, 4]}, ["x"]),
        ({"shape": [-1, 3]}, ["x"]),
        ({"datatype": "FP99"}, ["x"]),
        ({"name": "z"}, ["z"]),
        ({"data": [1, 2]}, ["x"]),
    ],
)
def test_a_bad_tensor_is_named(tensors: Gatehouse, change: dict[str, Any], words: list[str]) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **change}
    with tensors.client() as client:
        response = client.post("/v2/models/double/infer", json={"inputs": [tensor]})
    assert response.status_code == 400
    assert all(word in response.json()["error"]["message"] for word in words)


def test_model_access_covers_tensors(tensors: Gatehouse) -> None:
    with tensors.client(NARROW_KEY) as client:
        for path in ("double", "double/config", "nothing/config"):
            told = client.get(f"/v2/models/{path}").json()["error"]
            assert (told["code"], told["message"]) == ("model_not_found", f"The model '{path}' does not exist.")
        assert client.post("/v2/models/double/infer", json={"inputs": []}).status_code in (400, 404)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
        assert client.post("/v2/models/double/infer", json=body).status_code == 404
    assert httpx.get(f"{tensors.url}/v2/models/double", trust_env=False, timeout=60).status_code == 401
    until(lambda: tensors.metric("gatehouse_in_flight") == 0)
