"""The inputs and outputs of an ONNX graph, read from the file without a runtime: names, types and shapes."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

from engines.onnx.modelfile import GRAPH_INITIALIZER, GRAPH_INPUT, MODEL_GRAPH, PORT_NAME, TENSOR_NAME
from engines.onnx.protobuf import Broken, fields, message, number, text
from engines.sidecar.loading import LoadError

# onnx.proto3: message -> field number
GRAPH_OUTPUT = 12
PORT_TYPE = 2
TYPE_TENSOR = 1
TENSOR_KIND, TENSOR_SHAPE = 1, 2
SHAPE_DIM, DIM_VALUE, DIM_NAME = 1, 1, 2
MAX_PORTS = 256
MAX_DIMS = 32
KINDS = (
    "undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32",
    "uint64", "complex64", "complex128", "bfloat16",
)  # fmt: skip
"""TensorProto.DataType by number; later ones (8 bits and fewer) are shown by their number."""


class Port(NamedTuple):
    """An input or output. `shape`: lengths, names of variable ones, or None; anything but a tensor has the type `other`."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class Signature(NamedTuple):
    """The inputs and outputs of a graph, without the weights that older files list among the inputs."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def read_signature(path: Path) -> Signature:
    """The signature of a file that `read_model_file` took. Raises LoadError (`model_missing`, `model_invalid`)."""
    try:
        with path.open("rb") as file:
            return _signature(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as exc:
        raise LoadError("model_missing", f"{path}: {exc.strerror or exc}") from None
    except ValueError as exc:  # Broken; an empty file cannot be mapped
        raise LoadError("model_invalid", f"{path}: not a whole ONNX protobuf: {exc}") from None


def _signature(view: memoryview) -> Signature:
    graph = next((message(value, "graph") for field, value in fields(view, "model") if field == MODEL_GRAPH), None)
    if graph is None:
        raise Broken("graph is absent")
    inputs: list[Port] = []
    outputs: list[Port] = []
    weights: set[str] = set()
    for field, value in fields(graph, "graph"):
        if field == GRAPH_INITIALIZER:
            weights.update(text(v, "tensor name") for f, v in fields(message(value, "initializer"), "initializer") if f == TENSOR_NAME)
        elif field in (GRAPH_INPUT, GRAPH_OUTPUT):
            (inputs if field == GRAPH_INPUT else outputs).append(_port(message(value, "port")))
    return Signature(tuple(port for port in inputs if port.name not in weights)[:MAX_PORTS], tuple(outputs[:MAX_PORTS]))


def _port(view: memoryview) -> Port:
    name, kind = "", "other"
    shape: tuple[int | str | None, ...] = ()
    for field, value in fields(view, "port"):
        if field == PORT_NAME:
            name = text(value, "port name")
        elif field == PORT_TYPE:
            for part, inner in fields(message(value, "type"), "type"):
                if part == TYPE_TENSOR:
                    kind, shape = _tensor(message(inner, "tensor type"))
    return Port(name, kind, shape)


def _tensor(view: memoryview) -> tuple[str, tuple[int | str | None, ...]]:
    kind = 0
    dims: list[int | str | None] = []
    for field, value in fields(view, "tensor type"):
        if field == TENSOR_KIND:
            kind = number(value, "elem_type")
        elif field == TENSOR_SHAPE:
            dims = [_dim(message(inner, "dimension")) for part, inner in fields(message(value, "shape"), "shape") if part == SHAPE_DIM]
    return KINDS[kind] if kind < len(KINDS) else str(kind), tuple(dims[:MAX_DIMS])


def _dim(view: memoryview) -> int | str | None:
    for field, value in fields(view, "dimension"):
        if field == DIM_VALUE:
            return number(value, "dim_value")
        if field == DIM_NAME:
            return text(value, "dim_param")
    return None
