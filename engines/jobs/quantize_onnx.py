"""An ONNX file with 8-bit weights, by ONNX Runtime's own dynamic quantisation."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from engines.jobs.order import Order, Outcome


def run(order: Order) -> Outcome:
    source, target = Path(order.source), Path(order.folder) / order.target
    began = time.monotonic()
    try:
        model = onnx.load(str(source), load_external_data=False)  # what it names as further files, the process may not read
        quantize_dynamic(
            model,
            str(target),
            per_channel=order.options["per_channel"],
            weight_type=QuantType.QInt8 if order.options["weights"] == "int8" else QuantType.QUInt8,
        )
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: whatever the library makes of somebody's file, the job tells it and ends
        return Outcome(problem=f"ONNX Runtime refuses the model: {str(error).replace(str(source), 'the model')[:500]}")
    before, after = source.stat().st_size, target.stat().st_size
    return Outcome(result={"bytes_before": before, "bytes": after, "seconds": round(time.monotonic() - began, 3)})
