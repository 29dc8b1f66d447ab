"""`python -m engines.jobs`: one job on a model file. It confines itself before it opens the file: it reads nothing else, writes to one
folder, has bounded memory, processors, processor time and file sizes, and ends with its standard input."""

from __future__ import annotations

import importlib
import os
import resource
import sys
import tempfile
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from engines.confinement import confine, rather_me
from engines.jobs.order import OUTCOME, Order, Outcome, put

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # engines.llamacpp.__main__ says why
WORK: Final = MappingProxyType(
    {
        "convert": "engines.jobs.convert",
        "quantize": "engines.jobs.quantize",
        "quantize-onnx": "engines.jobs.quantize_onnx",
        "benchmark": "engines.jobs.benchmark",
    }
)
"""Kind -> the module, whose `run(order)` does it. It is imported, with its libraries, before the process confines itself."""
SPARE: Final = 16 * 1024**3
"""Addresses beside the memory: of libraries, thread stacks and what they reserve without using it. Files are mapped beyond that."""


def restrain(order: Order) -> None:
    os.nice(order.niceness)
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[-order.threads :])  # away from the first, where an event loop is more likely to be
    source = Path(order.source)
    mapped = 2 * (sum(file.stat().st_size for file in source.rglob("*") if file.is_file()) if source.is_dir() else source.stat().st_size)
    processor = int(order.seconds * order.threads) + 1
    for what, most in (
        (resource.RLIMIT_DATA, order.memory_bytes),
        (resource.RLIMIT_AS, order.memory_bytes + mapped + SPARE),
        (resource.RLIMIT_FSIZE, order.output_bytes),
        (resource.RLIMIT_CPU, processor),
    ):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(what, (bound, bound))
    tempfile.tempdir = order.folder
    confine(reads=[source], writes=[Path(order.folder)])


def _end_with_input() -> None:
    """The gateway is gone, or wants no more of it."""
    try:
        sys.stdin.buffer.read(1)
    finally:
        os._exit(75)


def main() -> int:
    rather_me(800)  # before any engine
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    try:
        work = importlib.import_module(WORK[order.kind])
    except ImportError as error:
        put(Path(order.folder), OUTCOME, Outcome(problem=f"a library is not installed here: {error.name}"))
        return 0
    restrain(order)
    threading.Thread(target=_end_with_input, daemon=True).start()  # after it: the kernel confines a thread and those that it starts
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
