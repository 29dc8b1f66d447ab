"""gRPC's messages to the REST form and back, against the official client's own classes; and bytes that are no messages."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError, GatehouseError, RequestError
from gateway.core.slices import at_once
from gateway.wire.oip import codec, values
from gateway.wire.oip.api import APIS
from gateway.wire.oip.messages import Asked, infer_request, infer_response, metadata_response, named
from gateway.wire.oip.protobuf import encoded, field, fields, signed, varint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tritonclient.grpc import service_pb2 as pb

MOST = 1 << 20
TYPES = {
    "BOOL": ("bool_contents", np.bool_), "INT8": ("int_contents", np.int8), "INT16": ("int_contents", np.int16),
    "INT32": ("int_contents", np.int32), "INT64": ("int64_contents", np.int64), "UINT8": ("uint_contents", np.uint8),
    "UINT16": ("uint_contents", np.uint16), "UINT32": ("uint_contents", np.uint32), "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32), "FP64": ("fp64_contents", np.float64),
}  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PARAMETERS = st.dictionaries(
    NAMES.filter(lambda name: not name.startswith("binary_") and name != "classification"),
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    max_size=3,
)


def put(into: Any, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(into[name], kind, value)


def read(message: bytes, most: int = MOST) -> Asked:
    return at_once(infer_request(message, most))


@given(NAMES, st.text(max_size=6), PARAMETERS, PARAMETERS, st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_a_request_becomes_the_rest_request_that_it_stands_for(
    model: str, version: str, parameters: dict[str, Any], own: dict[str, Any], datas: list[bytes]
) -> None:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id="r")
    put(message.parameters, parameters)
    for number, data in enumerate(datas):
        tensor = message.inputs.add(name=f"t{number}", datatype="UINT8", shape=[len(data)])
        put(tensor.parameters, own)
        message.raw_input_contents.append(data)
    message.outputs.add(name="y")
    asked = read(message.SerializeToString())
    assert asked.path == codec.model_path(model, version, "infer") and asked.id == "r"
    found = codec.parse_request(asked.body, asked.length)
    assert [bytes(tensor.raw) for tensor in found.inputs] == datas
    assert found.parameters == parameters and found.wants_binary("y")
    assert found.inputs[0].parameters == {**own, "binary_data_size": len(datas[0])}
    headers = {codec.HEADER_LENGTH.encode(): b"%d" % asked.length}
    APIS[0].parse(b"/v2/models/m/infer", asked.body, headers, 64, 65536)  # what the pipeline reads


@pytest.mark.parametrize("datatype", sorted(TYPES))
@given(data=st.data())
def test_numbers_become_the_bytes_that_they_stand_for(datatype: str, data: st.DataObject) -> None:
    name, kind = TYPES[datatype]
    if datatype == "BOOL":
        numbers: Any = st.booleans()
    elif datatype.startswith("FP"):
        numbers = st.floats(width=int(datatype[2:]), allow_nan=False)  # type: ignore[arg-type]
    else:
        numbers = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    given_ = data.draw(st.lists(numbers, max_size=50))
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[len(given_)])
    getattr(tensor.contents, name).extend(given_)
    asked = read(message.SerializeToString())
    assert asked.body[asked.length :] == np.array(given_, kind).tobytes()


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_bytes_get_their_lengths(elements: list[bytes]) -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="BYTES", shape=[len(elements)]).contents.bytes_contents.extend(elements)
    asked = read(message.SerializeToString())
    assert asked.body[asked.length :] == values.join_bytes(elements)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        asked = read(data)
        assert json.loads(asked.body[: asked.length])
    except GatehouseError as error:
        assert error.status in (400, 413)


@given(st.data())
def test_nor_do_damaged_messages(data: st.DataObject) -> None:
    message = pb.ModelInferRequest(model_name="m", id="i")
    message.inputs.add(name="x", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, -1])
    damaged = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(damaged))
    except GatehouseError as error:
        assert error.status in (400, 413)


def contents(datatype: str, **fields_of: Any) -> bytes:
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[1])
    for name, value in fields_of.items():
        getattr(tensor.contents, name).extend(value)
    made: bytes = message.SerializeToString()
    return made


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (contents("INT8", int_contents=[200]), "range of INT8"),
        (contents("UINT8", uint_contents=[256]), "range of UINT8"),
        (contents("INT32", int64_contents=[1]), "contents of INT32"),
        (contents("FP16", fp32_contents=[1]), "raw_input_contents"),
        (contents("FP99", fp32_contents=[1]), "a datatype of"),
        (contents("INT64", int64_contents=[1]) + field(7, b"x" * 8), "no contents beside"),
        (field(7, b"x"), "one for each of the 0 inputs"),
        (field(1, b"\xff"), "not UTF-8"),
        (b"\x0a\xff", "ends within a number"),
        (b"\x0a\x05ab", "2 are left"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x00", "number 0"),
        (field(99, b""), "no field 99"),
        (field(4, field(1, "a")), "has no value"),
        (field(4, field(1, "binary_data_output") + field(2, b"\x08\x01")), "REST form"),
        (field(5, field(3, b"\x01" * 33)), "more than 32"),
        (b"".join(field(5, field(1, f"t{n}")) for n in range(257)), "at most 256"),
        (b"\x08" + b"\xff" * 11, "64 bits"),
    ],
)
def test_what_is_no_request(message: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(message)


def test_one_byte_may_stand_for_eight_but_not_for_more_than_a_request() -> None:
    message = contents("INT64", int64_contents=[0] * 100_000)
    assert len(message) < 101_000
    with pytest.raises(RequestError) as error:
        read(message, 200_000)
    assert error.value.status == 413


def test_an_answer_in_json_or_binary_becomes_a_response() -> None:
    head = json.dumps(
        {
            "model_name": "m",
            "model_version": "2",
            "parameters": None,
            "outputs": [
                {
                    "name": "b",
                    "datatype": "FP32",
                    "shape": [2],
                    "parameters": {"binary_data_size": 8, "note": "n", "n": 3, "f": 0.5, "t": True},
                },
                {"name": "j", "datatype": "INT16", "shape": [1, 2], "data": [[1, -2]]},
                {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["é"]},
                {"name": "h", "datatype": "FP16", "shape": [1], "data": [0.5]},
            ],
        }
    ).encode()
    raw = np.array([1, 2], np.float32).tobytes()
    found = pb.ModelInferResponse.FromString(at_once(infer_response(b"%d" % len(head), head + raw, "asked")))
    assert (found.model_name, found.model_version, found.id) == ("m", "2", "asked")
    assert [list(output.shape) for output in found.outputs] == [[2], [1, 2], [1], [1]]
    assert {name: value.WhichOneof("parameter_choice") for name, value in found.outputs[0].parameters.items()} == {
        "note": "string_param", "n": "int64_param", "f": "double_param", "t": "bool_param",
    }  # fmt: skip
    assert list(found.raw_output_contents) == [
        raw, np.array([1, -2], np.int16).tobytes(), b"\x02\x00\x00\x00" + "é".encode(), np.array([0.5], np.float16).tobytes(),
    ]  # fmt: skip


@pytest.mark.parametrize("body", [b"no", b"[]", b'{"name":"\xff"}', b'{"a":' + b"[" * 100_000])
def test_what_is_no_metadata(body: bytes) -> None:
    with pytest.raises(EngineError):
        metadata_response(body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"outputs":[{"name":"x","datatype":"BF16","shape":[1],"data":[1]}]}'])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(EngineError):
        at_once(infer_response(None, body, ""))


@pytest.mark.parametrize(("datatype", "kind"), [("FP32", np.float32), ("FP64", np.float64), ("INT64", np.int64), ("FP16", np.float16)])
@pytest.mark.parametrize("nested", [False, True])
def test_a_long_answer_in_json_is_written_in_steps(datatype: str, kind: Any, nested: bool) -> None:
    expected = (np.arange(60_000) % 1000).astype(kind).reshape(-1, 2)
    data = expected.tolist() if nested else expected.ravel().tolist()
    shape = list(expected.shape) if nested else [expected.size]
    body = json.dumps({"model_name": "m", "outputs": [{"name": "y", "datatype": datatype, "shape": shape, "data": data}]}).encode()
    steps = sum(1 for _ in infer_response(None, body, ""))
    assert steps == 2 if nested else steps > len(body) // values.PORTION - 1
    found = pb.ModelInferResponse.FromString(at_once(infer_response(None, body, "")))
    assert list(found.raw_output_contents) == [expected.tobytes()]


@pytest.mark.parametrize("wrong", ["1e99", "true", "null", '"x"', "", "[1]", "1,1"])
def test_what_is_wrong_in_a_long_answer_is_told(wrong: str) -> None:
    data = f"[{'1.5,' * 40_000}{wrong}]"
    body = f'{{"outputs":[{{"name":"y","datatype":"FP32","shape":[40001],"data":{data}}}]}}'.encode()
    with pytest.raises(EngineError, match="Open Inference Protocol"):
        at_once(infer_response(None, body, ""))


def test_metadata() -> None:
    body = {
        "name": "m",
        "versions": ["1"],
        "platform": "onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [],
    }
    found = pb.ModelMetadataResponse.FromString(metadata_response(json.dumps(body).encode()))
    assert (found.name, list(found.versions), found.platform) == ("m", ["1"], "onnx")
    assert list(found.inputs[0].shape) == [-1, 3]
    assert named(pb.ModelReadyRequest(name="é", version="2").SerializeToString()) == ("é", "2")
    with pytest.raises(RequestError):
        named(field(3, "x"))
    with pytest.raises(EngineError):
        metadata_response(b"[]")


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive(number: int) -> None:
    data = memoryview(encoded(number))
    assert (signed(varint(data, 0)[0]), varint(data, 0)[1]) == (number, len(data))
    assert list(fields(memoryview(b"\x08" + encoded(number)))) == [(1, 0, number % 2**64)]
