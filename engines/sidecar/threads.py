"""How many threads compute a model."""

from __future__ import annotations

import os

BYTES_A_THREAD = 16 * 1024 * 1024
"""Bytes of weights for each thread: with less, a further thread costs more in barriers than it gains."""


def thread_count(weights: int) -> int:
    """Threads for a model of so many bytes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(cores, weights // BYTES_A_THREAD))
