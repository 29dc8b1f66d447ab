"""What an ONNX file reveals before a runtime loads it: whether it is a whole protobuf, its opsets, the files beside it.

Reads the protobuf wire format itself (field numbers from onnx.proto3) over a memory map: a serving machine does not need the `onnx`
package, and a file of gigabytes is neither read nor copied. Every length is checked against its enclosing message, so a truncated or
foreign file is refused with the place, never half loaded.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from engines.onnx import constants, functions
from engines.onnx.protobuf import Bound, Broken, Value, fields, message, number, text
from engines.sidecar.loading import LoadError

MAX_LOCATION = 1024
"""Bytes of the name of a file with weights."""
MAX_SHOWN = 100
_IN_MEMORY = "_ORT_MEM_ADDR_"
"""ONNX Runtime takes this place for its own memory, and the offset for an address in it."""
MAX_FIELDS = 16_000_000
"""Fields of all messages together. Large ensembles of trees have millions: ten for each of their nodes."""
MAX_INPUTS = 1024
"""Inputs of the graph that are no weights. ONNX Runtime's time grows with their square: 10,000 take it 5 s."""
MAX_DEPTH = 32
"""Deepest nesting of graphs in attributes (If, Loop, Scan)."""
_FRAMED = constants.FRAMED.encode()

# onnx.proto3: message -> field number
MODEL_IR_VERSION, MODEL_PRODUCER, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 2, 7, 8, 25
FUNCTION_NODE = 7
OPSET_DOMAIN, OPSET_VERSION = 1, 2
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_SPARSE = 1, 5, 11, 15
PORT_NAME = 1
NODE_OPERATOR, NODE_ATTRIBUTE = 4, 5
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 5, 6, 10, 11
TENSOR_NAME, TENSOR_EXTERNAL, TENSOR_LOCATION = 8, 13, 14
ENTRY_KEY, ENTRY_VALUE = 1, 2
SPARSE_VALUES, SPARSE_INDICES = 1, 2
LOCATION_EXTERNAL = 1


class ExternalData(NamedTuple):
    """Weights of one tensor in a file beside the model: `location` relative to it, `offset` and `length` in bytes (0: the rest)."""

    tensor: str
    location: str
    offset: int
    length: int


class ModelFile(NamedTuple):
    """The contents of an ONNX file's frame. `opsets` maps an operator domain ("" is ai.onnx) to its version."""

    path: Path
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    nodes: int
    external: tuple[ExternalData, ...]


def read_model_file(path: Path) -> ModelFile:
    """Read the frame of an ONNX file. Raises LoadError (`model_missing`, `model_invalid`)."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise LoadError("model_invalid", f"{path}: the file is empty")
            # not closed explicitly: views of it may live on in a traceback, and the last one closes it
            return _model(path, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as exc:
        raise LoadError("model_missing", f"{path}: {exc.strerror or exc}") from None
    except Broken as exc:
        raise LoadError("model_invalid", f"{path}: not a whole ONNX protobuf: {exc}") from None


def check_model_file(model: ModelFile, supported: Mapping[str, int]) -> None:
    """Refuse what the runtime cannot run: opsets beyond `supported` (domain -> version), absent or escaping external data."""
    for domain, version in model.opsets.items():
        name = domain or "ai.onnx"
        if domain not in supported:
            known = ", ".join(sorted(d or "ai.onnx" for d in supported))
            raise LoadError("model_invalid", f"{model.path}: operator domain {name} is unknown to this runtime (it has {known})")
        if not 1 <= version <= supported[domain]:
            raise LoadError("model_invalid", f"{model.path}: opset {name} {version}, this runtime has 1 to {supported[domain]}")
    check_external(model)


def check_external(model: ModelFile) -> None:
    """Refuse weights that lie outside the model's folder, or are not there."""
    root = model.path.parent.resolve()
    for entry in model.external:
        _check_external(model.path, root, entry)


def _check_external(path: Path, root: Path, entry: ExternalData) -> None:
    place = PurePosixPath(entry.location)
    where = f"{path}: weights of {entry.tensor[:MAX_SHOWN]!r}"
    if "\0" in entry.location or len(entry.location.encode()) > MAX_LOCATION or _IN_MEMORY in place.parts:
        raise LoadError("model_invalid", f"{where}: {entry.location[:MAX_SHOWN]!r} is no name of a file in the model's folder")
    file = (root / place).resolve()
    if not entry.location or place.is_absolute() or ".." in place.parts or not file.is_relative_to(root):
        raise LoadError("model_invalid", f"{where} lie outside the model's folder: {entry.location!r}")
    if not file.is_file():
        raise LoadError("model_missing", f"{where} are in {entry.location}, which does not exist")
    size = file.stat().st_size
    if entry.offset < 0 or entry.length < 0 or entry.offset + entry.length > size:
        raise LoadError("model_invalid", f"{where} reach to byte {entry.offset + entry.length} of {entry.location}, which has {size}")


def external_files(model: ModelFile) -> tuple[Path, ...]:
    """The files beside the model that hold weights, each once."""
    return tuple(dict.fromkeys(model.path.parent / entry.location for entry in model.external))


class _Contents:
    """What was found so far. external: weights in other files. inputs, weights: names in the graph itself, not in nested ones. framed:
    there is a node whose frames must have a length."""

    def __init__(self) -> None:
        self.bound = Bound(MAX_FIELDS)
        self.external: list[ExternalData] = []
        self.inputs: set[str] = set()
        self.weights: set[str] = set()
        self.framed = False

    def fields(self, value: Value, what: str) -> Iterator[tuple[int, Value]]:
        """The fields of a message within another."""
        return fields(message(value, what), what, self.bound)


def _model(path: Path, view: memoryview) -> ModelFile:
    ir_version, producer, nodes, graphs = 0, "", 0, 0
    opsets: dict[str, int] = {}
    whole = memoryview(b"")
    made: list[memoryview] = []
    contents = _Contents()
    for field, value in fields(view, "model", contents.bound):
        if field == MODEL_IR_VERSION:
            ir_version = number(value, "ir_version")
        elif field == MODEL_PRODUCER:
            producer = text(value, "producer_name")
        elif field == MODEL_OPSET:
            domain, version = _opset(message(value, "opset_import"), contents)
            opsets["" if domain == "ai.onnx" else domain] = version
        elif field == MODEL_GRAPH:
            graphs += 1
            whole = message(value, "graph")
            nodes += _graph(whole, contents, 0)
        elif field == MODEL_FUNCTION:
            made.append(message(value, "function"))
            for part, inner in contents.fields(made[-1], "function"):
                if part == FUNCTION_NODE:
                    nodes += 1 + _node(message(inner, "node"), contents, 0)
    if not ir_version or not opsets or graphs != 1:
        raise Broken("ir_version, opset_import or graph is absent")
    if (inputs := len(contents.inputs - contents.weights)) > MAX_INPUTS:  # older files have each weight among the inputs, too
        raise Broken(f"the graph has {inputs} inputs, at most {MAX_INPUTS} are taken")
    functions.check(made, whole)
    constants.check(whole)
    if contents.framed:
        constants.check_frames(whole, made)
    return ModelFile(path, ir_version, producer, opsets, nodes, tuple(contents.external))


def _opset(view: memoryview, contents: _Contents) -> tuple[str, int]:
    domain, version = "", 0
    for field, value in contents.fields(view, "opset_import"):
        if field == OPSET_DOMAIN:
            domain = text(value, "domain")
        elif field == OPSET_VERSION:
            version = number(value, "version")
    return domain, version


def _graph(view: memoryview, contents: _Contents, depth: int) -> int:
    """Count the nodes and collect external data, in nested graphs too."""
    if depth > MAX_DEPTH:
        raise Broken(f"graphs nested more than {MAX_DEPTH} deep")
    nodes = 0
    for field, value in contents.fields(view, "graph"):
        if field == GRAPH_NODE:
            nodes += 1 + _node(message(value, "node"), contents, depth)
        elif field == GRAPH_INITIALIZER:
            name = _tensor(message(value, "initializer"), contents)
            if not depth:
                contents.weights.add(name)
        elif field == GRAPH_INPUT and not depth:
            contents.inputs.update(text(inner, "input") for part, inner in contents.fields(value, "input") if part == PORT_NAME)
        elif field == GRAPH_SPARSE:
            for part, inner in contents.fields(value, "sparse_initializer"):
                if part in (SPARSE_VALUES, SPARSE_INDICES):
                    _tensor(message(inner, "sparse tensor"), contents)
    return nodes


def _node(view: memoryview, contents: _Contents, depth: int) -> int:
    nodes = 0
    for field, value in contents.fields(view, "node"):
        if field == NODE_OPERATOR and isinstance(value, memoryview) and value.tobytes() == _FRAMED:
            contents.framed = True
        if field != NODE_ATTRIBUTE:
            continue
        for part, inner in contents.fields(value, "attribute"):
            if part in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
                _tensor(message(inner, "tensor"), contents)
            elif part in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                nodes += _graph(message(inner, "graph"), contents, depth + 1)
    return nodes


def _tensor(view: memoryview, contents: _Contents) -> str:
    """Its name."""
    name, outside = "", False
    entries: dict[str, str] = {}
    for field, value in contents.fields(view, "tensor"):
        if field == TENSOR_NAME:
            name = text(value, "tensor name")
        elif field == TENSOR_LOCATION:
            outside = number(value, "data_location") == LOCATION_EXTERNAL
        elif field == TENSOR_EXTERNAL:
            pair = {part: text(inner, "external_data") for part, inner in contents.fields(value, "external_data")}
            entries[pair.get(ENTRY_KEY, "")] = pair.get(ENTRY_VALUE, "")
    if outside or entries:  # the same field of a later part of the message may have the flag
        try:
            found = ExternalData(name, entries.get("location", ""), int(entries.get("offset", "0")), int(entries.get("length", "0")))
        except ValueError:
            raise Broken(f"external data of tensor {name!r} has no numbers for offset and length") from None
        contents.external.append(found)
    return name
