"""An ONNX file, or the one in a model's folder, with 8-bit weights, by ONNX Runtime's own dynamic quantisation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import onnx
from onnxruntime import InferenceSession
from onnxruntime.quantization import QuantType, quantize_dynamic

from engines.jobs.order import MAIN, Order, Outcome
from engines.jobs.pack import kept, pack

PLACES: Final = ("model.onnx", "onnx/model.onnx", "1/model.onnx")
"""Where a folder may have its graph; else it is the only .onnx file of the folder (engines.runtimes)."""


def run(order: Order) -> Outcome:
    source, folder = Path(order.source), Path(order.folder)
    began = time.monotonic()
    whole = source.is_dir()
    graph = _graph(source) if whole else source
    if graph is None:
        return Outcome(problem="the folder has no graph, or several")
    made = folder / (MAIN if whole else order.target)
    try:
        model = onnx.load(str(graph), load_external_data=whole)  # what a file names as further files, the process may not read
        quantize_dynamic(
            model,
            str(made),
            per_channel=order.options["per_channel"],
            weight_type=QuantType.QInt8 if order.options["weights"] == "int8" else QuantType.QUInt8,
            nodes_to_exclude=_of_other_types(model),
        )
        InferenceSession(str(made), providers=["CPUExecutionProvider"])  # what it would not load, it sometimes writes
        if made.stat().st_size >= graph.stat().st_size:
            return Outcome(problem="8-bit weights make the model no smaller: it has no matrices of F32")
        if whole:
            members = ((graph, made), *((path, path) for path in kept(source)))
            pack(folder / order.target, ((path.relative_to(source).as_posix(), content) for path, content in members))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: whatever the library makes of somebody's file, the job tells it and ends
        return Outcome(problem=f"ONNX Runtime refuses the model: {str(error).replace(str(graph), 'the model')[:500]}")
    before, after = graph.stat().st_size, made.stat().st_size
    return Outcome(result={"bytes_before": before, "bytes": after, "seconds": round(time.monotonic() - began, 3)})


def _of_other_types(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes with weights that are not F32, which the library would quantise to graphs that do not load. All nodes are
    named."""
    others = {one.name for one in model.graph.initializer if one.data_type != onnx.TensorProto.FLOAT}
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{number}"
    return [node.name for node in model.graph.node if others & set(node.input)]


def _graph(source: Path) -> Path | None:
    for place in PLACES:
        if (source / place).is_file():
            return source / place
    found = list(source.glob("*.onnx"))
    return found[0] if len(found) == 1 else None
