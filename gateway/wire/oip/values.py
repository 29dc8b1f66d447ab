"""Values of Open Inference Protocol tensors: JSON data and BYTES elements read and checked, responses written.

FP16 and BF16 are accepted in JSON as numbers, which the specification leaves open.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.slices import Steps, at_once
from gateway.wire.oip.codec import Parameters, Tensor, TensorError, shape_text, short, subject

AT_ONCE = 4096
"""Elements of BYTES that are read in one step."""
PORTION = 64 * 1024
"""Bytes of numbers in JSON that are read in one step."""
MAX_NESTING = 8
"""Deepest nested JSON `data`; tensors of a higher rank are sent flat."""


def _decoders(kind: Any) -> tuple[msgspec.json.Decoder[Any], ...]:
    """Decoders of lists nested 1..MAX_NESTING deep."""
    made = []
    for _ in range(MAX_NESTING):
        kind = list[kind]
        made.append(msgspec.json.Decoder(kind))
    return tuple(made)


_BOOLS, _INTS, _FLOATS, _STRINGS = _decoders(bool), _decoders(int), _decoders(float), _decoders(str)

_RANGES: dict[str, tuple[float, float]] = {
    **{f"INT{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    # the largest numbers that still round to a finite value: halfway to the next power of two, exclusive
    "FP16": (-65519.99999999999, 65519.99999999999),
    "BF16": (-3.3961775292304957e38, 3.3961775292304957e38),
    "FP32": (-3.4028235677973362e38, 3.4028235677973362e38),
}
_BEYOND: dict[str, tuple[float, float]] = {
    **_RANGES,
    "FP64": (-(1 << 1024) + (1 << 970) + 1, (1 << 1024) - (1 << 970) - 1),
    "BOOL": (0, 1),
}
_LIMITS = {datatype: f"{low} to {high}" for datatype, (low, high) in _RANGES.items()} | {
    "FP16": "-65504 to 65504",
    "BF16": "-3.3895314e+38 to 3.3895314e+38",
    "FP32": "-3.4028235e+38 to 3.4028235e+38",
    "FP64": "-1.7976931348623157e+308 to 1.7976931348623157e+308",
    "BOOL": "false or true",
}
_ANY = msgspec.json.Decoder(list[Any])
_WITHIN: dict[str, msgspec.json.Decoder[Any]] = {
    datatype: msgspec.json.Decoder(list[Annotated[float, Meta(ge=_RANGES[datatype][0], le=_RANGES[datatype][1])]])
    for datatype in ("FP16", "BF16", "FP32")
} | {"FP64": msgspec.json.Decoder(list[float])}
"""By datatype of floats: what reads only numbers in its range."""
_AROUND = b"[] \t\r\n"
_OPENING = re.compile(rb"[\[\s]*")
_GOT = re.compile(r"got `(\w+)`")
_PLACE = re.compile(r"at `\$([^`]*)`")


def json_values(tensor: Tensor) -> list[Any]:
    """The elements of a tensor received as JSON: a flat list of bool, int, float or str (BYTES), row-major.

    `data` may be flat or nested as the shape says. Raises TensorError for a wrong type, count, nesting or range.
    """
    datatype, who, rank = tensor.datatype, tensor.subject, len(tensor.shape)
    opening = _OPENING.match(tensor.raw)
    depth = opening.group().count(b"[") if opening else 0
    if depth == 0:
        raise TensorError(who, "data as an array", short(bytes(tensor.raw[:40]).decode("utf-8", "replace")))
    if depth > 1 and depth != rank and not (depth < rank and 0 in tensor.shape):
        raise TensorError(who, f"data flat or nested {rank} deep as shape {shape_text(tensor.shape)}", f"nested {depth} deep")
    if depth > MAX_NESTING:
        raise TensorError(who, f"data flat, or nested at most {MAX_NESTING} deep", f"nested {depth} deep")
    values: list[Any] = _decode(tensor, depth)
    if depth > 1:
        values = _flatten(values, depth, tensor)
    if len(values) != tensor.elements:
        raise TensorError(who, f"{tensor.elements} elements for shape {shape_text(tensor.shape)}", f"{len(values)}")
    bounds = _RANGES.get(datatype)
    if bounds and values and not (bounds[0] <= min(values) and max(values) <= bounds[1]):
        wrong = next(value for value in values if not bounds[0] <= value <= bounds[1])
        raise TensorError(who, in_range(datatype), short(str(wrong)))
    return values


def parts_of(tensor: Tensor) -> list[Tensor]:
    """A tensor received as JSON in parts, as `json_values` reads them one after the other: those of a long flat list of numbers. Any other
    is one part."""
    data = bytes(tensor.raw).strip()
    numbers = tensor.datatype != "BYTES" and data.find(b"[", 1) < 0 and data.find(b'"') < 0
    if len(data) < PORTION or not (numbers and data.startswith(b"[") and data.endswith(b"]")) or data.count(b",") + 1 != tensor.elements:
        return [tensor]
    parts: list[Tensor] = []
    start, last = 1, len(data) - 1
    while start < last:
        end = data.find(b",", start + PORTION, last)
        end = last if end < 0 else end
        piece = data[start:end]
        count = piece.count(b",") + 1
        parts.append(Tensor(tensor.name, tensor.datatype, (count,), count, memoryview(b"[%b]" % piece), False, tensor.role, {}))
        start = end + 1
    return parts


def in_range(datatype: str) -> str:
    """What an error says that the values of a datatype must be."""
    return f"values in the range of {datatype} ({_LIMITS[datatype]})"


def check_range(data: bytes, datatype: str, who: str) -> None:
    """Reads a part of a tensor's JSON data, flat or nested, without texts, from the beginning of an element to the end of one. Raises
    TensorError for a number that the datatype cannot hold. It says nothing of what is no number."""
    numbers = data.translate(None, _AROUND)
    if datatype in _WITHIN and _decoded(numbers, _WITHIN[datatype]) is not None:
        return  # also where all numbers have exponents
    found = _numbers(numbers)
    if found is None:  # empty arrays leave commas
        found = _numbers(b",".join([one for one in numbers.split(b",") if one]))
    if found is None:
        raise TensorError(who, in_range(datatype), "one that is too large")
    low, high = _BEYOND[datatype]
    for value in found:
        if isinstance(value, int | float) and not low <= value <= high:
            raise TensorError(who, in_range(datatype), short(str(value)))


def _numbers(numbers: bytes) -> list[Any] | None:
    return _decoded(numbers, _ANY)


def _decoded(numbers: bytes, decoder: msgspec.json.Decoder[Any]) -> list[Any] | None:
    try:
        found: list[Any] = decoder.decode(b"[%b]" % numbers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _decode(tensor: Tensor, depth: int) -> list[Any]:
    datatype = tensor.datatype
    if datatype == "BOOL":
        decoders = _BOOLS
    elif datatype == "BYTES":
        decoders = _STRINGS
    else:
        decoders = _FLOATS if datatype in ("FP16", "BF16", "FP32", "FP64") else _INTS
    try:
        values: list[Any] = decoders[depth - 1].decode(tensor.raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        got, place = _GOT.search(text), _PLACE.search(text)
        received = f"{got.group(1)} at data{place.group(1) if place else ''}" if got else text
        expected = in_range(datatype) if "out of range" in text and datatype in _LIMITS else f"data of {datatype}"
        raise TensorError(tensor.subject, expected, short(received)) from None
    return values


def _flatten(values: list[Any], depth: int, tensor: Tensor) -> list[Any]:
    """Flattens nested lists whose lengths are the dimensions."""
    for axis in range(depth):
        lengths = {len(values)} if axis == 0 else set(map(len, values))
        if lengths and lengths != {tensor.shape[axis]}:
            wrong = next(length for length in lengths if length != tensor.shape[axis])
            expected = f"{tensor.shape[axis]} elements along axis {axis} of shape {shape_text(tensor.shape)}"
            raise TensorError(tensor.subject, expected, str(wrong))
        if axis:
            values = list(itertools.chain.from_iterable(values))
    return values


def split_bytes(tensor: Tensor) -> list[memoryview]:
    """The elements of a BYTES tensor in binary form (each a little-endian 4-byte length and as many bytes). Raises TensorError."""
    return at_once(split_steps(tensor))


def split_steps(tensor: Tensor) -> Steps[list[memoryview]]:
    """The same in steps of a millisecond or two."""
    elements: list[memoryview] = []
    raw, offset = tensor.raw, 0
    end = len(raw)
    while offset < end and len(elements) < tensor.elements:
        if end - offset < 4:
            raise TensorError(tensor.subject, f"a 4-byte length of element {len(elements)}", f"{end - offset} bytes")
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        if length > end - offset:
            raise TensorError(tensor.subject, f"{length} bytes of element {len(elements)}", f"{end - offset} bytes")
        elements.append(raw[offset : offset + length])
        offset += length
        if len(elements) % AT_ONCE == 0:
            yield
    if len(elements) != tensor.elements or offset != end:
        received = f"{len(elements)} elements and {end - offset} bytes more"
        raise TensorError(tensor.subject, f"{tensor.elements} elements for shape {shape_text(tensor.shape)}", received)
    return elements


def join_bytes(elements: Sequence[bytes]) -> bytes:
    """The binary form of BYTES elements."""
    parts = []
    for element in elements:
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


# -- what is sent ----------------------------------------------------------------------------------------------------------


class OutputTensor(Struct, frozen=True):
    """An output to send: one of `binary` (little-endian, row-major bytes), `values` (a flat list for JSON) and `written` (that list as
    JSON)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any] | None = None
    binary: bytes | memoryview | None = None
    written: Raw | None = None


def encode_response(
    model: str, version: str, request_id: str, outputs: Sequence[OutputTensor], parameters: Parameters | None = None
) -> tuple[list[bytes | memoryview], int | None]:
    """The body of an infer response in pieces (to be sent in order) and, when one output is binary, the length of the JSON part.

    Raises TensorError for a value that JSON cannot carry (NaN, infinity).
    """
    items: list[dict[str, Any]] = []
    pieces: list[bytes | memoryview] = []
    for output in outputs:
        item: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if output.binary is not None:
            size = output.binary.nbytes if isinstance(output.binary, memoryview) else len(output.binary)
            item["parameters"] = {"binary_data_size": size}
            pieces.append(output.binary)
        else:
            item["data"] = _finite(output) if output.written is None else output.written
        items.append(item)
    head: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": items}
    if request_id:
        head["id"] = request_id
    if parameters:
        head["parameters"] = parameters
    encoded = msgspec.json.encode(head)
    return [encoded, *pieces], len(encoded) if pieces else None


def _finite(output: OutputTensor) -> list[Any]:
    values = output.values or []
    if values and isinstance(values[0], float) and not all(map(math.isfinite, values)):
        wrong = next(value for value in values if not math.isfinite(value))
        raise not_finite(output.name, wrong)
    return values


def not_finite(output: str, value: float) -> TensorError:
    """The error for an output with a value that JSON cannot carry."""
    return TensorError(subject("output", output), "finite numbers, as JSON has no others (ask for binary_data)", str(value))
