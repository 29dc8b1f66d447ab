"""Tensors between the wire and numpy, the graph's schema, and which graphs may be batched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec import Raw

from engines.onnx.options import OnnxOptions
from engines.onnx.session import NUMPY, Port, Session, load_session
from engines.onnx.tensors import (
    PORTION,
    Feeds,
    Schema,
    TensorRunner,
    from_bfloat16,
    rows_independent,
    size_of,
    to_array,
    to_bfloat16,
    to_output,
    units_of,
    warm_up,
)
from engines.sidecar.http import ApiError
from gateway.core.specs import SidecarSpec
from gateway.wire.oip.codec import TensorError, parse_request, parse_response
from gateway.wire.oip.values import encode_response, join_bytes
from tests.unit.engines.onnx import models


def open_model(tmp_path: Path, model: Any) -> Session:
    path = models.save(model, tmp_path / "model.onnx")
    spec = SidecarSpec(name="e", runtime="onnx", model=str(path), socket="unused", state_dir=str(tmp_path))
    return load_session(spec, path, OnnxOptions(cache=False)).session


def request(*inputs: dict[str, Any], **more: Any) -> Any:
    return parse_request(json.dumps({"inputs": inputs, **more}).encode())


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


MOST = 1 << 20

# -- values ----------------------------------------------------------------------------------------------------------------

numeric = st.sampled_from([kind for kind in NUMPY if kind not in ("BYTES", "BF16")])


@given(st.data(), numeric, st.booleans())
def test_numbers_come_back_as_they_went(data: st.DataObject, datatype: str, binary: bool) -> None:
    finite: dict[str, Any] = {} if binary or not datatype.startswith("FP") else {"elements": {"allow_nan": False, "allow_infinity": False}}
    array = data.draw(hnp.arrays(NUMPY[datatype], hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), **finite))
    output = to_output(Port("x", datatype, array.shape), array, binary, MOST)
    pieces, length = encode_response("m", "1", "", [output])
    (back,) = parse_response(b"".join(pieces), length).outputs
    found = to_array(back)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(st.lists(st.text(max_size=5), max_size=5), st.booleans())
def test_strings_come_back_as_they_went(texts: list[str], binary: bool) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    output = to_output(Port("x", "BYTES", (None,)), np.array(texts, object), binary, MOST)
    pieces, length = encode_response("m", "1", "", [output])
    (back,) = parse_response(b"".join(pieces), length).outputs
    assert to_array(back).tolist() == texts


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126), max_size=8))
def test_bfloat16_is_the_nearest(values: list[float]) -> None:
    array = np.array(values, np.float32)
    back = from_bfloat16(to_bfloat16(array))
    np.testing.assert_allclose(back, array, rtol=2**-8, atol=1e-38)
    np.testing.assert_array_equal(to_bfloat16(back), to_bfloat16(array))


def test_bfloat16_in_json() -> None:
    (found,) = request(tensor("x", "BF16", [2], [1.0, -2.5])).inputs
    array = to_array(found)
    assert array.dtype == np.uint16
    assert to_output(Port("x", "BF16", (2,)), array, False, MOST).written == Raw(b"[1.0,-2.5]")


@pytest.mark.parametrize("count", [0, PORTION, PORTION + 1, 2 * PORTION + 3])
def test_many_numbers_are_written_in_portions(count: int) -> None:
    array = np.arange(count, dtype=np.float64) / 4
    written = to_output(Port("x", "FP64", (None,)), array, False, 1 << 24).written
    assert written is not None and json.loads(bytes(written)) == array.tolist()


def test_numbers_that_json_has_not_are_found_in_every_portion() -> None:
    array = np.zeros(PORTION + 9, np.float32)
    array[-1] = -np.inf
    with pytest.raises(TensorError, match=r"output 'x': expected finite numbers, as JSON has no others .*, received -inf"):
        to_output(Port("x", "FP32", (None,)), array, False, MOST)


def test_numbers_that_are_too_long_as_json() -> None:
    array = np.full(100, 1 / 3)
    with pytest.raises(ApiError, match=r"over 1000 bytes; at most 1000 are possible .*ask for binary_data"):
        to_output(Port("x", "FP64", (None,)), array, False, 1000)
    assert to_output(Port("x", "FP64", (None,)), array, True, 1000).binary is not None


def test_the_size_of_an_output() -> None:
    assert size_of(np.zeros((2, 3), np.float32)) == 24
    assert size_of(np.array([["ab"], ["cde"]] * PORTION, object)) == 2 * PORTION * 8 + PORTION * 5


def test_binary_values_that_no_type_has() -> None:
    head = json.dumps({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}]}).encode()
    with pytest.raises(TensorError, match="input 'x': expected bytes 0 and 1 for BOOL, received 7"):
        to_array(parse_request(head + b"\x00\x01\x07", len(head)).inputs[0])
    raw = join_bytes([b"ok", b"\xff\xfe"])
    head = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}]}).encode()
    with pytest.raises(TensorError, match=r"input 'x': expected UTF-8 .* element 1"):
        to_array(parse_request(head + raw, len(head)).inputs[0])


# -- schema ----------------------------------------------------------------------------------------------------------------

GOOD = tensor("count", "INT64", [2], [1, 2])
NAME = tensor("name", "BYTES", [2], ["a", "b"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "subject", "expected", "received"),
    [
        ([GOOD], [], "input 'name'", "a tensor", "none"),
        ([GOOD, NAME, {**GOOD, "name": "other"}], [], "input 'other'", "'count', 'name'", "unknown"),
        ([GOOD, NAME], ["nope"], "output 'nope'", "'doubled', 'name_out'", "unknown"),
        ([tensor("count", "INT32", [2], [1, 2]), NAME], [], "input 'count'", "datatype INT64", "INT32"),
        ([tensor("count", "INT64", [2, 1], [1, 2]), NAME], [], "input 'count'", "shape (-1,)", "[2, 1]"),
        ([tensor("count", "INT64", [3], [1, 2, 3]), NAME], [], "input 'name'", "3 along axis 0, as input 'count' has for 'n'", "[2]"),
    ],
)
def test_requests_that_do_not_fit(
    tmp_path: Path, inputs: list[Any], outputs: list[str], subject: str, expected: str, received: str
) -> None:
    schema = Schema(open_model(tmp_path, models.named()))
    with pytest.raises(TensorError) as caught:
        schema.feeds(request(*inputs, outputs=[{"name": name} for name in outputs]))
    assert caught.value.subject == subject
    assert expected in caught.value.expected
    assert received in caught.value.received


def test_an_extension_that_the_engine_does_not_have_is_refused_and_not_ignored(tmp_path: Path) -> None:
    schema = Schema(open_model(tmp_path, models.named()))
    for classes, refused in ((0, False), (2, True)):
        asked = request(GOOD, NAME, outputs=[{"name": "doubled", "parameters": {"classification": classes}}])
        if refused:
            with pytest.raises(TensorError, match=r"output 'doubled': expected no 'classification', .* received 2"):
                schema.feeds(asked)
        else:
            assert schema.feeds(asked).outputs == ("doubled",)


def test_a_fixed_dimension(tmp_path: Path) -> None:
    schema = Schema(open_model(tmp_path, models.affine()))
    with pytest.raises(TensorError, match=r"input 'x': expected 4 along axis 1 \(shape \(-1, 4\)\), received shape \[1, 5\]"):
        schema.feeds(request(tensor("x", "FP32", [1, 5], [1] * 5)))


def test_metadata(tmp_path: Path) -> None:
    found = json.loads(Schema(open_model(tmp_path, models.convolution())).metadata("m", "3"))
    assert found == {
        "name": "m", "versions": ["3"], "platform": "onnxruntime_onnx",
        "inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [-1, 3, -1, -1]}],
        "outputs": [{"name": "features", "datatype": "FP32", "shape": [-1, 2, -1, -1]}],
    }  # fmt: skip


# -- batches ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "independent"),
    [
        (models.affine, True), (models.convolution, True), (models.named, True), (models.lookup, True), (models.every_type, True),
        (models.brain, True),
        (models.mixing, False),
    ],
)  # fmt: skip
def test_which_graphs_are_batched(tmp_path: Path, make: Any, independent: bool) -> None:
    session = open_model(tmp_path, make())
    assert rows_independent(session, Schema(session), 1e-5, np.random.default_rng(0)) is independent


@pytest.mark.parametrize("shape", [(2, 4), ("n", "n"), ()])
def test_graphs_without_a_batch_axis(tmp_path: Path, shape: Any) -> None:
    session = open_model(tmp_path, models.identity("FP32", shape))
    assert Schema(session).batch_axis() is None
    assert not rows_independent(session, Schema(session), 1e-5, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "ran"),
    [
        (models.affine, True),
        (models.every_type, True),
        (lambda: models.identity("FP32", (2, 3)), True),
        (lambda: models.identity("FP64", ()), True),
        (models.stubborn, False),
    ],
)
def test_warming_up(tmp_path: Path, make: Any, ran: bool) -> None:
    session = open_model(tmp_path, make())
    assert warm_up(session, Schema(session), np.random.default_rng(0)) is ran


def test_a_batch_gives_what_each_gives_alone(tmp_path: Path) -> None:
    runner = TensorRunner(open_model(tmp_path, models.affine()))
    random = np.random.default_rng(3)
    batch = [Feeds({"x": random.random((rows, 4), np.float32)}, ("y",)) for rows in (1, 3, 2)]
    together = runner.run(batch)
    for feeds, found in zip(batch, together, strict=True):
        np.testing.assert_allclose(found["y"], runner.run([feeds])[0]["y"], atol=1e-5)


def test_keys() -> None:
    def feeds(shape: tuple[int, ...], *outputs: str) -> Feeds:
        return Feeds({"x": np.zeros(shape, np.float32)}, outputs)

    (one,), (two,) = units_of(feeds((1, 4), "y"), 32), units_of(feeds((5, 4), "y"), 32)
    assert one.key == two.key
    assert (one.rows, two.rows) == (1, 5)
    assert one.key != units_of(feeds((1, 5), "y"), 32)[0].key
    assert one.key != units_of(feeds((1, 4), "z"), 32)[0].key
    assert units_of(feeds((), "y"), 1)[0].rows == 1
    assert units_of(feeds((0, 4), "y"), 32)[0].rows == 1
