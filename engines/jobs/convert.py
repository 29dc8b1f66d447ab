"""A Hugging Face folder becomes a GGUF file (engines.convert)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from engines.convert.folder import Refused
from engines.convert.model import convert
from engines.jobs.order import PROGRESS, Order, Outcome, Progress, put

TOLD_SECONDS: Final = 0.5


def run(order: Order) -> Outcome:
    folder, began, said = Path(order.folder), time.monotonic(), 0.0

    def told(progress: float) -> None:
        nonlocal said
        if time.monotonic() - said >= TOLD_SECONDS:
            said = time.monotonic()
            put(folder, PROGRESS, Progress(progress))

    try:
        source, target = Path(order.source), folder / order.target
        result = convert(source, target, order.options["type"], order.output_bytes, told, memory=order.memory_bytes)
    except Refused as error:
        return Outcome(problem=f"the folder is not converted: {error}")
    return Outcome(result={**result, "seconds": round(time.monotonic() - began, 3)})
