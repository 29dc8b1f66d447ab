"""Open Inference Protocol v2 against one graph: tensors in, tensors out, checked against what the graph declares.

Every task's model answers here too, at the level of its graph's inputs and outputs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

from engines.onnx.offload import BYTES_PER_COST, NUMBERS_PER_COST, Offload
from engines.onnx.session import NUMPY, RUNTIME_ERRORS, Array, Port, Session, out_of_memory
from engines.sidecar.batcher import Batcher, Key, Unit
from engines.sidecar.http import ApiError, Request, Response
from gateway.wire.oip import codec
from gateway.wire.oip.codec import InferRequest, Tensor, TensorError
from gateway.wire.oip.values import OutputTensor, encode_response, join_bytes, json_values, not_finite, split_bytes

BINARY = b"application/octet-stream"
BFLOAT16_SHIFT = 16
PROBE_ROWS = 3
PORTION = 1 << 16
"""Values that are written, or measured, in one go."""
COPIED_PER_COST = 16 * BYTES_PER_COST
"""Bytes of binary output (copied, not written as text) of cost 1."""
LITTLE_ENDIAN = sys.byteorder == "little"


class Feeds(NamedTuple):
    """One infer request as the graph reads it: arrays by input name, the outputs to compute."""

    arrays: Mapping[str, Array]
    outputs: tuple[str, ...]


# -- values ----------------------------------------------------------------------------------------------------------------


def to_array(tensor: Tensor) -> Array:
    """The tensor's values in the numpy type of its datatype; a view of the body where that is possible. Raises TensorError."""
    if tensor.datatype == "BYTES":
        return _strings(tensor)
    kind = np.dtype(NUMPY[tensor.datatype])
    if tensor.binary:
        array = np.frombuffer(tensor.raw, kind.newbyteorder("<"))
        if tensor.datatype == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
            raise TensorError(tensor.subject, "bytes 0 and 1 for BOOL", str(int(array.view(np.uint8).max())))
        if not LITTLE_ENDIAN:
            array = array.astype(kind)
    else:
        values = json_values(tensor)
        array = to_bfloat16(np.asarray(values, np.float32)) if tensor.datatype == "BF16" else np.asarray(values, kind)
    return array.reshape(tensor.shape)


def _strings(tensor: Tensor) -> Array:
    """BYTES as the str objects that ONNX's string tensors are; they are UTF-8 by definition."""
    array = np.empty(tensor.elements, np.object_)
    if not tensor.binary:
        array[:] = json_values(tensor)
        return array.reshape(tensor.shape)
    for index, element in enumerate(split_bytes(tensor)):
        try:
            array[index] = str(element, "utf-8")
        except UnicodeDecodeError:
            raise TensorError(tensor.subject, "UTF-8 in every BYTES element", f"other bytes in element {index}") from None
    return array.reshape(tensor.shape)


def to_bfloat16(values: Array) -> Array:
    """The bits of float32 values rounded to bfloat16 (nearest, ties to even), as uint16."""
    bits = values.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> BFLOAT16_SHIFT) & 1)
    return (rounded >> BFLOAT16_SHIFT).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    """float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << BFLOAT16_SHIFT).view(np.float32)


def to_output(port: Port, array: Array, binary: bool, most: int) -> OutputTensor:
    """An output as it is sent. most: bytes of numbers written as JSON. Raises ApiError where there are more, and TensorError for one that
    JSON cannot carry."""
    shape = array.shape
    if port.datatype == "BYTES":
        texts = [str(text) for text in array.ravel()]
        if binary:
            return OutputTensor(port.name, port.datatype, shape, binary=join_bytes([text.encode() for text in texts]))
        return OutputTensor(port.name, port.datatype, shape, values=texts)
    if binary:
        packed = np.ascontiguousarray(array if LITTLE_ENDIAN else array.astype(array.dtype.newbyteorder("<")))
        return OutputTensor(port.name, port.datatype, shape, binary=packed.reshape(-1).view(np.uint8).data)
    return OutputTensor(port.name, port.datatype, shape, written=_numbers(port, array.ravel(), most))


def _numbers(port: Port, values: Array, most: int) -> Raw:
    """The values as a JSON list, written in portions: after each, other threads get the interpreter."""
    parts, size = [], 0
    for start in range(0, len(values), PORTION):
        part = values[start : start + PORTION]
        if port.datatype == "BF16":
            part = from_bfloat16(part)
        if part.dtype.kind == "f" and not (fine := np.isfinite(part)).all():
            raise not_finite(port.name, float(part[~fine][0]))
        parts.append(msgspec.json.encode(part.tolist())[1:-1])
        size += len(parts[-1]) + 1
        if size > most:
            raise too_large(f"over {most}", most, ", or ask for binary_data")
    return Raw(b"[%b]" % b",".join(parts))


def size_of(array: Array) -> int:
    """Bytes of an output: of texts their characters, and what refers to them."""
    if array.dtype != object:
        return array.nbytes
    flat = array.ravel()
    return array.nbytes + sum(sum(map(len, flat[start : start + PORTION])) for start in range(0, len(flat), PORTION))


def too_large(size: object, most: int, advice: str = "") -> ApiError:
    """The refusal of outputs of more than so many bytes."""
    return ApiError(
        400, f"the outputs of this request have {size} bytes; at most {most} are possible (max_output_bytes){advice}",
        code="request_too_large", param="inputs",
    )  # fmt: skip


# -- the graph's schema ----------------------------------------------------------------------------------------------------


class Schema:
    """What a graph declares, and whether a request fits."""

    def __init__(self, session: Session) -> None:
        self.inputs = {port.name: port for port in session.inputs}
        self.outputs = {port.name: port for port in session.outputs}
        self._hidden = session.hidden

    def feeds(self, request: InferRequest) -> Feeds:
        """The request's arrays. Raises TensorError for a name, datatype, shape or value that does not fit."""
        names = [tensor.name for tensor in request.inputs]
        for tensor in request.inputs:
            if tensor.name not in self.inputs:
                raise TensorError(tensor.subject, f"one of the inputs {_list(self.inputs)}", "an unknown name")
        missing = [name for name in self.inputs if name not in names]
        if missing:
            raise TensorError(codec.subject("input", missing[0]), "a tensor", "none")
        for output in request.outputs:
            if output.name in self._hidden:
                raise TensorError(codec.subject("output", output.name), "an output that is a tensor", "one that is not")
            if output.name not in self.outputs:
                raise TensorError(codec.subject("output", output.name), f"one of the outputs {_list(self.outputs)}", "an unknown name")
            if classes := (output.parameters or {}).get("classification"):
                raise TensorError(codec.subject("output", output.name), "no 'classification', which this engine lacks", str(classes))
        symbols: dict[str, tuple[int, str]] = {}
        for tensor in request.inputs:
            self._check(tensor, self.inputs[tensor.name], symbols)
        outputs = tuple(output.name for output in request.outputs) or tuple(self.outputs)
        return Feeds({tensor.name: to_array(tensor) for tensor in request.inputs}, outputs)

    @staticmethod
    def _check(tensor: Tensor, port: Port, symbols: dict[str, tuple[int, str]]) -> None:
        if tensor.datatype != port.datatype:
            raise TensorError(tensor.subject, f"datatype {port.datatype}", tensor.datatype)
        if len(tensor.shape) != len(port.shape):
            raise TensorError(tensor.subject, f"shape {metadata_shape(port)}", f"{list(tensor.shape)}")
        for axis, (size, dimension) in enumerate(zip(tensor.shape, port.shape, strict=True)):
            if isinstance(dimension, int) and size != dimension and dimension >= 0:
                raise TensorError(
                    tensor.subject, f"{dimension} along axis {axis} (shape {metadata_shape(port)})", f"shape {list(tensor.shape)}"
                )
            if isinstance(dimension, str):
                known, where = symbols.setdefault(dimension, (size, tensor.subject))
                if known != size:
                    raise TensorError(
                        tensor.subject, f"{known} along axis {axis}, as {where} has for {dimension!r}", f"shape {list(tensor.shape)}"
                    )

    def metadata(self, name: str, version: str) -> bytes:
        """The body of the model metadata call."""
        return codec.encode_model_metadata(
            name,
            [version],
            "onnxruntime_onnx",
            [codec.TensorMetadata(port.name, port.datatype, metadata_shape(port)) for port in self.inputs.values()],
            [codec.TensorMetadata(port.name, port.datatype, metadata_shape(port)) for port in self.outputs.values()],
        )

    def output_bytes(self, feeds: Feeds) -> int:
        """The least that the outputs of a request take, by what the graph declares: a dimension that is only known afterwards counts 1."""
        sizes: dict[str, int] = {}
        for name, array in feeds.arrays.items():
            sizes |= {dim: size for dim, size in zip(self.inputs[name].shape, array.shape, strict=True) if isinstance(dim, str)}
        return sum(self._least(self.outputs[name], sizes) for name in feeds.outputs)

    @staticmethod
    def _least(port: Port, sizes: Mapping[str, int]) -> int:
        known = (sizes.get(dim, 1) if isinstance(dim, str) else 1 if dim is None or dim < 0 else dim for dim in port.shape)
        return math.prod(known) * (1 if port.datatype == "BYTES" else np.dtype(NUMPY[port.datatype]).itemsize)

    def batch_axis(self) -> str | None:
        """The symbol that is the first dimension of every input and output and occurs nowhere else, or None."""
        ports = [*self.inputs.values(), *self.outputs.values()]
        first = {port.shape[0] if port.shape else None for port in ports}
        symbol = next(iter(first)) if len(first) == 1 else None
        if not isinstance(symbol, str) or any(symbol in port.shape[1:] for port in ports):
            return None
        return symbol


def metadata_shape(port: Port) -> tuple[int, ...]:
    """The protocol's shape: -1 for a dynamic dimension."""
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in port.shape)


def _list(names: Mapping[str, Port]) -> str:
    return ", ".join(repr(name) for name in names)


# -- batches ---------------------------------------------------------------------------------------------------------------


class TensorRunner:
    """Runs infer requests, several in one batch when they may. Runs on the batcher's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, batch: Sequence[Feeds]) -> list[dict[str, Array]]:
        """The outputs of each request. All requests of a batch have the same key: names, trailing shapes and outputs."""
        outputs = batch[0].outputs
        if len(batch) == 1:
            return [dict(zip(outputs, self._session.run(batch[0].arrays, outputs), strict=True))]
        joined = {name: np.concatenate([feeds.arrays[name] for feeds in batch]) for name in batch[0].arrays}
        results = self._session.run(joined, outputs)
        total = sum(rows_of(feeds) for feeds in batch)
        if any(result.shape[:1] != (total,) for result in results):
            raise ValueError("the graph's outputs have not one row for each of the batch")
        found: list[dict[str, Array]] = []
        start = 0
        for feeds in batch:
            end = start + rows_of(feeds)
            found.append({name: result[start:end] for name, result in zip(outputs, results, strict=True)})
            start = end
        return found


def rows_of(feeds: Feeds) -> int:
    """Rows of a request whose inputs share their first dimension."""
    return int(next(iter(feeds.arrays.values())).shape[0])


def units_of(feeds: Feeds, max_batch: int) -> list[Unit]:
    """The units of a request: its rows, at most `max_batch` in each; one unit with `max_batch` 1, for a model that is not batched."""
    if max_batch == 1:
        return [Unit(Key(("tensor", (), feeds.outputs), 1), feeds)]
    key = Key(("tensor", tuple((name, array.shape[1:]) for name, array in sorted(feeds.arrays.items())), feeds.outputs), max_batch)
    rows = rows_of(feeds)
    if rows <= max_batch:
        return [Unit(key, feeds, max(1, rows))]
    starts = range(0, rows, max_batch)
    return [Unit(key, _rows(feeds, start, start + max_batch), min(max_batch, rows - start)) for start in starts]


def _rows(feeds: Feeds, start: int, end: int) -> Feeds:
    return Feeds({name: array[start:end] for name, array in feeds.arrays.items()}, feeds.outputs)


def joined(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """The outputs of a request from those of its units."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rows_independent(session: Session, schema: Schema, tolerance: float, random: np.random.Generator) -> bool:
    """Whether rows give the same alone and in company. Tries small random values; False if the graph rejects them."""
    if schema.batch_axis() is None:
        return False
    arrays = {port.name: _sample(port, PROBE_ROWS, random) for port in schema.inputs.values()}
    names = tuple(schema.outputs)
    try:
        together = session.run(arrays, names)
        alone = [session.run({name: array[row : row + 1] for name, array in arrays.items()}, names) for row in range(PROBE_ROWS)]
    except RUNTIME_ERRORS:  # a graph that rejects the sample is simply not batched
        return False
    return all(_same(whole, np.concatenate([row[index] for row in alone]), tolerance) for index, whole in enumerate(together))


def warm_up(session: Session, schema: Schema, random: np.random.Generator) -> bool:
    """Run once, so that the first request does not pay for the runtime's preparations; False if the graph rejects the sample. Raises one of
    RUNTIME_ERRORS where even that takes more memory than there is."""
    try:
        session.run({port.name: _sample(port, 1, random) for port in schema.inputs.values()}, tuple(schema.outputs))
    except RUNTIME_ERRORS as exc:
        if out_of_memory(exc):
            raise
        return False  # the sample is a guess
    return True


def _sample(port: Port, rows: int, random: np.random.Generator) -> Array:
    """Small values: `rows` where the first dimension is dynamic, 4 where another one is."""
    fitting = [size if isinstance(size, int) and size >= 0 else 4 for size in port.shape]
    if port.shape and not (isinstance(port.shape[0], int) and port.shape[0] >= 0):
        fitting[0] = rows
    shape = tuple(fitting)
    if port.datatype == "BYTES":
        return np.array([f"s{index}" for index in range(int(np.prod(shape)))], np.object_).reshape(shape)
    if port.datatype == "BF16":
        return to_bfloat16(random.random(shape, np.float32))
    if port.datatype in ("FP16", "FP32", "FP64"):
        return random.random(shape).astype(NUMPY[port.datatype])
    return random.integers(0, 2, shape).astype(NUMPY[port.datatype])


def _same(one: Array, two: Array, tolerance: float) -> bool:
    if one.shape != two.shape:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True))
    return bool((one == two).all())


# -- endpoint --------------------------------------------------------------------------------------------------------------


class Infer:
    """POST /v2/models/{model}[/versions/{version}]/infer."""

    def __init__(
        self, schema: Schema, batcher: Batcher, offload: Offload, max_batch: int, max_output: int, count: Callable[[int], None]
    ) -> None:
        self._schema, self._batcher, self._offload, self._max_batch = schema, batcher, offload, max_batch
        self._max_output = max_output
        self._count = count
        self._has_strings = any(port.datatype == "BYTES" for port in schema.inputs.values())

    async def handle(self, request: Request, model: str, version: str) -> Response:
        """The outputs as the request wants them. Raises TensorError, ApiError or what the runtime raises."""
        length = codec.header_length(request.headers.get(codec.HEADER_LENGTH.encode()), len(request.body))
        head = len(request.body) if length is None or self._has_strings else length
        parsed, feeds = await self._offload.call(head / BYTES_PER_COST, self._read, request.body, length)
        self._count(sum(tensor.elements for tensor in parsed.inputs))
        self._bound(self._schema.output_bytes(feeds))
        units = units_of(feeds, self._max_batch)
        arrays = joined(await self._batcher.submit(units, priority=request.priority, deadline=request.deadline, request=request))
        texts = sum(array.size for array in arrays.values() if array.dtype == object)
        sizes = await self._offload.call(texts / NUMBERS_PER_COST, lambda: {name: size_of(array) for name, array in arrays.items()})
        self._bound(sum(sizes.values()))
        cost = sum(size / (COPIED_PER_COST if parsed.wants_binary(name) else BYTES_PER_COST) for name, size in sizes.items())
        return await self._offload.call(cost, self._answer, parsed, arrays, model, version)

    def _bound(self, size: int) -> None:
        if size > self._max_output:
            raise too_large(size, self._max_output)

    def _read(self, body: bytes, length: int | None) -> tuple[InferRequest, Feeds]:
        parsed = codec.parse_request(body, length)
        return parsed, self._schema.feeds(parsed)

    def _answer(self, parsed: InferRequest, arrays: dict[str, Any], model: str, version: str) -> Response:
        outputs = [
            to_output(self._schema.outputs[name], array, parsed.wants_binary(name), self._max_output) for name, array in arrays.items()
        ]
        pieces, length = encode_response(model, version, parsed.id, outputs)
        if length is None:
            return Response(b"".join(pieces))
        header = (codec.HEADER_LENGTH.encode(), str(length).encode())
        return Response(b"".join(pieces), content_type=BINARY, headers=(header,))
