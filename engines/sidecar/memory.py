"""How much main memory a model may take, and that it takes no more."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARE: Final = 0.9
"""The share of all memory that one process may have unless its settings say otherwise."""
RESERVED: Final = 64 * 1024 * 1024
"""Bytes that the libraries reserve for a thread (its stack, its buffers), which count whether they are used or not: for each processor."""


def available_memory() -> int | None:
    """Main memory available without swapping, in bytes; None if the system does not tell."""
    return _known("MemAvailable:", Path("/"))


def resident_memory() -> int | None:
    """Main memory that this process takes, in bytes; None if the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def all_memory(root: Path = Path("/")) -> int | None:
    """All main memory of the machine, or of the container if that may have less, in bytes; None if the system does not tell."""
    found = _known("MemTotal:", root)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # a container sees its own control group at the root
        with suppress(OSError, ValueError):
            most = int((root / "sys/fs/cgroup" / name).read_text())
            found = most if found is None else min(found, most)
    return found


def limit_memory(most: int | None) -> int | None:
    """Bounds what this process allocates for itself (setrlimit(2), RLIMIT_DATA: heap, stacks and writable private mappings, but not files
    that are mapped to be read). Beyond it, an allocation fails in the library that asks for it, instead of the kernel killing a process.
    most: bytes; None: SHARE of all memory, plus what threads reserve. Returns the bound, or None if there is none."""
    if sys.platform != "linux":
        return None
    if most is None:
        whole = all_memory()
        most = None if whole is None else int(whole * SHARE) + RESERVED * (os.cpu_count() or 1)
    if most is None:
        return None
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    return bound


def _known(name: str, root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None
