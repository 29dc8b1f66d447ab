"""What the process of a job may take: it restrains itself, for good, before it opens the model. Needs nothing but Python's own library: the
process may run in an environment that is not the gateway's (engines.jobs.torch_export)."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, Protocol

from engines.confinement import confine

SPARE: Final = 16 * 1024**3
"""Addresses beside the memory: of libraries, thread stacks and what they reserve without using it. Files are mapped beyond that."""


class Bounds(Protocol):
    """Of an `Order` (engines.jobs.order)."""

    @property
    def source(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def niceness(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...


def restrain(order: Bounds) -> None:
    """From now on, ends the process when its standard input ends: the gateway has died, or has cancelled the job."""
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
    threading.Thread(target=_end_with_input, daemon=True).start()  # after it: the kernel confines a thread and those that it starts


def _end_with_input() -> None:
    try:
        sys.stdin.buffer.read(1)
    finally:
        os._exit(75)
