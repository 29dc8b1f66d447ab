"""The messages of `inference.GRPCInferenceService` (KServe's grpc_predict_v2.proto) to and from the REST form with binary tensors.

A request becomes the REST request that it stands for, with the views of its tensors behind a JSON head, so that one format is parsed,
judged and recorded; the answer's tensors stand in `raw_output_contents`. Tensors given as numbers (`contents`) become binary: floats are
their own bytes, integers are decoded a slice at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from struct import pack
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError, RequestError
from gateway.core.slices import Steps
from gateway.wire.oip import protobuf, values
from gateway.wire.oip.codec import (
    MAX_RANK,
    MAX_TENSORS,
    SIZES,
    Tensor,
    TensorError,
    header_length,
    model_path,
    parse_response,
    short,
    subject,
)
from gateway.wire.oip.protobuf import LENGTH, VARINT, encoded, field, fields, int64s, integer, malformed, packed, part, signed, text
from gateway.wire.oip.tensors import no_protocol

RESERVED: Final = frozenset({"binary_data", "binary_data_size", "binary_data_output", "classification"})
"""Parameters by which the REST form says how tensors are encoded."""
MAX_PARAMETERS: Final = 256
SLICE: Final = 16 * 1024
"""Bytes of numbers that are decoded in one step."""
_TYPED: Final = {
    1: ("BOOL",), 2: ("INT8", "INT16", "INT32"), 3: ("INT64",), 4: ("UINT8", "UINT16", "UINT32"), 5: ("UINT64",), 6: ("FP32",),
    7: ("FP64",), 8: ("BYTES",),
}  # fmt: skip
"""Which datatypes each field of InferTensorContents carries."""
_CODES: Final = {
    "BOOL": "B", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip
Parameter = bool | int | float | str


class Asked:
    """A ModelInferRequest as the REST request that it stands for. length: of the JSON part of the body. id: the client's."""

    __slots__ = ("body", "id", "in_sequence", "length", "path")

    def __init__(self, path: bytes, body: bytes, length: int, id: str, in_sequence: bool) -> None:
        self.path, self.body, self.length, self.id, self.in_sequence = path, body, length, id, in_sequence


class _Input:
    __slots__ = ("contents", "datatype", "name", "parameters", "shape")

    def __init__(self) -> None:
        self.name = self.datatype = ""
        self.shape: list[int] = []
        self.parameters: dict[str, Parameter] = {}
        self.contents: memoryview | None = None


def infer_request(message: bytes, most: int) -> Generator[None, None, Asked]:
    """Reads a ModelInferRequest; pauses after every few milliseconds. most: bytes of the REST request. Raises RequestError."""
    model = version = id = ""
    parameters: dict[str, Parameter] = {}
    inputs: list[_Input] = []
    outputs: list[dict[str, Any]] = []
    raws: list[memoryview] = []
    for number, kind, value in fields(memoryview(message)):
        if number == 1:
            model = text(kind, value, "model_name")
        elif number == 2:
            version = text(kind, value, "model_version")
        elif number == 3:
            id = text(kind, value, "id")
        elif number == 4:
            _parameter(part(kind, value, "parameters"), parameters)
        elif number == 5:
            inputs.append(_input(part(kind, value, "inputs")))
        elif number == 6:
            outputs.append(_output(part(kind, value, "outputs")))
        elif number == 7:
            raws.append(part(kind, value, "raw_input_contents"))
        else:
            raise malformed(f"ModelInferRequest has no field {number}")
        if len(inputs) > MAX_TENSORS or len(outputs) > MAX_TENSORS or len(raws) > MAX_TENSORS:
            raise TensorError("inputs", f"at most {MAX_TENSORS} tensors", "more")
    yield
    datas = yield from _datas(inputs, raws, most)
    head: dict[str, Any] = {"inputs": [_written(tensor, len(data)) for tensor, data in zip(inputs, datas, strict=True)]}
    if id:
        head["id"] = id
    head["parameters"] = parameters
    if outputs:
        head["outputs"] = outputs
    else:
        head["parameters"] = {**parameters, "binary_data_output": True}
    try:
        first = msgspec.json.encode(head)
    except (ValueError, OverflowError) as error:
        raise malformed(str(error)) from None
    size = len(first) + sum(map(len, datas))
    if size > most:
        raise RequestError(f"The request is larger than {most} bytes.", code="request_too_large", status=413)
    return Asked(model_path(model, version, "infer"), b"".join([first, *datas]), len(first), id, "sequence_id" in parameters)


def _written(tensor: _Input, size: int) -> dict[str, Any]:
    parameters = {**tensor.parameters, "binary_data_size": size}
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": parameters}


def _datas(inputs: Sequence[_Input], raws: list[memoryview], most: int) -> Generator[None, None, list[bytes | memoryview]]:
    """The binary form of each input."""
    if raws:
        if len(raws) != len(inputs):
            raise TensorError("raw_input_contents", f"one for each of the {len(inputs)} inputs", str(len(raws)))
        for tensor in inputs:
            if tensor.contents is not None:
                raise TensorError(subject("input", tensor.name), "no contents beside raw_input_contents", "both")
        return list(raws)
    found: list[bytes | memoryview] = []
    for tensor in inputs:
        data = yield from _typed(tensor, most)
        most -= len(data)
        found.append(data)
    return found


def _parameter(entry: memoryview, into: dict[str, Parameter]) -> None:
    """One entry of a map of parameters. Of a name that comes twice the last one counts, as in every implementation."""
    name, found = "", None
    for number, kind, value in fields(entry):
        if number == 1:
            name = text(kind, value, "a parameter's name")
        elif number == 2:
            for inner, kind_of, given in fields(part(kind, value, "a parameter")):
                found = _chosen(inner, kind_of, given)
    if name in RESERVED:
        raise RequestError(f"The parameter {name!r} belongs to the REST form; here tensors are binary.", param="parameters")
    if found is None:
        raise malformed(f"the parameter {short(name, 64)!r} has no value")
    into[name] = found
    if len(into) > MAX_PARAMETERS:
        raise malformed(f"more than {MAX_PARAMETERS} parameters")


def _chosen(number: int, kind: int, value: protobuf.Value) -> Parameter:
    if number in (1, 2, 5) and kind == VARINT and isinstance(value, int):
        return bool(value) if number == 1 else signed(value) if number == 2 else value
    if number == 3:
        return text(kind, value, "a parameter")
    if number == 4:
        return protobuf.double(value)
    raise malformed(f"a parameter has no field {number}")


def _input(data: memoryview) -> _Input:
    tensor = _Input()
    for number, kind, value in fields(data):
        if number == 1:
            tensor.name = text(kind, value, "an input's name")
        elif number == 2:
            tensor.datatype = text(kind, value, "an input's datatype")
        elif number == 3:
            tensor.shape += int64s(kind, value, MAX_RANK, "a shape")
            if len(tensor.shape) > MAX_RANK:
                raise malformed(f"a shape has more than {MAX_RANK} numbers")
        elif number == 4:
            _parameter(part(kind, value, "parameters"), tensor.parameters)
        elif number == 5:
            if tensor.contents is not None:
                raise malformed("an input has contents twice")
            tensor.contents = part(kind, value, "contents")
        else:
            raise malformed(f"an input has no field {number}")
    return tensor


def _output(data: memoryview) -> dict[str, Any]:
    name = ""
    parameters: dict[str, Parameter] = {}
    for number, kind, value in fields(data):
        if number == 1:
            name = text(kind, value, "an output's name")
        elif number == 2:
            _parameter(part(kind, value, "parameters"), parameters)
        else:
            raise malformed(f"an output has no field {number}")
    return {"name": name, "parameters": {**parameters, "binary_data": True}}


# --- contents


def _typed(tensor: _Input, most: int) -> Generator[None, None, bytes | memoryview]:
    """The binary form of an input that came as numbers. Raises TensorError."""
    who, datatype = subject("input", tensor.name), tensor.datatype
    if datatype not in SIZES:
        raise TensorError(who, f"a datatype of {', '.join(SIZES)}", short(datatype))
    pieces: list[bytes | memoryview] = []
    for number, kind, value in fields(tensor.contents if tensor.contents is not None else memoryview(b"")):
        if datatype not in _TYPED.get(number, ()):
            raise TensorError(
                who, f"contents of {datatype}" if datatype not in ("FP16", "BF16") else "raw_input_contents", f"field {number}"
            )
        if datatype == "BYTES":
            element = part(kind, value, "bytes_contents")
            pieces += (pack("<I", len(element)), element)
        elif number in (6, 7):
            if not isinstance(value, memoryview) or len(value) % SIZES[datatype]:
                raise TensorError(who, f"whole numbers of {SIZES[datatype]} bytes", "something else")
            pieces.append(value)
        else:
            run = value if isinstance(value, memoryview) else memoryview(encoded(value))
            yield from _integers(run, datatype, who, pieces, most)
        if len(pieces) > protobuf.MAX_FIELDS:
            raise TensorError(who, "its elements packed", "each in a field of its own")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _integers(run: memoryview, datatype: str, who: str, pieces: list[bytes | memoryview], most: int) -> Generator[None, None, None]:
    """Packed varints as little-endian numbers. One byte can stand for a number of eight."""
    if datatype == "BOOL" and not bytes(run).strip(b"\x00\x01"):
        pieces.append(run)  # one byte each, as it is to be
        return
    is_signed, code, place = datatype.startswith("INT"), _CODES[datatype], 0
    while place < len(run):
        found = array(code)
        stop = min(len(run), place + SLICE)
        try:
            while place < stop:
                byte = run[place]
                if byte < 128:
                    number, place = byte, place + 1
                else:
                    number, place = protobuf.varint(run, place)
                    if is_signed:
                        number = signed(number)
                found.append(number if code != "B" or datatype != "BOOL" else bool(number))
        except OverflowError:
            raise TensorError(who, values.in_range(datatype), str(number)) from None
        pieces.append(found.tobytes())
        if (most := most - len(pieces[-1])) < 0:
            raise RequestError(f"{who}: its numbers take more bytes than a request may have.", code="request_too_large", status=413)
        yield


# --- answers


def infer_response(length: bytes | None, body: bytes, id: str) -> Steps[bytes]:
    """A ModelInferResponse for an answer in REST form, in steps. length: the header that says how long its JSON part is. Raises EngineError
    if it is none."""
    try:
        answer = parse_response(body, header_length(length, len(body)))
    except RequestError as error:
        raise no_protocol(error) from None
    head: list[bytes | memoryview] = [field(1, answer.model_name), field(2, answer.model_version)]
    if answer.id or id:
        head.append(field(3, answer.id or id))
    raws: list[bytes | memoryview] = []
    yield
    for tensor in answer.outputs:
        inner = [field(1, tensor.name), field(2, tensor.datatype), packed(3, tensor.shape)]
        inner += [field(4, _entry(name, value)) for name, value in tensor.parameters.items() if name not in RESERVED and value is not None]
        head.append(field(5, b"".join(inner)))
        data = tensor.raw if tensor.binary else (yield from _binary(tensor))
        raws += (protobuf.tag(6, LENGTH) + encoded(len(data)), data)
    return b"".join([*head, *raws])


def _binary(tensor: Tensor) -> Steps[bytes]:
    """The binary form of an output that an engine gave in JSON."""
    pieces: list[bytes] = []
    for some in values.parts_of(tensor):
        pieces.append(_part(some))
        yield
    return b"".join(pieces)


def _part(tensor: Tensor) -> bytes:
    try:
        found = values.json_values(tensor)
        if tensor.datatype == "BYTES":
            return values.join_bytes([element.encode() for element in found])
        if tensor.datatype == "FP16":
            return pack(f"<{len(found)}e", *found)
        if tensor.datatype == "BF16":
            raise TensorError(tensor.subject, "BF16 in binary form", "JSON")
        return array(_CODES[tensor.datatype], found).tobytes()
    except RequestError as wrong:
        raise no_protocol(wrong) from None
    except (OverflowError, UnicodeEncodeError):
        raise EngineError(f"The engine's answer does not follow the Open Inference Protocol: {tensor.datatype} is wrong.") from None


def _entry(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        inner = integer(1, value)
    elif isinstance(value, int):
        inner = integer(2, value)
    elif isinstance(value, float):
        inner = protobuf.tag(4, protobuf.FIXED64) + pack("<d", value)
    else:
        inner = field(3, str(value))
    return field(1, name) + field(2, inner)


class _Described(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    name: str = ""
    versions: list[str] | None = None
    platform: str = ""
    inputs: list[_Described] = []
    outputs: list[_Described] = []


def metadata_response(body: bytes) -> bytes:
    """A ModelMetadataResponse for the body of `GET /v2/models/...`. Raises EngineError."""
    try:
        found = msgspec.json.decode(body, type=_Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's metadata does not follow the Open Inference Protocol.") from None
    written = [field(1, found.name), *(field(2, one) for one in found.versions or ()), field(3, found.platform)]
    for number, tensors in ((4, found.inputs), (5, found.outputs)):
        written += [field(number, field(1, t.name) + field(2, t.datatype) + packed(3, t.shape)) for t in tensors]
    return b"".join(written)


def named(message: bytes) -> tuple[str, str]:
    """(name, version) of a ModelReadyRequest or ModelMetadataRequest. Raises RequestError."""
    found = {1: "", 2: ""}
    for number, kind, value in fields(memoryview(message)):
        if number not in found:
            raise malformed(f"there is no field {number}")
        found[number] = text(kind, value, "a name")
    return found[1], found[2]
