"""Gives memory back to the system after large bodies and answers.

glibc serves blocks beyond a threshold from mappings of their own, which go back the moment they are freed. But each such block that is
freed raises the threshold (to 32 MiB at most), so that after the first large body all others come from the heap, which shrinks only from
its end: one small block that stays behind a large one keeps it. So the threshold is fixed, and after much was freed the heap's free pages
in between are given back too (malloc_trim). Measured by loadtests/memory/held.py; docs/configuration.md has the figures.

An operator who sets MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES has decided otherwise; other C libraries have neither function.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Final

M_MMAP_THRESHOLD: Final = -3
MMAP_THRESHOLD: Final = 264 * 1024
"""Above what one read of a socket brings (256,000 bytes), which would otherwise cost a mapping each."""
TRIM_AFTER: Final = 32 * 1024 * 1024
"""Bytes given back to the budget after which the heap is trimmed."""
QUIET_TRIM_AFTER: Final = 1024 * 1024
"""The same while nothing is held: what is left over from a burst."""
TRIM_SECONDS: Final = 1.0
"""A trim holds the loop for 3 ms after 40 MB were freed, for 14 ms after 200 MB; so at most one in so long."""


class Allocator:
    """The process's allocator. trim: `malloc_trim`; None where there is none."""

    def __init__(self, trim: Callable[[int], int] | None) -> None:
        self._trim = trim
        self._due = 0.0

    def freed(self, amount: int, held: int, now: float) -> bool:
        """Trims the heap when enough was given back to the budget since the last time: `amount` bytes, while `held` are still taken.
        True when it did; False also where there is nothing to trim with."""
        if self._trim is None or now < self._due or amount < (TRIM_AFTER if held else QUIET_TRIM_AFTER):
            return False
        self._due = now + TRIM_SECONDS
        self._trim(0)
        return True


def tuned(environ: Mapping[str, str] = os.environ) -> Allocator:
    """Fixes the threshold for this process."""
    if "MALLOC_MMAP_THRESHOLD_" in environ or "GLIBC_TUNABLES" in environ:
        return Allocator(None)
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        return Allocator(library.malloc_trim)
    except (OSError, AttributeError):
        return Allocator(None)
