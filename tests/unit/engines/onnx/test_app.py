"""The sidecar's endpoints, in this process: the shared shell, a real runtime, small models, no socket."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engines.onnx import app
from engines.onnx.app import OnnxRuntime, runtime_error
from engines.sidecar.batcher import Batcher
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError, Sidecar
from gateway.core.specs import BatchingSpec, SidecarSpec
from gateway.wire.oip.codec import HEADER_LENGTH, parse_response
from gateway.wire.oip.values import join_bytes, json_values, split_bytes
from tests.unit.engines.onnx import models


class Engine:
    """A loaded sidecar and a client for it."""

    def __init__(self, runtime: OnnxRuntime, client: httpx.AsyncClient) -> None:
        self.runtime, self.client = runtime, client

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, headers=headers)

    async def infer(self, *inputs: dict[str, Any], model: str = "m", **more: Any) -> httpx.Response:
        return await self.post(f"/v2/models/{model}/infer", {"inputs": inputs, **more})


@asynccontextmanager
async def serving(model: Path, tmp_path: Path, **settings: Any) -> AsyncIterator[Engine]:
    spec = SidecarSpec(name="onnx", runtime="onnx", model=str(model), socket="unused", state_dir=str(tmp_path / "state"), **settings)
    runtime = OnnxRuntime(spec)
    sidecar = Sidecar(spec, runtime)
    runtime.load()
    await runtime.start()
    sidecar.state = "ready"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=sidecar), base_url="http://sidecar") as client:
        yield Engine(runtime, client)
    await runtime.aclose()


@pytest.fixture
async def embed(tmp_path: Path) -> AsyncIterator[Engine]:
    async with serving(models.embedding_folder(tmp_path, config={"matryoshka_dimensions": [4]}), tmp_path) as engine:
        yield engine


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[Engine]:
    async with serving(models.save(models.named(), tmp_path / "model.onnx"), tmp_path) as engine:
        yield engine


def tensor(name: str, datatype: str, shape: list[int], data: list[Any], **parameters: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **({"parameters": parameters} if parameters else {})}


COUNT = tensor("count", "INT64", [2], [1, -2])
NAME = tensor("name", "BYTES", [2], ["a", "\u00e4"])


# -- embeddings ------------------------------------------------------------------------------------------------------------


async def test_embeddings_of_a_text(embed: Engine) -> None:
    answer = await embed.post("/v1/embeddings", {"model": "public-name", "input": "a cat"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["object"] == "list"
    assert body["model"] == "public-name"
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert "truncated" not in body
    (item,) = body["data"]
    assert (item["object"], item["index"], len(item["embedding"])) == ("embedding", 0, models.SIZE)
    assert np.linalg.norm(item["embedding"]) == pytest.approx(1, abs=1e-6)


async def test_batched_and_alone_give_the_same(embed: Engine) -> None:
    texts = ["a", "a cat in it", "dog", "several more words in a rather longer text", "zebra"]
    together = (await embed.post("/v1/embeddings", {"input": texts})).json()["data"]
    assert [item["index"] for item in together] == list(range(5))
    for text, item in zip(texts, together, strict=True):
        alone = (await embed.post("/v1/embeddings", {"input": text})).json()["data"][0]
        np.testing.assert_allclose(item["embedding"], alone["embedding"], atol=1e-5)


PROMPTS = {"query": "cat ", "passage": "dog "}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, ""), ({"prompt_name": "query"}, "cat "), ({"input_type": "query"}, "cat "), ({"input_type": "search_query"}, "cat "),
        ({"input_type": "document"}, "dog "), ({"input_type": "passage"}, "dog "),
    ],
)  # fmt: skip
async def test_a_prompt_goes_before_each_text(tmp_path: Path, fields: dict[str, str], prompt: str) -> None:
    async with serving(
        models.embedding_folder(tmp_path), tmp_path, options={"prompts": PROMPTS}, batching=BatchingSpec(max_batch=1)
    ) as engine:
        asked = (await engine.post("/v1/embeddings", {"input": ["a", "in it"], **fields})).json()
        plain = (await engine.post("/v1/embeddings", {"input": [f"{prompt}a", f"{prompt}in it"]})).json()
    assert asked == plain


async def test_prompts_that_do_not_exist_or_do_not_fit_are_refused(embed: Engine, tmp_path: Path) -> None:
    async with serving(
        models.embedding_folder(tmp_path / "own"), tmp_path, options={"prompts": PROMPTS, "default_prompt": "query"}
    ) as engine:
        default = (await engine.post("/v1/embeddings", {"input": "a"})).json()
        assert default == (await engine.post("/v1/embeddings", {"input": "a", "prompt_name": "query"})).json()
        assert default["usage"]["prompt_tokens"] == 4, "a and cat, and two special tokens"
        assert (await engine.post("/v1/embeddings", {"input": [4, 5]})).json()["usage"]["prompt_tokens"] == 2, "tokens stay as they are"
        for fields, words in (
            ({"prompt_name": "nope"}, "no prompt 'nope'; it has passage, query"), ({"input_type": "nope"}, "input_type: expected one of"),
            ({"input_type": "clustering"}, "no prompt for clustering"), ({"input_type": "query", "prompt_name": "query"}, "not both"),
            ({"input": [4, 5], "prompt_name": "query"}, "a prompt goes before texts"),
        ):  # fmt: skip
            refused = await engine.post("/v1/embeddings", {"input": "a", **fields})
            assert refused.status_code == 400 and words in refused.json()["error"]["message"], refused.text
    assert (await embed.post("/v1/embeddings", {"input": "a", "input_type": "query"})).status_code == 200, (
        "without prompts all texts are alike"
    )
    assert "it has none" in (await embed.post("/v1/embeddings", {"input": "a", "prompt_name": "query"})).text


async def test_tokens_of_a_text_and_back(embed: Engine, named: Engine) -> None:
    found = (await embed.post("/tokenize", {"prompt": "a cat", "return_token_strs": True})).json()
    assert found["count"] == len(found["token_strs"]) == 4 and found["token_strs"][1:3] == ["a", "cat"]
    bare = (await embed.post("/tokenize", {"prompt": "a cat", "add_special_tokens": False})).json()["tokens"]
    assert bare == found["tokens"][1:3]
    assert (await embed.post("/detokenize", {"tokens": bare})).json() == {"prompt": "a cat"}
    assert (await embed.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]})).json()["error"]["param"] == "messages"
    assert (await named.post("/tokenize", {"prompt": "a"})).status_code == 400


async def test_a_parameter_that_nobody_reads_is_named(embed: Engine) -> None:
    refused = await embed.post("/v1/embeddings", {"input": "cat", "stream": True})
    assert refused.status_code == 400
    assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == ("unsupported_parameter", "stream")


async def test_base64_and_dimensions(embed: Engine) -> None:
    plain = (await embed.post("/v1/embeddings", {"input": "cat"})).json()["data"][0]["embedding"]
    packed = (await embed.post("/v1/embeddings", {"input": "cat", "encoding_format": "base64"})).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), np.array(plain, np.float32))
    short = (await embed.post("/v1/embeddings", {"input": "cat", "dimensions": 4})).json()["data"][0]["embedding"]
    np.testing.assert_allclose(short, np.array(plain[:4]) / np.linalg.norm(plain[:4]), atol=1e-6)
    for wrong in (3, 0, -1, 9, 10**30):
        refused = await embed.post("/v1/embeddings", {"input": "cat", "dimensions": wrong})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "dimensions"
        assert "expected 4, 8" in refused.json()["error"]["message"] or wrong == 10**30


async def test_token_arrays(embed: Engine) -> None:
    text = (await embed.post("/v1/embeddings", {"input": "a cat"})).json()
    for tokens in ([2, 4, 15, 3], [[2, 4, 15, 3]]):
        found = (await embed.post("/v1/embeddings", {"input": tokens})).json()
        assert found["data"] == text["data"]
        assert found["usage"] == text["usage"]


async def test_truncation_is_reported_or_refused(embed: Engine) -> None:
    long = " ".join(["cat"] * 40)
    answer = await embed.post("/v1/embeddings", {"input": ["cat", long]})
    assert answer.json()["truncated"] == [{"index": 1, "tokens": 42, "used": 16}]
    assert answer.headers["x-gatehouse-truncated"] == "26"
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 16
    refused = await embed.post("/v1/embeddings", {"input": ["cat", long], "truncate": False})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input[1]"


BAD_EMBEDDINGS: list[tuple[Any, str | None]] = [
    ({}, None), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": ["a", ""]}, "input"), ({"input": [["a"]]}, "input"),
    ({"input": ["a", 1]}, "input"), ({"input": None}, "input"), ({"input": {"a": 1}}, "input"), ({"input": [1.5]}, "input"),
    ({"input": [True]}, "input"), ({"input": [99]}, "input"), ({"input": [[4], [99]]}, "input[1]"), ({"input": [[-1]]}, "input[0]"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "a", "dimensions": "4"}, "dimensions"),
    ({"input": "a", "model": 5}, "model"), ({"input": "a", "truncate": "no"}, "truncate"), ({"input": ["a"] * 2049}, "input"),
    ([], None), (b"", None), (b"{", None), (b"\xff", None), (b'{"input": NaN}', None), (b"[" * 100_000, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), BAD_EMBEDDINGS)
async def test_bad_embeddings_requests(embed: Engine, body: Any, param: str | None) -> None:
    answer = await embed.post("/v1/embeddings", body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert (await embed.post("/v1/embeddings", {"input": "a"})).status_code == 200, "the sidecar lives on"


async def test_a_model_that_is_not_for_embeddings(named: Engine) -> None:
    for path in ("/v1/embeddings", "/v1/classify"):
        answer = await named.post(path, {"input": "a"})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_operation"


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("mean", False), ("cls", False), ("last", False)])
async def test_pooling(tmp_path: Path, pooling: str, normalize: bool) -> None:
    folder = models.embedding_folder(tmp_path)
    table = np.random.default_rng(7).normal(size=(len(models.WORDS), models.SIZE)).astype(np.float32)
    rows = {"a cat": table[[2, 4, 15, 3]], "dog": table[[2, 16, 3]]}
    expected = {
        text: {"mean": found.mean(axis=0), "cls": found[0], "last": found[-1]}[pooling] for text, found in rows.items()
    }  # fmt: skip
    async with serving(folder, tmp_path, options={"pooling": pooling, "normalize": normalize}) as engine:
        answer = (await engine.post("/v1/embeddings", {"input": list(rows)})).json()
    for item, vector in zip(answer["data"], expected.values(), strict=True):
        wanted = vector / np.linalg.norm(vector) if normalize else vector
        np.testing.assert_allclose(item["embedding"], wanted, atol=1e-5)


# -- classification --------------------------------------------------------------------------------------------------------


async def test_classification(tmp_path: Path) -> None:
    async with serving(models.classifier_folder(tmp_path), tmp_path) as engine:
        answer = (await engine.post("/v1/classify", {"model": "c", "input": ["cat cat dog", "dog"]})).json()
        single = (await engine.post("/v1/classify", {"input": "cat"})).json()
        assert (await engine.post("/v1/embeddings", {"input": "a"})).status_code == 400
        bad = await engine.post("/v1/classify", {"input": [""]})
    assert answer["labels"] == ["cats", "dogs"]
    assert [item["label"] for item in answer["data"]] == ["cats", "dogs"]
    first = answer["data"][0]
    assert (first["index"], first["num_classes"]) == (0, 2)
    assert first["probs"] == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], abs=1e-6)
    assert first["score"] == max(first["probs"])
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0, "prompt_tokens_details": None}
    assert single["data"][0]["label"] == "cats"
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "input"


async def test_several_labels_at_once(tmp_path: Path) -> None:
    folder = models.classifier_folder(tmp_path, problem_type="multi_label_classification")
    async with serving(folder, tmp_path, options={"labels": ["felines", "canines"]}) as engine:
        (item,) = (await engine.post("/v1/classify", {"input": "cat dog"})).json()["data"]
    assert item["probs"] == pytest.approx([1 / (1 + np.exp(-2))] * 2, abs=1e-6)
    assert item["label"] == "felines"


async def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="3 labels for 2 scores"):
        async with serving(models.classifier_folder(tmp_path), tmp_path, options={"labels": ["a", "b", "c"]}):
            pass


# -- tensors ---------------------------------------------------------------------------------------------------------------


async def test_infer_in_json(named: Engine) -> None:
    answer = await named.infer(COUNT, NAME, id="r-7", parameters={"anything": 1})
    assert answer.status_code == 200
    assert answer.json() == {
        "model_name": "m", "model_version": "1", "id": "r-7",
        "outputs": [
            {"name": "doubled", "datatype": "INT64", "shape": [2], "data": [2, -4]},
            {"name": "name_out", "datatype": "BYTES", "shape": [2], "data": ["a", "\u00e4"]},
        ],
    }  # fmt: skip


async def test_infer_chooses_outputs_and_forms(named: Engine) -> None:
    answer = await named.infer(COUNT, NAME, outputs=[{"name": "name_out", "parameters": {"binary_data": True}}, {"name": "doubled"}])
    found = parse_response(answer.content, int(answer.headers[HEADER_LENGTH]))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert [output.name for output in found.outputs] == ["name_out", "doubled"]
    assert [bytes(text) for text in split_bytes(found.outputs[0])] == [b"a", "\u00e4".encode()]
    assert json_values(found.outputs[1]) == [2, -4]


async def test_infer_in_binary(named: Engine) -> None:
    counts, names = np.array([5, 6], "<i8").tobytes(), join_bytes([b"x", b"yy"])
    head = json.dumps(
        {
            "inputs": [
                {"name": "count", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": len(counts)}},
                {"name": "name", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(names)}},
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    answer = await named.post("/v2/models/m/infer", head + counts + names, **{HEADER_LENGTH: str(len(head))})
    found = parse_response(answer.content, int(answer.headers[HEADER_LENGTH]))
    assert np.frombuffer(found.outputs[0].raw, "<i8").tolist() == [10, 12]
    assert [bytes(text) for text in split_bytes(found.outputs[1])] == [b"x", b"yy"]
    for length in ("0", "-1", "x", str(len(head) + len(counts) + len(names) + 1), str(len(head) - 1), "5"):
        refused = await named.post("/v2/models/m/infer", head + counts + names, **{HEADER_LENGTH: length})
        assert refused.status_code == 400, length
    for end in range(len(head), len(head) + len(counts) + len(names)):
        refused = await named.post("/v2/models/m/infer", (head + counts + names)[:end], **{HEADER_LENGTH: str(len(head))})
        assert refused.status_code == 400
        assert "input '" in refused.json()["error"]


BAD_TENSORS: list[tuple[list[dict[str, Any]], dict[str, Any], tuple[str, ...]]] = [
    ([tensor("count", "INT32", [2], [1, 2]), NAME], {}, ("input 'count'", "INT64", "INT32")),
    ([tensor("count", "FLOAT", [2], [1, 2]), NAME], {}, ("input 'count'", "FLOAT")),
    ([tensor("count", "INT64", [1, 2], [1, 2]), NAME], {}, ("input 'count'", "[1, 2]")),
    (
        [tensor("count", "INT64", [3], [1, 2]), tensor("name", "BYTES", [3], ["a", "b", "c"])],
        {},
        ("input 'count'", "3 elements", "received 2"),
    ),
    ([tensor("count", "INT64", [-2], [1, 2]), NAME], {}, ("input 'count'", "zero or more", "[-2]")),
    ([tensor("count", "INT64", [2**62], [1, 2]), NAME], {}, ("input 'count'", str(2**62))),
    ([tensor("count", "INT64", [2**70], [1, 2]), NAME], {}, ("input 'count'",)),
    ([tensor("count", "INT64", [2], [1, 2**63]), NAME], {}, ("input 'count'", "range of INT64", str(2**63))),
    ([tensor("count", "INT64", [2], [1, "2"]), NAME], {}, ("input 'count'", "str")),
    ([COUNT], {}, ("input 'name'", "received none")),
    ([COUNT, NAME, {**NAME, "name": "extra"}], {}, ("input 'extra'", "'count', 'name'")),
    ([COUNT, NAME, NAME], {}, ("input 'name'", "once")),
    ([COUNT, NAME], {"outputs": [{"name": "nope"}]}, ("output 'nope'", "'doubled'")),
    ([COUNT, tensor("name", "BYTES", [3], ["a", "b", "c"])], {}, ("input 'name'", "2 along axis 0")),
    ([], {}, ("inputs", "none")),
]


@pytest.mark.parametrize(("inputs", "more", "words"), BAD_TENSORS)
async def test_bad_tensors(named: Engine, inputs: list[dict[str, Any]], more: dict[str, Any], words: tuple[str, ...]) -> None:
    answer = await named.infer(*inputs, **more)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert isinstance(error["error"], str), "the protocol's error is a string"
    for word in words:
        assert word in error["error"]
    assert error["code"] == "invalid_tensor"
    assert (await named.infer(COUNT, NAME)).status_code == 200, "the sidecar lives on"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"inputs":[{"name":"count","datatype":"INT64","shape":[1],"data":[NaN]}]}']
)
async def test_bodies_that_are_no_request(named: Engine, body: bytes) -> None:
    assert (await named.post("/v2/models/m/infer", body)).status_code == 400
    assert (await named.infer(COUNT, NAME)).status_code == 200


async def test_values_the_graph_refuses_fail_alone(tmp_path: Path) -> None:
    async with serving(models.save(models.lookup(), tmp_path / "model.onnx"), tmp_path) as engine:
        answers = await asyncio.gather(*[engine.infer(tensor("index", "INT64", [1, 1], [index])) for index in (1, 99, 3)])
        health = (await engine.client.get("/health")).json()
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    assert "the model refused the input" in answers[1].json()["error"]
    assert [answer.json()["outputs"][0]["data"] for answer in (answers[0], answers[2])] == [[2.0, 3.0], [6.0, 7.0]]
    assert health["batching"] == "rows"


async def test_infinity_is_for_binary_only(tmp_path: Path) -> None:
    async with serving(models.save(models.reciprocal(), tmp_path / "model.onnx"), tmp_path) as engine:
        zero = tensor("x", "FP32", [2], [1, 0])
        refused = await engine.infer(zero)
        fine = await engine.infer(zero, parameters={"binary_data_output": True})
    assert refused.status_code == 400
    assert "output 'y'" in refused.json()["error"]
    assert "inf" in refused.json()["error"]
    assert np.frombuffer(fine.content[int(fine.headers[HEADER_LENGTH]) :], "<f4").tolist() == [1.0, np.inf]


async def test_tensor_batches_are_split_again(tmp_path: Path) -> None:
    async with serving(models.save(models.affine(), tmp_path / "model.onnx"), tmp_path) as engine:
        random = np.random.default_rng(5)
        inputs = [random.random((rows, 4), np.float32) for rows in (1, 2, 5, 1, 3)]
        answers = await asyncio.gather(*[engine.infer(tensor("x", "FP32", list(x.shape), x.ravel().tolist())) for x in inputs])
        metrics = (await engine.client.get("/metrics")).text
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    for x, answer in zip(inputs, answers, strict=True):
        (output,) = answer.json()["outputs"]
        np.testing.assert_allclose(np.array(output["data"]).reshape(output["shape"]), x @ weight + 1, rtol=1e-5)
    assert "gatehouse_onnx_batches_total 1\n" in metrics
    assert "gatehouse_onnx_batch_rows_total 12\n" in metrics
    assert "gatehouse_onnx_elements_total 48\n" in metrics


async def test_a_request_of_many_rows_runs_in_batches_of_the_configured_size(tmp_path: Path) -> None:
    x = np.random.default_rng(5).random((75, 4), np.float32)
    async with serving(models.save(models.affine(), tmp_path / "model.onnx"), tmp_path, batching=BatchingSpec(max_batch=32)) as engine:
        answer = await engine.infer(tensor("x", "FP32", [75, 4], x.ravel().tolist()))
        metrics = (await engine.client.get("/metrics")).text
    (output,) = answer.json()["outputs"]
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(np.array(output["data"]).reshape(75, 3), x @ weight + 1, rtol=1e-5)
    assert "gatehouse_onnx_batches_total 3\n" in metrics and "gatehouse_onnx_batch_rows_total 75\n" in metrics


async def test_outputs_are_bounded_before_they_are_computed(tmp_path: Path) -> None:
    model = models.save(models.affine(), tmp_path / "model.onnx")
    async with serving(model, tmp_path, options={"max_output_bytes": 120}) as engine:
        fits = await engine.infer(tensor("x", "FP32", [10, 4], [0.0] * 40))
        refused = await engine.infer(tensor("x", "FP32", [11, 4], [0.0] * 44))
        metrics = (await engine.client.get("/metrics")).text
    assert fits.status_code == 200 and refused.status_code == 400
    assert "132 bytes; at most 120" in refused.json()["error"]
    assert "gatehouse_onnx_batch_rows_total 10\n" in metrics


async def test_texts_count_by_their_length(tmp_path: Path) -> None:
    model = models.save(models.named(), tmp_path / "model.onnx")
    async with serving(model, tmp_path, options={"max_output_bytes": 1000}) as engine:
        for length, status in ((900, 200), (1000, 400)):
            name = tensor("name", "BYTES", [1], ["a" * length])
            answer = await engine.infer(tensor("count", "INT64", [1], [1]), name)
            assert answer.status_code == status, answer.text
    assert "at most 1000 are possible" in answer.json()["error"]


async def test_images(tmp_path: Path) -> None:
    async with serving(models.save(models.convolution(), tmp_path / "model.onnx"), tmp_path) as engine:
        for height, width in ((4, 6), (1, 1)):
            pixels = list(range(3 * height * width))
            (output,) = (await engine.infer(tensor("pixels", "UINT8", [1, 3, height, width], pixels))).json()["outputs"]
            assert output["shape"] == [1, 2, height, width]


# -- metadata, health ------------------------------------------------------------------------------------------------------


async def test_metadata(named: Engine) -> None:
    async def get(path: str) -> Any:
        answer = await named.client.get(path)
        return answer.json() if answer.status_code == 200 else answer.status_code

    assert (await get("/v2"))["extensions"] == ["binary_tensor_data"]
    assert await get("/v2/health/live") == {"live": True}
    assert await get("/v2/health/ready") == {"ready": True}
    assert await get("/v2/models/m/ready") == {"name": "m", "ready": True}
    assert await get("/v2/models/org/m/versions/1/ready") == {"name": "org/m", "ready": True}
    assert (await get("/v2/models/m/versions/1"))["inputs"][0] == {"name": "count", "datatype": "INT64", "shape": [-1]}
    assert await get("/v2/models/m/versions/2") == 404
    assert await get("/v2/models/m/infer") == 405
    assert (await named.infer(COUNT, NAME, model="org/m/versions/1")).json()["model_name"] == "org/m"
    assert (await named.infer(COUNT, NAME, model="m/versions/9")).status_code == 404
    assert (await named.post("/v2/models/m/ready", b"{}")).status_code == 404
    assert (await get("/v1/models"))["data"][0]["id"] == "onnx"


async def test_names_can_be_fixed(tmp_path: Path) -> None:
    options = {"names": ["public"], "version": "2024-b"}
    async with serving(models.save(models.named(), tmp_path / "model.onnx"), tmp_path, options=options) as engine:
        assert (await engine.infer(COUNT, NAME, model="public")).json()["model_version"] == "2024-b"
        refused = await engine.infer(COUNT, NAME, model="other")
    assert refused.status_code == 404
    assert refused.json()["code"] == "model_not_found"


async def test_health(embed: Engine) -> None:
    await embed.post("/v1/embeddings", {"input": "a cat"})
    found = (await embed.client.get("/health")).json()
    assert (found["state"], found["device"], found["fallback_reason"], found["task"], found["batching"]) == (
        "ready",
        "cpu",
        None,
        "embeddings",
        "padded",
    )
    assert len(found["sha256"]) == 64
    assert (found["in_use"], found["queue"]) == (0, 0)
    assert found["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("options", "task"),
    [({}, "embeddings"), ({"task": "tensor"}, "tensor"), ({"task": "embeddings", "output": "last_hidden_state"}, "embeddings")],
)
async def test_the_task_is_detected_or_stated(tmp_path: Path, options: dict[str, Any], task: str) -> None:
    async with serving(models.embedding_folder(tmp_path), tmp_path, options=options) as engine:
        assert (await engine.client.get("/health")).json()["task"] == task
        ids = [tensor(name, "INT64", [1, 2], [4, 1]) for name in ("input_ids", "attention_mask")]
        assert (await engine.infer(*ids)).json()["outputs"][0]["shape"] == [1, 2, models.SIZE], "tensors are served whatever the task"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"task": "classification"}, "invalid_options"), ({"output": "nope"}, "invalid_options"), ({"pooling": "none"}, "invalid_options"),
        ({"nope": 1}, "invalid_options"), ({"default_prompt": "query"}, "invalid_options"), ({"max_length": 99_999_999}, "invalid_options"),
    ],
)  # fmt: skip
async def test_options_that_do_not_fit_the_model(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    with pytest.raises(LoadError) as caught:
        async with serving(models.embedding_folder(tmp_path), tmp_path, options=options):
            pass
    assert caught.value.code == code


def test_a_graph_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_RUNS", 0.1)
    path = models.save(models.endless(), tmp_path / "model.onnx")
    spec = SidecarSpec(name="onnx", runtime="onnx", model=str(path), socket="unused", state_dir=str(tmp_path))
    with pytest.raises(LoadError, match=r"did not end within 0\.1 s") as caught:
        OnnxRuntime(spec).load()
    assert caught.value.code == "load_timeout"


async def test_a_run_without_an_end_ends_when_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(models.save(models.rounds(), tmp_path / "model.onnx"), tmp_path) as engine:
        body = json.dumps({"inputs": [tensor("count", "INT64", [1], [1 << 62])]})
        answer = await engine.post("/v2/models/m/infer", body.encode(), **{"x-gatehouse-deadline-ms": "100"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "engine_timeout")
        assert (await engine.infer(tensor("count", "INT64", [1], [3]))).json()["outputs"][0]["data"] == [3]
        assert (await engine.client.get("/health")).json()["state"] == "ready"
        monkeypatch.setattr(Batcher, "stuck", property(lambda batcher: app.HUNG_SECONDS + 1))
        found = (await engine.client.get("/health")).json()
        assert (found["state"], found["reason_code"]) == ("failed", "run_hangs") and "has not ended for 121 s" in found["reason"]


async def test_several_instances_give_the_same(tmp_path: Path) -> None:
    folder, texts = models.embedding_folder(tmp_path), ["a", "a cat in it", "dog", "several more words in a rather longer text"] * 4
    found = []
    for instances in (1, 3):
        async with serving(folder, tmp_path, options={"instances": instances}) as engine:
            answers = await asyncio.gather(*[engine.post("/v1/embeddings", {"input": text, "encoding_format": "base64"}) for text in texts])
            found.append([answer.json()["data"][0]["embedding"] for answer in answers])
            assert (await engine.client.get("/health")).json()["instances"] == instances
    assert found[0] == found[1]


async def test_batching_can_be_forced_and_forbidden(tmp_path: Path) -> None:
    folder = models.embedding_folder(tmp_path, dependent=True)
    for options, mode in (({}, "off"), ({"batching": "on"}, "padded"), ({"batching": "off"}, "off")):
        async with serving(folder, tmp_path, options=options) as engine:
            assert (await engine.client.get("/health")).json()["batching"] == mode
    async with serving(folder, tmp_path, batching=BatchingSpec(max_batch=1)) as engine:
        assert (await engine.client.get("/health")).json()["batching"] == "off"


async def test_before_the_model_is_loaded(tmp_path: Path) -> None:
    spec = SidecarSpec(name="onnx", runtime="onnx", model="absent", socket="unused", state_dir=str(tmp_path))
    runtime = OnnxRuntime(spec)
    with pytest.raises(LoadError) as caught:
        runtime.load()
    assert caught.value.code == "model_missing"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=Sidecar(spec, runtime)), base_url="http://sidecar") as client:
        assert (await client.get("/v2/health/ready")).status_code == 503
    await runtime.aclose()


def test_errors_of_a_run() -> None:
    out = runtime_error(RuntimeError("Failed to allocate memory for requested buffer"))
    assert isinstance(out, ApiError)
    assert (out.status, out.code) == (507, "insufficient_memory")
    ours = KeyError("bug")
    assert runtime_error(ours) is ours


async def test_the_event_loop_is_never_held_up(embed: Engine) -> None:
    """While a large request is read, computed and written, the loop goes on turning."""
    text = "a cat in several more words " * 4000
    ticks, done = 0, asyncio.Event()

    async def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    answer = await embed.post("/v1/embeddings", {"input": [text] * 20})
    done.set()
    await ticking
    assert answer.status_code == 200
    assert ticks > 100
