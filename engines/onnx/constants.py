"""Numbers in an ONNX file that would end its runtime.

`check`: how large the tensors are that a graph makes out of nothing, as a few bytes may ask for all the memory there is. Only sizes that
the file itself states are seen, in its outermost graph: a shape that is an initializer, a Constant or an attribute. What a graph computes
is bounded by the process's own limit (`options.memory_limit_bytes`).

`check_frames`: ONNX Runtime divides by the frame length of an STFT, and a length of 0 ends the process (SIGFPE, seen with 1.31 on the CPU).
So the file must state it, in whatever graph the node is.

Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from engines.onnx.protobuf import Broken, Value, fields, message, text, varints

MOST_ELEMENTS: Final = 1 << 30
"""The largest tensor: 4 GiB of float32."""
MOST_BYTES: Final = 4096
"""The largest tensor that may be a shape."""
GRAPH_NODE, GRAPH_INITIALIZER, FUNCTION_NODE = 1, 5, 7
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OPERATOR, NODE_ATTRIBUTE = 1, 2, 3, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_INTS, ATTRIBUTE_GRAPHS = 1, 3, 5, 6, 8, 11
TENSOR_DIMS, TENSOR_KIND, TENSOR_INT32, TENSOR_INT64, TENSOR_NAME, TENSOR_RAW = 1, 2, 5, 7, 8, 9
INT32, INT64 = 6, 7
FRAMED: Final = "STFT"
_WINDOW_AT, _LENGTH_AT = 2, 3
Numbers = tuple[int, ...]

_SHAPE_AT: Final[Mapping[str, int]] = {"ConstantOfShape": 0, "Expand": 1}
"""Operator -> which input is the shape of what it makes."""
_SHAPED: Final = frozenset({"RandomNormal", "RandomUniform"})
"""Operators with an attribute `shape`."""
_WANTED: Final = frozenset({*_SHAPE_AT, *_SHAPED, "Range", "Constant"})


def check(graph: memoryview) -> None:
    """Refuse tensors of absurd sizes. Raises Broken."""
    known: dict[str, Numbers] = {}
    nodes: list[tuple[str, list[str], dict[str, Numbers]]] = []
    for field, value in fields(graph, "graph"):
        if field == GRAPH_INITIALIZER:
            name, numbers = _tensor(message(value, "initializer"))
            if numbers:
                known[name] = numbers
        elif field == GRAPH_NODE and (operator := _operator(value)) in _WANTED:
            inputs, outputs, attributes = _node(message(value, "node"))
            if operator == "Constant" and outputs:
                known.update((outputs[0], numbers) for numbers in attributes.values())
            else:
                nodes.append((operator, inputs, attributes))
    for operator, inputs, attributes in nodes:
        size = _elements(operator, [known.get(name, ()) for name in inputs], attributes)
        if size > MOST_ELEMENTS:
            shown = size if size < 10**18 else "more than 10^18"
            raise Broken(f"{operator} makes a tensor of {shown} elements, at most {MOST_ELEMENTS} are taken")


def _elements(operator: str, inputs: list[Numbers], attributes: Mapping[str, Numbers]) -> int:
    """The size of the tensor that a node makes, as far as the file says."""
    if operator == "Range":
        if len(inputs) < 3 or not all(len(numbers) == 1 for numbers in inputs[:3]) or not inputs[2][0]:
            return 0
        (start,), (end,), (step,) = inputs[:3]
        return max(0, -(-(end - start) // step))
    at = _SHAPE_AT.get(operator)
    shape = attributes.get("shape", ()) if at is None else inputs[at] if at < len(inputs) else ()
    return math.prod(max(0, size) for size in shape) if shape else 0


def _operator(node: Value) -> str:
    found = ""
    for field, value in fields(message(node, "node"), "node"):
        if field == NODE_OPERATOR:
            found = text(value, "op_type")  # the last one counts
    return found


def _node(view: memoryview) -> tuple[list[str], list[str], dict[str, Numbers]]:
    """Names of its inputs and outputs, and its attributes that are whole numbers."""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Numbers] = {}
    for field, value in fields(view, "node"):
        if field in (NODE_INPUT, NODE_OUTPUT):
            (inputs if field == NODE_INPUT else outputs).append(text(value, "name"))
        elif field == NODE_ATTRIBUTE:
            name, numbers = "", list[int]()
            for part, inner in fields(message(value, "attribute"), "attribute"):
                if part == ATTRIBUTE_NAME:
                    name = text(inner, "attribute name")
                elif part in (ATTRIBUTE_INT, ATTRIBUTE_INTS):
                    numbers += _signed(inner)
                elif part == ATTRIBUTE_TENSOR:
                    numbers += _tensor(message(inner, "tensor"))[1]
            attributes[name] = tuple(numbers)
    return inputs, outputs, attributes


def _tensor(view: memoryview) -> tuple[str, Numbers]:
    """Its name, and its values if they are a few whole numbers."""
    name, kind = "", 0
    numbers: list[int] = []
    raw = memoryview(b"")
    for field, value in fields(view, "tensor"):
        if field == TENSOR_NAME:
            name = text(value, "tensor name")
        elif field == TENSOR_KIND and isinstance(value, int):
            kind = value
        elif field == TENSOR_RAW:
            raw = message(value, "raw_data")
        elif field in (TENSOR_INT32, TENSOR_INT64) and (isinstance(value, int) or len(value) <= MOST_BYTES):
            numbers += _signed(value)
    if kind not in (INT32, INT64) or len(raw) > MOST_BYTES or len(numbers) > MOST_BYTES:
        return name, ()
    size, letter = (4, "i") if kind == INT32 else (8, "q")
    return name, tuple(numbers) or struct.unpack(f"<{len(raw) // size}{letter}", raw[: len(raw) // size * size])


def _signed(value: Value) -> Iterator[int]:
    """Whole numbers, alone or packed."""
    for number in (value,) if isinstance(value, int) else varints(value):
        yield number - (1 << 64) if number >> 63 else number


def check_frames(graph: memoryview, functions: Sequence[memoryview]) -> None:
    """Refuse an STFT whose frame length is below 1, or is not stated in the file. Raises Broken. The nesting of graphs has been bounded."""
    _frames(graph, GRAPH_NODE, {}, {})
    for function in functions:
        _frames(function, FUNCTION_NODE, {}, {})


def _frames(graph: memoryview, nodes: int, outer: Mapping[str, Numbers], outer_lengths: Mapping[str, int]) -> None:
    """nodes: which field they are. outer: numbers that the graphs around this one know by name, and how long their vectors are."""
    known, lengths = dict(outer), dict(outer_lengths)
    views = []
    for field, value in fields(graph, "graph"):
        if field == nodes:
            views.append(message(value, "node"))
        elif field == GRAPH_INITIALIZER and nodes == GRAPH_NODE:
            view = message(value, "initializer")
            name, numbers = _tensor(view)
            known[name], lengths[name] = numbers, _length(view)
    for view in views:
        if _operator(view) == "Constant":
            _inputs, outputs, attributes = _node(view)
            known.update((outputs[0], numbers) for numbers in attributes.values() if outputs)
    for view in views:
        if _operator(view) == FRAMED:
            _framed(view, known, lengths)
        for inner in _graphs(view):
            _frames(inner, GRAPH_NODE, known, lengths)


def _framed(node: memoryview, known: Mapping[str, Numbers], lengths: Mapping[str, int]) -> None:
    inputs = _node(node)[0]
    window, length = (inputs[at] if at < len(inputs) else "" for at in (_WINDOW_AT, _LENGTH_AT))
    names = [text(value, "name") for field, value in fields(node, "node") if field == NODE_NAME]
    what = f"{FRAMED} {names[-1][:64]!r}" if names and names[-1] else FRAMED
    found = known.get(length, ()) if length else (lengths[window],) if window in lengths else ()
    if len(found) != 1:
        raise Broken(f"{what}: the file does not state its frame_length; make it a constant of 1 or more, as 0 ends the runtime")
    if found[0] < 1:
        raise Broken(f"{what}: its {'frame_length' if length else 'window'} has {found[0]} samples; 1 or more are possible")


def _length(tensor: memoryview) -> int:
    """How many elements it says it has."""
    dims = [one for field, value in fields(tensor, "tensor") if field == TENSOR_DIMS for one in _signed(value)]
    return math.prod(dims)


def _graphs(node: memoryview) -> Iterator[memoryview]:
    """Those in its attributes."""
    for field, value in fields(node, "node"):
        if field == NODE_ATTRIBUTE:
            for part, inner in fields(message(value, "attribute"), "attribute"):
                if part in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                    yield message(inner, "graph")
