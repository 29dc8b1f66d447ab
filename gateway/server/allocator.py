"""Gives memory back to the system after large bodies and answers.

glibc serves blocks beyond a threshold from mappings of their own, which go back the moment they are freed. But each such block that is
freed raises the threshold (to 32 MiB at most), so that after the first large body all others come from the heap, which shrinks only from
its end: one small block that stays behind a large one keeps it. So the threshold is fixed, and after much was freed the heap's free pages
in between are given back too (malloc_trim). Measured by loadtests/memory/held.py; docs/configuration.md has the figures.

Small blocks leave holes, too: each peak leaves some, the next one does not fill all of them, and the heap creeps for hours though nothing
is kept. So it is also trimmed now and then, whatever was freed (`trim`).

An operator who sets MALLOC_MMAP_THRESHOLD_, MALLOC_ARENA_MAX or the same in GLIBC_TUNABLES has decided otherwise; other C libraries have
none of these functions.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
ARENAS: Final = 2
"""Heaps of the process: the main one, and one that all its threads share. By default glibc gives each of a dozen threads its own (eight for
each processor at most), and what is freed in one is of no use to the others: they grew for hours (loadtests/profiles/README.md)."""
MMAP_THRESHOLD: Final = 264 * 1024
"""Above what one read of a socket brings (256,000 bytes), which would otherwise cost a mapping each."""
TRIM_AFTER: Final = 32 * 1024 * 1024
"""Bytes given back to the budget after which the heap is trimmed."""
QUIET_TRIM_AFTER: Final = 1024 * 1024
"""The same while nothing is held: what is left over from a burst."""
QUIET_SECONDS: Final = 1.0
"""Between two trims of what bursts leave over."""
TOP: Final = 128 * 1024
"""Bytes at the heap's end that a trim at rest leaves: glibc's own step of growth (M_TOP_PAD)."""
SHARE: Final = 0.05
"""Most of the loop's time that trims take: the next one waits so much longer than the last one took.

A trim takes 1 to 3 ms after 40 MB were freed and 8 to 20 ms after 200 MB: many small ones hold the loop for less than a rare large one.
In a thread it would hold the loop for as long (12 ms after 200 MB, 65 ms after 600 MB): it locks the heap that the loop allocates from.
"""


class Allocator:
    """The process's allocator. trim: `malloc_trim`; None where there is none."""

    def __init__(self, trim: Callable[[int], int] | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._trim, self._clock = trim, clock
        self._due = self._quiet_due = 0.0

    def freed(self, amount: int, held: int, now: float) -> bool:
        """Trims the heap when enough was given back to the budget since the last time: `amount` bytes, while `held` are still taken.
        True when it did; False also where there is nothing to trim with."""
        if self._trim is None or now < self._due:
            return False
        if amount < TRIM_AFTER and (held or amount < QUIET_TRIM_AFTER or now < self._quiet_due):
            return False
        began = self._clock()
        self._trim(0)
        self._due = now + (self._clock() - began) / SHARE
        self._quiet_due = now + QUIET_SECONDS
        return True

    def trim(self) -> None:
        """Gives every free page back, except for `TOP` bytes that the next requests will want. Takes 0.2 ms where little was freed, 3 ms
        after a reload of 10,000 endpoints and up to 19 ms after one of 100,000."""
        if self._trim is not None:
            self._trim(TOP)


def tunables(environ: Mapping[str, str]) -> frozenset[str]:
    """Names of what GLIBC_TUNABLES sets: `NAME=VALUE`, separated by colons (glibc manual, "Tunables")."""
    return frozenset(pair.partition("=")[0] for pair in environ.get("GLIBC_TUNABLES", "").split(":"))


def few_arenas(environ: Mapping[str, str] = os.environ) -> bool:
    """Bounds the number of heaps of this process, before it has threads; whether it did."""
    if "MALLOC_ARENA_MAX" in environ or "glibc.malloc.arena_max" in tunables(environ):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS))
    except (OSError, AttributeError):
        return False


def tuned(environ: Mapping[str, str] = os.environ) -> Allocator:
    """Fixes the threshold for this process."""
    if "MALLOC_MMAP_THRESHOLD_" in environ or "glibc.malloc.mmap_threshold" in tunables(environ):
        return Allocator(None)
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        return Allocator(library.malloc_trim)
    except (OSError, AttributeError):
        return Allocator(None)
