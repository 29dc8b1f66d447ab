"""Open Inference Protocol v2 (REST) with the binary tensor extension: paths, requests, responses, metadata, errors.

Sources: the Open Inference Protocol specification (KServe, "V2") and its binary tensor data extension. Pure: bytes in, typed
views out, no numpy. Tensor data is never copied here: a :class:`Tensor` holds a view into the body (binary) or the raw JSON of
its `data` (decoded on demand in gateway.wire.oip.values).

The codec checks the following; each violation is a :class:`TensorError` (400) that names the tensor, what was expected and what came:
names (present, unique), datatypes (the specification's and BF16), shapes (no negative or absurd dimension), byte counts and
element counts, a JSON header that is longer than the body, bytes left over, NaN and infinity in JSON, data that is elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NoReturn
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import RequestError

HEADER_LENGTH = "inference-header-content-length"
"""Lower-case name of the header that gives the length of the JSON part in front of binary tensor data."""
V2_MODELS = b"/v2/models/"
EXTENSIONS = ("binary_tensor_data",)
SHARED_MEMORY = "shared_memory_"
"""How the parameters of Triton's extensions begin that name memory of the engine's machine instead of sending data."""

SIZES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": 0,
}  # fmt: skip
"""Datatype -> bytes an element takes in binary form; BYTES has none of its own (each element carries a 4-byte length)."""

MAX_TENSORS = 256
MAX_RANK = 32
MAX_NAME = 512
MAX_ELEMENTS = 1 << 40
_NAN_SEARCH_BYTES = 1 << 20
"""Largest JSON part that is searched again for the tensor with the NaN; in larger ones only the byte is named."""

Parameters = dict[str, bool | int | float | str | None]


class TensorError(RequestError):
    """A tensor (or the frame around tensors) is not what the protocol or the model allows.

    subject: `input 'x'`, `output 'y'`, `body`, ... expected, received: short phrases. All three make the message.
    """

    default_code = "invalid_tensor"

    def __init__(self, subject: str, expected: str, received: str, *, status: int | None = None) -> None:
        super().__init__(f"{subject}: expected {expected}, received {received}", param=subject, status=status)
        self.subject, self.expected, self.received = subject, expected, received


# -- paths -----------------------------------------------------------------------------------------------------------------


class ModelPath(Struct, frozen=True):
    """`/v2/models/{model}[/versions/{version}][/ready|/infer]`; `version` is empty when the path does not name one."""

    model: str
    version: str
    action: Literal["metadata", "ready", "infer"]


def parse_path(path: str) -> ModelPath | None:
    """The model a decoded, canonical path addresses, or None. Model names may contain `/`; they are read from both ends."""
    prefix, _, rest = path.partition("/v2/models/")
    if prefix or not rest:
        return None
    parts = rest.split("/")
    action: Literal["metadata", "ready", "infer"] = "metadata"
    if len(parts) > 1 and parts[-1] in ("ready", "infer"):
        action = "ready" if parts.pop() == "ready" else "infer"
    version = ""
    if len(parts) > 2 and parts[-2] == "versions":
        version = parts.pop()
        parts.pop()
        if not version:
            return None
    if not all(parts):
        return None
    return ModelPath("/".join(parts), version, action)


def model_path(model: str, version: str = "", action: str = "") -> bytes:
    """`/v2/models/{model}[/versions/{version}][/action]`, percent-encoded."""
    place = f"/v2/models/{quote(model, safe='')}"
    if version:
        place += f"/versions/{quote(version, safe='')}"
    return (f"{place}/{action}" if action else place).encode()


# -- views of received data ------------------------------------------------------------------------------------------------


class _Tensor(Struct):
    """One element of `inputs` (request) or `outputs` (response) as JSON has it."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = None
    data: Raw = Raw()


class RequestedOutput(Struct, frozen=True):
    """An output the client asks for; `parameters.binary_data` says in which form."""

    name: str
    parameters: Parameters | None = None


class _Request(Struct):
    inputs: list[_Tensor]
    id: str = ""
    parameters: Parameters | None = None
    outputs: list[RequestedOutput] | None = None


class _Response(Struct):
    outputs: list[_Tensor]
    model_name: str = ""
    model_version: str | None = None
    id: str | None = None
    parameters: Parameters | None = None


class _NameOnly(Struct):
    name: Any = None


class _Names(Struct):
    inputs: list[_NameOnly] = []
    outputs: list[_NameOnly] | None = None


class TensorSummary(Struct, frozen=True):
    """The description of a tensor for limits and audit records. `elements` is the product of `shape`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int


class Tensor:
    """A checked view of one tensor. `raw` is its data as received: little-endian row-major bytes when `binary`, else JSON."""

    __slots__ = ("binary", "datatype", "elements", "name", "parameters", "raw", "role", "shape")

    def __init__(
        self, name: str, datatype: str, shape: tuple[int, ...], elements: int, raw: memoryview, binary: bool, role: str,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        self.name, self.datatype, self.shape, self.elements = name, datatype, shape, elements
        self.raw, self.binary, self.role, self.parameters = raw, binary, role, parameters

    @property
    def subject(self) -> str:
        """How errors call it: `input 'x'`."""
        return subject(self.role, self.name)

    def summary(self) -> TensorSummary:
        return TensorSummary(self.name, self.datatype, self.shape, self.elements)


class InferRequest(Struct, frozen=True):
    """A checked infer request. `outputs` is empty when the client wants all of the model's."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...]
    id: str
    parameters: Parameters

    def summary(self) -> tuple[TensorSummary, ...]:
        """Name, datatype, shape and element count of every input, in the request's order."""
        return tuple([tensor.summary() for tensor in self.inputs])

    def wants_binary(self, output: str) -> bool:
        """Whether an output is to be returned as binary data: its own `binary_data`, else the request's `binary_data_output`."""
        for requested in self.outputs:
            if requested.name == output and requested.parameters and "binary_data" in requested.parameters:
                return requested.parameters["binary_data"] is True
        return self.parameters.get("binary_data_output") is True


class InferResponse(Struct, frozen=True):
    """A checked infer response, read for the audit record."""

    outputs: tuple[Tensor, ...]
    model_name: str
    model_version: str
    id: str
    parameters: Parameters = {}

    def summary(self) -> tuple[TensorSummary, ...]:
        """Name, datatype, shape and element count of every output, in the response's order."""
        return tuple([tensor.summary() for tensor in self.outputs])


_REQUEST = msgspec.json.Decoder(_Request)
_RESPONSE = msgspec.json.Decoder(_Response)
_NAMES = msgspec.json.Decoder(_Names)
_NULL = Raw(b"null")
_NOT_FINITE = re.compile(rb"[^-]?(NaN|-?Infinity)")


def header_length(value: bytes | str | None, body_length: int) -> int | None:
    """The value of `Inference-Header-Content-Length` in bytes, or None when it was not sent.

    Raises TensorError when it is not a whole number, is zero, or reaches beyond the body.
    """
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise TensorError(HEADER_LENGTH, "a whole number of bytes", short(text))
    length = int(text)
    if not 0 < length <= body_length:
        raise TensorError(HEADER_LENGTH, f"a length from 1 to the body's {body_length} bytes", str(length))
    return length


def parse_request(body: bytes, json_length: int | None = None) -> InferRequest:
    """A checked view of an infer request.

    body: the whole body. json_length: what :func:`header_length` returned. Raises TensorError. JSON data stays undecoded, the
    elements of BYTES in binary form unwalked: gateway.wire.oip.values does that where the values are needed.
    """
    head: bytes | memoryview = body if json_length is None else memoryview(body)[:json_length]
    try:
        request = _REQUEST.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _malformed(error, head, "input")
    if not request.inputs:
        raise TensorError("inputs", "at least one input", "none")
    outputs = tuple(request.outputs or ())
    _check_names([output.name for output in outputs], "output")
    for output in outputs:
        if output.parameters:
            _check_place(output.parameters, subject("output", output.name))
    inputs = _tensors(request.inputs, body, json_length, "input")
    return InferRequest(inputs, outputs, request.id, request.parameters or {})


def parse_response(body: bytes, json_length: int | None = None) -> InferResponse:
    """A checked view of an infer response; the same rules as for requests."""
    head: bytes | memoryview = body if json_length is None else memoryview(body)[:json_length]
    try:
        response = _RESPONSE.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _malformed(error, head, "output")
    outputs = _tensors(response.outputs, body, json_length, "output")
    return InferResponse(outputs, response.model_name, response.model_version or "", response.id or "", response.parameters or {})


def _tensors(items: list[_Tensor], body: bytes, json_length: int | None, role: str) -> tuple[Tensor, ...]:
    _check_names([item.name for item in items], role)
    view = memoryview(body)
    offset = len(body) if json_length is None else json_length
    tensors = []
    for item in items:
        elements = count_elements(item.shape, subject(role, item.name))
        if item.datatype not in SIZES:
            raise TensorError(subject(role, item.name), f"a datatype of {', '.join(SIZES)}", short(item.datatype))
        parameters = item.parameters or {}
        if parameters:
            _check_place(parameters, subject(role, item.name))
        size = parameters.get("binary_data_size")
        if size is None:
            if not item.data or item.data == _NULL:
                raise TensorError(subject(role, item.name), "data, or parameters.binary_data_size", "neither")
            raw = memoryview(item.data)
        else:
            raw = _binary(item, size, elements, view[offset:], json_length, role)
            offset += len(raw)
        tensors.append(Tensor(item.name, item.datatype, tuple(item.shape), elements, raw, size is not None, role, parameters))
    if offset != len(body):
        raise TensorError("body", f"{offset} bytes as the tensors' sizes add up to", f"{len(body)} bytes")
    return tuple(tensors)


def _check_place(parameters: Parameters, who: str) -> None:
    """Refuses data in memory that an engine shares with others (an extension of Triton): nothing between the two would see it, and the
    memory may be anybody's. An engine that has the extension prefers that memory to the data that is sent."""
    for name in parameters:
        if name.startswith(SHARED_MEMORY):
            raise TensorError(who, "its data in the message", short(name))


def _binary(item: _Tensor, size: object, elements: int, rest: memoryview, json_length: int | None, role: str) -> memoryview:
    """The tensor's bytes at the start of `rest`."""
    who = subject(role, item.name)
    if item.data and item.data != _NULL:
        raise TensorError(who, "either data or parameters.binary_data_size", "both")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise TensorError(who, "binary_data_size as a whole number of bytes", short(str(size)))
    if json_length is None:
        raise TensorError(who, f"the header {HEADER_LENGTH} with binary data", "no such header")
    width = SIZES[item.datatype]
    wanted = elements * width
    if width and size != wanted:
        raise TensorError(who, f"binary_data_size {wanted} for {item.datatype} of shape {shape_text(item.shape)}", short(str(size)))
    if not width and (size < 4 * elements or (not elements and size)):
        raise TensorError(who, f"binary_data_size of at least {4 * elements} for {elements} BYTES elements", short(str(size)))
    if size > len(rest):
        raise TensorError(who, f"{size} bytes of binary data", f"{len(rest)} bytes")
    return rest[:size]


def count_elements(shape: Sequence[int], who: str) -> int:
    """The product of the dimensions. Raises TensorError for a negative dimension, too many of them, or an absurd product."""
    if len(shape) > MAX_RANK:
        raise TensorError(who, f"a shape of at most {MAX_RANK} dimensions", f"{len(shape)}")
    count = 1
    for dimension in shape:
        if dimension < 0:
            raise TensorError(who, "dimensions of zero or more", f"shape {shape_text(shape)}")
        if dimension > MAX_ELEMENTS:
            raise TensorError(who, f"at most {MAX_ELEMENTS} elements", f"shape {shape_text(shape)}")
        count *= dimension
        if count > MAX_ELEMENTS:
            raise TensorError(who, f"at most {MAX_ELEMENTS} elements", f"shape {shape_text(shape)}")
    return count


def _check_names(names: list[str], role: str) -> None:
    if len(names) > MAX_TENSORS:
        raise TensorError(f"{role}s", f"at most {MAX_TENSORS} tensors", str(len(names)))
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise TensorError(subject(role, double), "each name once", f"{names.count(double)} times")
    for name in names:
        if not 0 < len(name) <= MAX_NAME:
            raise TensorError(f"{role}s", f"names of 1 to {MAX_NAME} characters", f"one of {len(name)}")


# -- metadata and errors ---------------------------------------------------------------------------------------------------


class TensorMetadata(Struct, frozen=True):
    """An input or output of a model: `shape` has -1 where the dimension is dynamic."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def encode_server_metadata(name: str, version: str) -> bytes:
    """The body of `GET /v2`."""
    return msgspec.json.encode({"name": name, "version": version, "extensions": EXTENSIONS})


def encode_model_metadata(
    name: str, versions: Sequence[str], platform: str, inputs: Sequence[TensorMetadata], outputs: Sequence[TensorMetadata]
) -> bytes:
    """The body of `GET /v2/models/{model}`."""
    return msgspec.json.encode({"name": name, "versions": versions, "platform": platform, "inputs": inputs, "outputs": outputs})


def encode_error(message: str, *, code: str = "invalid_value", param: str | None = None) -> bytes:
    """The protocol's error body: `error` is a string there (clients print it); `code` and `param` are beside it."""
    return msgspec.json.encode({"error": message, "code": code, "param": param})


# -- wording ---------------------------------------------------------------------------------------------------------------


def subject(role: str, name: str) -> str:
    """How errors call a tensor: `input 'x'`."""
    return f"{role} '{short(name, 64)}'"


def short(text: str, limit: int = 80) -> str:
    """`text`, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def shape_text(shape: Sequence[int]) -> str:
    """A shape for an error message."""
    return short(str(list(shape[:8])) if len(shape) <= 8 else f"{list(shape[:8])} and {len(shape) - 8} more", 160)


def _malformed(error: Exception, head: bytes | memoryview, role: str) -> NoReturn:
    """Turns a decoder's error into one that names the tensor if it can be known."""
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        received, who = _misshapen(text, head, role)
        raise TensorError(who, "the protocol's JSON", received) from None
    if isinstance(error, RecursionError):
        raise TensorError("body", "JSON of a reasonable depth", "too many levels") from None
    place = re.search(r"\(byte (\d+)\)", text)
    at = int(place.group(1)) if place else 0
    word = _NOT_FINITE.match(bytes(head[max(0, at - 1) : at + 10])) if place else None
    if word:
        who = _nan_holder(head, role) if len(head) <= _NAN_SEARCH_BYTES else f"body at byte {at}"
        raise TensorError(who, "numbers that JSON allows", word.group(1).decode()) from None
    raise TensorError("body", "JSON", short(text)) from None


def _misshapen(text: str, head: bytes | memoryview, role: str) -> tuple[str, str]:
    """(what is wrong, who) of a decoder's ValidationError such as "Expected `str`, got `int` - at `$.inputs[0].name`"."""
    place = re.search(r"`\$\.(?:inputs|outputs)\[(\d+)\]", text)
    if place:
        try:
            names = _NAMES.decode(head)
            found = (names.outputs or [])[int(place.group(1))] if ".outputs[" in text else names.inputs[int(place.group(1))]
            if isinstance(found.name, str):
                return text, subject("output" if ".outputs[" in text else role, found.name)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            pass  # the names cannot be read either
    return text, "body"


def _nan_holder(head: bytes | memoryview, role: str) -> str:
    """The tensor whose data has a NaN or an infinity; `body` when it is elsewhere. Python's parser accepts both words."""
    bad = object()
    try:
        parsed = json.loads(bytes(head), parse_constant=lambda _: bad)
    except (ValueError, RecursionError):
        return "body"
    items = parsed.get(f"{role}s") if isinstance(parsed, dict) else None
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        stack: list[Any] = [item.get("data")]
        while stack:
            value = stack.pop()
            if value is bad:
                return subject(role, str(item.get("name")))
            if isinstance(value, list):
                stack.extend(value)
    return "body"
