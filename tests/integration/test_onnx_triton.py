"""The Open Inference Protocol with Triton's own HTTP client, unchanged, against a real sidecar process: JSON and binary."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from engines.onnx.session import NUMPY
from tests.integration.onnx_process import OnnxProcess
from tests.unit.engines.onnx import models

SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1], "INT8": [-128, 127],
    "INT16": [-32768, 32767], "INT32": [-(2**31), 2**31 - 1], "INT64": [-(2**63), 2**63 - 1], "FP16": [-65504.0, 0.5],
    "FP32": [3.4028234663852886e38, -0.1], "FP64": [1.7976931348623157e308, 5e-324], "BYTES": [b"", "gr\u00fc\u00df \U0001f642".encode()],
}  # fmt: skip


def serve(path: Path, model: Any, **settings: Any) -> Iterator[tuple[OnnxProcess, triton.InferenceServerClient]]:
    models.save(model, path / "model.onnx")
    with OnnxProcess(path, **settings) as process:
        client = triton.InferenceServerClient(process.address)
        yield process, client
        client.close()


Served = tuple[OnnxProcess, triton.InferenceServerClient]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("every"), models.every_type(), options={"version": "3"})


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("image"), models.convolution())


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("named"), models.named())


def tensor(name: str, datatype: str, values: Any, binary: bool) -> triton.InferInput:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def array(datatype: str) -> Any:
    return np.array(SAMPLES[datatype], np.object_ if datatype == "BYTES" else NUMPY[datatype])


# -- what works ------------------------------------------------------------------------------------------------------------


def test_health_and_metadata(every: Served) -> None:
    _, client = every
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "3")
    assert not client.is_model_ready("m", "4")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    found = client.get_model_metadata("m", "3")
    assert found["versions"] == ["3"]
    assert {item["datatype"]: item["shape"] for item in found["inputs"]} == {datatype: [-1] for datatype in SAMPLES}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_every_type_both_ways(every: Served, binary_in: bool, binary_out: bool | None) -> None:
    """FP16 goes in binary form alone, as Triton's client insists."""
    _, client = every
    inputs = [tensor(f"in_{kind}", kind, array(kind), binary_in or kind == "FP16") for kind in SAMPLES]
    outputs = [triton.InferRequestedOutput(f"out_{kind}", binary_data=binary_out or kind == "FP16") for kind in SAMPLES]
    answer = client.infer("m", inputs, outputs=None if binary_out is None else outputs, request_id="r-1", model_version="3")
    response = answer.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("r-1", "m", "3")
    for kind in SAMPLES:
        found = answer.as_numpy(f"out_{kind}")
        expected = array(kind)
        if kind == "BYTES" and found.dtype == np.object_ and not isinstance(found[0], bytes):
            found = np.array([text.encode() for text in found], np.object_)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("binary", [True, False])
def test_images_of_any_size(image: Served, binary: bool) -> None:
    _, client = image
    random = np.random.default_rng(1)
    for count, height, width in ((1, 5, 7), (3, 8, 8)):
        pixels = random.integers(0, 255, (count, 3, height, width)).astype(np.uint8)
        answer = client.infer("image", [tensor("pixels", "UINT8", pixels, binary)])
        features = answer.as_numpy("features")
        assert features.shape == (count, 2, height, width)
        np.testing.assert_allclose(features, convolve(pixels), rtol=1e-4, atol=1e-3)


def convolve(pixels: Any) -> Any:
    """The 3 x 3 convolution of the model, in plain loops."""
    weight = np.linspace(-1, 1, 54, dtype=np.float32).reshape(2, 3, 3, 3)
    padded = np.pad(pixels.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    count, _, height, width = pixels.shape
    found = np.zeros((count, 2, height, width), np.float32)
    for row in range(height):
        for column in range(width):
            found[:, :, row, column] = np.einsum("ncij,ocij->no", padded[:, :, row : row + 3, column : column + 3], weight)
    return found


@pytest.mark.parametrize("binary", [True, False])
def test_integers_and_strings(named: Served, binary: bool) -> None:
    _, client = named
    counts, names = np.array([2**40, -1], np.int64), np.array([b"one", "zw\u00f6lf".encode()], np.object_)
    answer = client.infer("named", [tensor("count", "INT64", counts, binary), tensor("name", "BYTES", names, binary)])
    assert answer.as_numpy("doubled").tolist() == [2**41, -2]
    assert answer.as_numpy("name_out").tolist() == [b"one", "zw\u00f6lf".encode()]


def test_one_output_by_name(named: Served) -> None:
    _, client = named
    inputs = [tensor("count", "INT64", np.array([3]), True), tensor("name", "BYTES", np.array([b"x"], np.object_), True)]
    answer = client.infer("named", inputs, outputs=[triton.InferRequestedOutput("doubled")])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["doubled"]


def test_many_requests_at_once(image: Served) -> None:
    process, _ = image
    client = triton.InferenceServerClient(process.address, concurrency=8)
    pixels = np.full((1, 3, 4, 4), 7, np.uint8)
    pending = [client.async_infer("image", [tensor("pixels", "UINT8", pixels, True)]) for _ in range(32)]
    results = [request.get_result().as_numpy("features") for request in pending]
    client.close()
    assert all((result == results[0]).all() for result in results)


# -- what is refused -------------------------------------------------------------------------------------------------------


def named_inputs(**change: Any) -> list[triton.InferInput]:
    count = tensor("count", "INT64", np.array([1, 2]), True)
    name = tensor("name", "BYTES", np.array([b"a", b"b"], np.object_), True)
    if "shape" in change:
        count._shape = change["shape"]
    if "datatype" in change:
        count._datatype = change["datatype"]
    if "name" in change:
        count._name = change["name"]
    return [count, name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [3]}, "input 'count': expected binary_data_size 24"),
        ({"shape": [-2]}, "input 'count': expected dimensions of zero or more"),
        ({"shape": [2**62]}, "input 'count': expected at most"),
        ({"shape": [1, 2]}, "input 'count': expected shape"),
        ({"datatype": "FP64"}, "input 'count': expected datatype INT64, received FP64"),
        ({"datatype": "INT32"}, "input 'count': expected binary_data_size 8"),
        ({"name": "cuont"}, "input 'cuont': expected one of the inputs 'count', 'name'"),
    ],
)
def test_refusals_reach_tritons_client(named: Served, change: dict[str, Any], words: str) -> None:
    process, client = named
    with pytest.raises(InferenceServerException) as caught:
        client.infer("named", named_inputs(**change))
    assert caught.value.status() == "400"
    assert words in caught.value.message()
    assert client.infer("named", named_inputs()).as_numpy("doubled").tolist() == [2, 4], "the sidecar lives on"
    assert process.process.poll() is None


def test_an_unknown_output_and_an_unknown_version(named: Served) -> None:
    _, client = named
    with pytest.raises(InferenceServerException, match=r"\[400\] output 'nope': expected one of the outputs 'doubled', 'name_out'"):
        client.infer("named", named_inputs(), outputs=[triton.InferRequestedOutput("nope")])
    with pytest.raises(InferenceServerException, match=r"\[404\] model 'named' has version 1, not '7'"):
        client.infer("named", named_inputs(), model_version="7")


def test_broken_frames_over_the_socket(named: Served) -> None:
    """Truncated and lying bodies, byte for byte, over the sidecar's own socket."""
    process, client = named
    body, length = triton.InferenceServerClient.generate_request_body(named_inputs())
    for content, header in (
        (body[:-1], length), (body[: length + 3], length), (body, length + len(body)), (body, length - 1), (body, 0), (body + b"x", length),
        (body[:length], length), (body, "1e3"), (body, None),
    ):  # fmt: skip
        with process.client() as http:
            headers = {} if header is None else {"Inference-Header-Content-Length": str(header)}
            answer = http.post("/v2/models/named/infer", content=content, headers=headers)
        assert answer.status_code == 400, (len(content), header)
        assert isinstance(json.loads(answer.content)["error"], str)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(process.socket)
        raw.sendall(b"POST /v2/models/named/infer HTTP/1.1\r\nhost: s\r\ncontent-length: 1000\r\n\r\n" + body[:20])
    assert client.infer("named", named_inputs()).as_numpy("doubled").tolist() == [2, 4]
