"""`python -m engines.jobs`: one job on a model file. It confines itself before it opens the file: it reads nothing else, writes to one
folder, has bounded memory, processors, processor time and file sizes, and ends with its standard input."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from engines.confinement import rather_me
from engines.jobs.bounds import restrain
from engines.jobs.order import OUTCOME, Order, Outcome, put

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # engines.llamacpp.__main__ says why
WORK: Final = MappingProxyType(
    {
        "convert": "engines.jobs.convert",
        "quantize": "engines.jobs.quantize",
        "quantize-onnx": "engines.jobs.quantize_onnx",
        "export": "engines.jobs.export",
        "benchmark": "engines.jobs.benchmark",
    }
)
"""Kind -> the module, whose `run(order)` does it. It is imported, with its libraries, before the process confines itself."""


def main() -> int:
    rather_me(800)  # before any engine
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    try:
        work = importlib.import_module(WORK[order.kind])
    except ImportError as error:
        put(Path(order.folder), OUTCOME, Outcome(problem=f"a library is not installed here: {error.name}"))
        return 0
    restrain(order)
    try:
        outcome = work.run(order)
    except MemoryError:
        print(f"out of memory: {order.memory_bytes} bytes are allowed", file=sys.stderr)
        return 1
    put(Path(order.folder), OUTCOME, outcome if isinstance(outcome, Outcome) else Outcome(problem="nothing came of it"))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the thread that waits for the end of standard input must not keep it
