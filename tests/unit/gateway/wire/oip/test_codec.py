"""The Open Inference Protocol codec: what it accepts comes back unchanged, everything else is one typed error."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatehouseError
from gateway.wire.oip.codec import (
    MAX_ELEMENTS,
    SIZES,
    InferRequest,
    ModelPath,
    TensorError,
    TensorMetadata,
    TensorSummary,
    encode_error,
    encode_model_metadata,
    encode_server_metadata,
    header_length,
    parse_path,
    parse_request,
    parse_response,
)
from gateway.wire.oip.values import OutputTensor, encode_response, join_bytes, json_values, split_bytes


def request(*tensors: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(tensors), **more}).encode()


def tensor(datatype: str = "FP32", shape: list[int] | None = None, data: Any = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": [2] if shape is None else shape, **more}
    if data is not None:
        found["data"] = data
    return found


def binary(datatype: str, shape: list[int], raw: bytes, **more: Any) -> tuple[bytes, int]:
    head = request(tensor(datatype, shape, parameters={"binary_data_size": len(raw)}), **more)
    return head + raw, len(head)


def refusal(body: bytes, length: int | None = None) -> TensorError:
    with pytest.raises(TensorError) as caught:
        parsed = parse_request(body, length)
        for item in parsed.inputs:
            values(item)
    assert caught.value.status == 400
    assert isinstance(caught.value, GatehouseError)
    return caught.value


def values(item: Any) -> list[Any]:
    if not item.binary:
        return json_values(item)
    return [bytes(part) for part in split_bytes(item)] if item.datatype == "BYTES" else list(bytes(item.raw))


# -- paths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/models/m", ModelPath("m", "", "metadata")),
        ("/v2/models/m/ready", ModelPath("m", "", "ready")),
        ("/v2/models/m/infer", ModelPath("m", "", "infer")),
        ("/v2/models/m/versions/3", ModelPath("m", "3", "metadata")),
        ("/v2/models/m/versions/3/ready", ModelPath("m", "3", "ready")),
        ("/v2/models/m/versions/3/infer", ModelPath("m", "3", "infer")),
        ("/v2/models/org/name/infer", ModelPath("org/name", "", "infer")),
        ("/v2/models/org/name/versions/1/infer", ModelPath("org/name", "1", "infer")),
        ("/v2/models/ready", ModelPath("ready", "", "metadata")),
        ("/v2/models/infer/infer", ModelPath("infer", "", "infer")),
    ],
)
def test_paths(path: str, expected: ModelPath) -> None:
    assert parse_path(path) == expected


@pytest.mark.parametrize(
    "path", ["/v2/models/", "/v2/models", "/v2", "/v1/models/m", "/v2/models//infer", "/x/v2/models/m", "/v2/models/m//"]
)
def test_paths_that_address_no_model(path: str) -> None:
    assert parse_path(path) is None


# -- the header's length ---------------------------------------------------------------------------------------------------


def test_header_length() -> None:
    assert header_length(None, 10) is None
    assert header_length(b"10", 10) == 10
    assert header_length("1", 10) == 1


@pytest.mark.parametrize("value", [b"11", b"0", b"-1", b"+5", b"1e1", b"", b" 5", b"5 ", b"0x5", b"9" * 40, "٣".encode()])
def test_header_length_refused(value: bytes) -> None:
    with pytest.raises(TensorError, match="inference-header-content-length"):
        header_length(value, 10)


# -- JSON data -------------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-32768, 32767],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [-65504.0, 0.5],
    "BF16": [-3.0e38, 0.5],
    "FP32": [3.4028234663852886e38, -0.1],
    "FP64": [1.7976931348623157e308, 5e-324],
    "BYTES": ["", "gr\u00fc\u00df [[ \U0001f600"],
}


@pytest.mark.parametrize("datatype", sorted(SIZES))
def test_every_datatype_in_json(datatype: str) -> None:
    parsed = parse_request(request(tensor(datatype, [2], SAMPLES[datatype]), id="r-1", parameters={"a": 1, "b": "c", "d": True}))
    assert json_values(parsed.inputs[0]) == SAMPLES[datatype]
    assert parsed.summary() == (TensorSummary("x", datatype, (2,), 2),)
    assert parsed.id == "r-1"
    assert parsed.parameters == {"a": 1, "b": "c", "d": True}


OUT_OF_RANGE = [
    ("UINT8", 256), ("UINT8", -1), ("UINT16", 65536), ("UINT32", 2**32), ("UINT64", 2**64), ("UINT64", -1), ("INT8", 128),
    ("INT16", -32769),
    ("INT32", 2**31), ("INT64", 2**63), ("FP16", 65520.0), ("FP32", 3.5e38), ("BF16", -3.4e38),
    *((datatype, sign * 10**399) for datatype in sorted(set(SIZES) - {"BOOL", "BYTES"}) for sign in (1, -1)),
]  # fmt: skip


@pytest.mark.parametrize(("datatype", "value"), OUT_OF_RANGE)
def test_values_out_of_range(datatype: str, value: float) -> None:
    error = refusal(request(tensor(datatype, [1], [value])))
    assert error.subject == "input 'x'"
    assert error.expected.startswith(
        f"values in the range of {datatype} (-" if datatype[0] != "U" else f"values in the range of {datatype} (0 to "
    )
    assert str(value)[:10] in error.received or "out of range" in error.received


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("FP32", ["a", "b"]), ("INT32", [1.5, 2]), ("INT32", [True, False]), ("BOOL", [1, 0]), ("BYTES", [1, 2]), ("FP32", [None, 1]),
     ("FP64", [{}, 1]), ("INT8", ["1", "2"]), ("FP32", [[1], 2])],
)  # fmt: skip
def test_wrong_type_of_a_value(datatype: str, data: list[Any]) -> None:
    assert refusal(request(tensor(datatype, [2], data))).subject == "input 'x'"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_in_json_name_the_input(word: str) -> None:
    body = request(tensor(shape=[1], data=[1.0]), {**tensor(shape=[1], data=[7.5]), "name": "second"})
    error = refusal(body.replace(b"7.5", word.encode()))
    assert (error.subject, error.expected, error.received) == ("input 'second'", "numbers that JSON allows", word)
    early = body.replace(b'"data": [7.5]', b'"ignored": 0').replace(
        b'{"name": "second"', b'{"data": [' + word.encode() + b'], "name": "second"'
    )
    assert refusal(early).subject == "input 'second'"


def test_number_too_large_for_any_float() -> None:
    error = refusal(request(tensor(shape=[1], data=[7.5])).replace(b"7.5", b"1e400"))
    assert error.subject == "input 'x'"
    assert "out of range" in error.received


def test_data_flat_or_nested() -> None:
    flat = parse_request(request(tensor("INT32", [2, 1, 3], [1, 2, 3, 4, 5, 6]))).inputs[0]
    nested = parse_request(request(tensor("INT32", [2, 1, 3], [[[1, 2, 3]], [[4, 5, 6]]]))).inputs[0]
    assert json_values(flat) == json_values(nested) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("shape", "data"), [([0], []), ([0, 3], []), ([2, 0], [[], []]), ([2, 0, 5], [[], []]), ([1, 1, 0], [[[]]])])
def test_empty_tensors(shape: list[int], data: list[Any]) -> None:
    assert json_values(parse_request(request(tensor("FP32", shape, data))).inputs[0]) == []


def test_scalar() -> None:
    assert json_values(parse_request(request(tensor("FP32", [], [3.5]))).inputs[0]) == [3.5]


@pytest.mark.parametrize(
    ("shape", "data", "expected", "received"),
    [
        ([3], [1, 2], "3 elements", "2"),
        ([2], [1, 2, 3], "2 elements", "3"),
        ([2, 2], [[1, 2], [3]], "2 elements along axis 1", "1"),
        ([2, 2], [[1, 2]], "2 elements along axis 0", "1"),
        ([2, 2], [[[1, 2], [3, 4]]], "nested 2 deep", "nested 3 deep"),
        ([4], [[1, 2], [3, 4]], "nested 1 deep", "nested 2 deep"),
        ([1] * 9, [[[[[[[[[1]]]]]]]]], "at most 8 deep", "nested 9 deep"),
        ([1], 5, "data as an array", "5"),
        ([1], "abc", "data as an array", "abc"),
        ([1], {"a": 1}, "data as an array", "a"),
    ],
)
def test_counts_and_nesting(shape: list[int], data: Any, expected: str, received: str) -> None:
    error = refusal(request(tensor("FP32", shape, data)))
    assert error.subject == "input 'x'"
    assert expected in error.expected
    assert received in error.received


# -- frames ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [[-1], [2, -2], [MAX_ELEMENTS + 1], [2**62, 4], [2**40, 2], [2**200], [1] * 33])
def test_shapes_that_cannot_be(shape: list[int]) -> None:
    error = refusal(request(tensor("FP32", shape, [1])))
    assert error.subject == "input 'x'"
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"shape": [1.5]}, "input 'x'"),
        ({"shape": ["1"]}, "input 'x'"),
        ({"shape": None}, "input 'x'"),
        ({"datatype": "FLOAT"}, "input 'x'"),
        ({"datatype": 7}, "input 'x'"),
        ({"parameters": {"a": {"b": 1}}}, "input 'x'"),
        ({"parameters": {"binary_data_size": 8}}, "input 'x'"),
        ({"name": 5}, "body"),
        ({"name": ""}, "inputs"),
        ({"name": "n" * 600}, "inputs"),
        ({"data": None}, "input 'x'"),
    ],
)
def test_broken_tensors(change: dict[str, Any], subject: str) -> None:
    assert refusal(request({**tensor("FP32", [1], [1]), **change})).subject == subject


@pytest.mark.parametrize("name", ["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"])
def test_memory_of_the_engine_is_named_neither_for_inputs_nor_for_outputs(name: str) -> None:
    """Nothing that reads the data would see what lies there, and an engine may prefer it to the data that was sent."""
    memory = {name: "of-another" if name.endswith("region") else 8}
    assert refusal(request({**tensor("FP32", [1], [1]), "parameters": memory})).message == (
        f"input 'x': expected its data in the message, received {name}"
    )
    body, length = binary("FP32", [1], b"four")
    named = json.loads(body[:length])
    named["inputs"][0]["parameters"].update(memory)
    head = json.dumps(named).encode()
    assert refusal(head + b"four", len(head)).received == name
    assert refusal(request(tensor("FP32", [1], [1]), outputs=[{"name": "y", "parameters": memory}])).subject == "output 'y'"


def test_broken_frames() -> None:
    one = tensor("FP32", [1], [1])
    assert refusal(request()).expected == "at least one input"
    assert refusal(request(one, one)).received == "2 times"
    assert refusal(request(one, outputs=[{"name": "y"}, {"name": "y"}])).subject == "output 'y'"
    assert refusal(request(*[{**one, "name": str(i)} for i in range(257)])).expected == "at most 256 tensors"
    assert refusal(request(one, outputs=[{"name": "y", "parameters": {"binary_data": []}}])).subject == "output 'y'"
    for body in (
        b"",
        b"[]",
        b"{}",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"inputs": 1}',
        b'{"inputs":[' + b"[" * 5000,
        b'{"inputs":[{"name":"\xff"}]}',
    ):
        refusal(body)


def test_parameters_choose_the_output_form() -> None:
    plain = parse_request(request(tensor("FP32", [1], [1])))
    assert not plain.wants_binary("y")
    chosen: InferRequest = parse_request(
        request(
            tensor("FP32", [1], [1]),
            outputs=[{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}],
            parameters={"binary_data_output": True},
        )
    )
    assert not chosen.wants_binary("a")
    assert chosen.wants_binary("b")
    assert [output.name for output in chosen.outputs] == ["a", "b"]


# -- binary data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", sorted(set(SIZES) - {"BYTES"}))
def test_binary_is_a_view_of_the_body(datatype: str) -> None:
    raw = bytes(range(6 * SIZES[datatype]))
    body, length = binary(datatype, [2, 3], raw)
    found = parse_request(body, length).inputs[0]
    assert found.binary
    assert bytes(found.raw) == raw
    assert found.raw.obj is body, "no copy"
    assert found.elements == 6


def test_several_binary_tensors_beside_json() -> None:
    first, middle, last = struct.pack("<2f", 1, 2), [7, 8], join_bytes([b"", b"\x00\xff"])
    head = request(
        {**tensor("FP32", parameters={"binary_data_size": len(first)}), "name": "a"},
        {**tensor("INT8", data=middle), "name": "b"},
        {**tensor("BYTES", parameters={"binary_data_size": len(last)}), "name": "c"},
    )
    a, b, c = parse_request(head + first + last, len(head)).inputs
    assert bytes(a.raw) == first
    assert json_values(b) == middle
    assert [bytes(part) for part in split_bytes(c)] == [b"", b"\x00\xff"]


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_truncation_at_every_offset_is_refused(datatype: str) -> None:
    raw = join_bytes([b"abc", b""]) if datatype == "BYTES" else bytes(2 * SIZES[datatype])
    body, length = binary(datatype, [2], raw)
    assert parse_request(body, length).summary()[0].elements == 2
    for end in range(len(body)):
        with pytest.raises(TensorError):
            parse_request(body[:end], header_length(str(length), end))
        if end >= length:
            error = refusal(body[:end], length)
            assert (error.subject, error.expected, error.received) == (
                "input 'x'",
                f"{len(raw)} bytes of binary data",
                f"{end - length} bytes",
            )


def test_binary_counts() -> None:
    body, length = binary("FP32", [2], bytes(12))
    assert refusal(body, length).expected == "binary_data_size 8 for FP32 of shape [2]"
    body, length = binary("FP32", [2], bytes(8))
    assert refusal(body + b"x", length).received == f"{len(body) + 1} bytes"
    both = request(tensor("FP32", [2], [1, 2], parameters={"binary_data_size": 8}))
    assert refusal(both + bytes(8), len(both)).received == "both"
    for size in (-1, 1.5, "8", True):
        head = request(tensor("FP32", [2], parameters={"binary_data_size": size}))
        assert refusal(head + bytes(8), len(head)).subject == "input 'x'"
    assert "header" in refusal(request(tensor("FP32", [2], parameters={"binary_data_size": 8}))).expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x05\x00\x00\x00ab" + bytes(6), "4-byte length of element 1"),
        (b"\xff\xff\xff\xff" + bytes(8), "4294967295 bytes of element 0"),
        (b"\x01\x00\x00\x00a" + b"\x00\x00\x00", "4-byte length of element 1"),
        (join_bytes([b"a", b"b", b"c"]), "2 elements"),
        (bytes(4), "binary_data_size of at least 8"),
        (join_bytes([b"long enough"]), "2 elements"),
    ],
)
def test_bytes_elements(raw: bytes, expected: str) -> None:
    body, length = binary("BYTES", [2], raw)
    error = refusal(body, length)
    assert error.subject == "input 'x'"
    assert expected in error.expected


# -- responses -------------------------------------------------------------------------------------------------------------


def test_response_round_trip() -> None:
    outputs = [
        OutputTensor("a", "FP32", (2, 1), values=[0.5, -1.0]),
        OutputTensor("b", "INT16", (3,), binary=struct.pack("<3h", 1, -2, 3)),
        OutputTensor("c", "BYTES", (1,), binary=memoryview(join_bytes([b"x"]))),
    ]
    pieces, length = encode_response("m", "2", "id-9", outputs, {"p": 1})
    body = b"".join(pieces)
    assert length == len(pieces[0])
    found = parse_response(body, length)
    assert (found.model_name, found.model_version, found.id) == ("m", "2", "id-9")
    assert json_values(found.outputs[0]) == [0.5, -1.0]
    assert struct.unpack("<3h", found.outputs[1].raw) == (1, -2, 3)
    assert [bytes(part) for part in split_bytes(found.outputs[2])] == [b"x"]
    assert found.summary()[1] == TensorSummary("b", "INT16", (3,), 3)


def test_response_in_json_alone_has_no_header_length() -> None:
    pieces, length = encode_response("m", "1", "", [OutputTensor("a", "BOOL", (1,), values=[True])])
    assert length is None
    assert json.loads(pieces[0]) == {
        "model_name": "m", "model_version": "1", "outputs": [{"name": "a", "datatype": "BOOL", "shape": [1], "data": [True]}],
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_response_values_that_json_has_not(value: float) -> None:
    with pytest.raises(TensorError, match="output 'y'") as caught:
        encode_response("m", "1", "", [OutputTensor("y", "FP32", (2,), values=[1.0, value])])
    assert caught.value.received == str(value)


def test_response_of_an_engine_is_checked_too() -> None:
    with pytest.raises(TensorError, match="output 'y'"):
        parse_response(b'{"outputs":[{"name":"y","datatype":"FP32","shape":[-3],"data":[]}]}')
    with pytest.raises(TensorError, match="body"):
        parse_response(b"<html>")


def test_metadata_and_errors() -> None:
    assert json.loads(encode_server_metadata("s", "1"))["extensions"] == ["binary_tensor_data"]
    found = json.loads(encode_model_metadata("m", ["1"], "p", [TensorMetadata("x", "FP32", (-1, 4))], []))
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert json.loads(encode_error("no", code="c", param="p")) == {"error": "no", "code": "c", "param": "p"}


# -- anything at all -------------------------------------------------------------------------------------------------------

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=8
)
tensors = st.fixed_dictionaries(
    {"name": st.text(max_size=3), "datatype": st.sampled_from([*SIZES, "FLOAT"]), "shape": st.lists(st.integers(-2, 5), max_size=3)},
    optional={"data": json_like, "parameters": st.dictionaries(st.just("binary_data_size"), st.integers(-1, 40))},
)


@given(st.binary(max_size=200), st.none() | st.integers(0, 250))
def test_any_bytes_give_a_request_or_the_typed_error(body: bytes, length: int | None) -> None:
    try:
        parse_request(body, header_length(None if length is None else str(length), len(body)))
    except TensorError:
        pass


@given(st.lists(tensors, max_size=3), st.binary(max_size=40), st.integers(-3, 3), st.booleans())
def test_any_frame_gives_values_or_the_typed_error(items: list[dict[str, Any]], tail: bytes, shift: int, with_length: bool) -> None:
    head = json.dumps({"inputs": items}).encode()
    body = head + tail
    try:
        parsed = parse_request(body, header_length(str(len(head) + shift), len(body)) if with_length else None)
        for item in parsed.inputs:
            found = values(item)
            assert len(found) == (item.elements if not item.binary or item.datatype == "BYTES" else len(item.raw))
    except TensorError as error:
        assert error.expected
        assert error.received


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=2)), min_size=1, max_size=4), st.booleans())
def test_a_damaged_request_gives_a_request_or_the_typed_error(damage: list[tuple[int, bytes]], with_length: bool) -> None:
    raw = join_bytes([b"ab", b""])
    head = request(
        {**tensor("FP32", [2, 1], [[1.5], [2]]), "name": "a"},
        {**tensor("BYTES", [2], parameters={"binary_data_size": len(raw)}), "name": "b"},
        outputs=[{"name": "y", "parameters": {"binary_data": True}}],
    )
    body = bytearray(head + raw)
    for place, change in damage:
        body[place % len(body) : place % len(body) + len(change)] = change
    try:
        for item in parse_request(bytes(body), min(len(head), len(body)) if with_length else None).inputs:
            values(item)
    except TensorError as error:
        assert len(error.message) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":5},{"name":"\xff"}]}',
        b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[' + b"9" * 5000 + b"]}]}",
        b'{"inputs":[{"name":"x","datatype":"INT64","shape":[' + b"9" * 4000 + b'],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":' + b"9" * 4000 + b"}}]}",
        b'{"inputs":[{"name":"' + b"n" * 400 + b'","datatype":"' + b"d" * 4000 + b'","shape":[1],"data":[1]}]}',
    ],
)
def test_hostile_sizes_give_short_errors(body: bytes) -> None:
    for length in (None, len(body)):
        assert len(refusal(body, length).message) < 600


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_bytes_elements_round_trip(elements: list[bytes]) -> None:
    body, length = binary("BYTES", [len(elements)], join_bytes(elements))
    assert [bytes(part) for part in split_bytes(parse_request(body, length).inputs[0])] == elements


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3), min_size=1, max_size=4))
def test_nested_floats_round_trip(rows: list[list[float]]) -> None:
    found = parse_request(request(tensor("FP32", [len(rows), 3], rows))).inputs[0]
    assert json_values(found) == [value for row in rows for value in row]
