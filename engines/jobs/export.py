"""What PyTorch has exported (engines.jobs.torch_export), asked by ONNX Runtime what the model was asked, and packed as a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from onnxruntime import InferenceSession

from engines.jobs.order import MAIN, Order, Outcome
from engines.jobs.pack import kept, pack
from engines.jobs.torch_export import GRAPH, MODEL, SAMPLE

MOST_SAMPLE: Final = 64 * 1024**2
TOLERANCE: Final = 1e-3
"""Largest difference, as a share of the largest value that the model answered (or of 1)."""


class Sample(msgspec.Struct, frozen=True):
    """Of one answer to padded texts, not of the shape that the graph was traced with."""

    inputs: dict[str, list[list[int]]]
    output: str
    answer: list[Any]


def run(order: Order) -> Outcome:
    source, folder = Path(order.source) / MODEL, Path(order.folder)
    began = time.monotonic()
    graph, sample = source / GRAPH, Path(order.source) / SAMPLE
    if sample.stat().st_size > MOST_SAMPLE:
        return Outcome(problem="the exporter left a sample that is too large")
    try:
        asked = msgspec.json.decode(sample.read_bytes(), type=Sample)
        wanted = np.asarray(asked.answer, dtype=np.float32)
        session = InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        inputs = {name: np.asarray(values, dtype=np.int64) for name, values in asked.inputs.items()}
        found = session.run([asked.output], inputs)[0]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: whatever the library makes of the graph, the job tells it and ends
        return Outcome(problem=f"ONNX Runtime refuses what was exported: {str(error).replace(str(graph), 'the graph')[:500]}")
    if found.shape != wanted.shape:
        return Outcome(problem=f"the graph answers with the shape {found.shape}, the model with {wanted.shape}")
    difference = float(np.max(np.abs(found - wanted))) if wanted.size else 0.0
    if not difference <= TOLERANCE * max(1.0, float(np.max(np.abs(wanted)))):  # not <=: of values that are no numbers, too
        return Outcome(problem=f"the graph answers otherwise than the model: by {difference:.3g}")
    beside = [(path.relative_to(source).as_posix(), path) for path in kept(source)]
    pack(folder / order.target, [(GRAPH, graph), *beside])
    (folder / MAIN).write_bytes(graph.read_bytes())
    return Outcome(result={"bytes": graph.stat().st_size, "difference": difference, "check_seconds": round(time.monotonic() - began, 3)})
