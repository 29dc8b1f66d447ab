"""Load shedding: refuses work before the process suffers, the least important class first.

`Shedding` is pure: it turns the event loop's lag and the share of memory in use into a level (0 nothing, 1 batch, 2 standard too,
3 everything). It rises when three observations in a row agree, so that one long pause sheds nothing, and falls one level after a second of
calm. Lag right after the start does not count. `PressureMonitor` measures ten times a second and tells the registry.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

LAGS = (0.2, 0.5, 1.0)
"""Lag of the event loop in seconds, for levels 1 to 3."""
MEMORY = (0.85, 0.92, 0.97)
"""Share of the memory limit in use, for levels 1 to 3."""
INTERVAL = 0.1
WARM_UP = 30
"""Observations (three seconds) after the start in which lag does not count: a process that has just started is busy with itself."""
_AGREE = 3
_CALM = 10


class Shedding:
    """Turns observations into levels, with hysteresis. warm_up: the number of first observations in which only memory counts."""

    def __init__(self, lags: tuple[float, float, float] = LAGS, memory: tuple[float, float, float] = MEMORY, warm_up: int = 0) -> None:
        self.level = 0
        self._lags, self._memory = lags, memory
        self._warm_up = warm_up
        self._recent = [0] * _AGREE
        self._calm = 0

    def observe(self, lag: float, memory: float) -> int:
        """Takes one observation (lag in seconds; memory as a share of the limit, 0.0 without one) and returns the level from now on."""
        if self._warm_up:
            self._warm_up -= 1
            lag = 0.0
        seen = max(sum(lag >= limit for limit in self._lags), sum(memory >= limit for limit in self._memory))
        self._recent = [*self._recent[1:], seen]
        sustained = min(self._recent)
        if sustained > self.level:
            self.level, self._calm = sustained, 0
        elif seen >= self.level:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm >= _CALM:
                self.level, self._calm = self.level - 1, 0
        return self.level


class PressureMonitor:
    """Measures this process and reports each change of the level.

    memory_limit: bytes; None takes the control group's limit. Without either, memory does not count.
    """

    def __init__(self, on_level: Callable[[int], None], memory_limit: int | None = None, shedding: Shedding | None = None) -> None:
        self._on_level = on_level
        self._shedding = shedding or Shedding(warm_up=WARM_UP)
        self._limit = memory_limit or cgroup_limit()
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Needs a running loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + INTERVAL
        self._handle = loop.call_at(self._due, self._measure, loop)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        before = self._shedding.level
        level = self._shedding.observe(max(0.0, now - self._due), resident_bytes() / self._limit if self._limit else 0.0)
        if level != before:
            self._on_level(level)
        self._due = now + INTERVAL
        self._handle = loop.call_at(self._due, self._measure, loop)


def resident_bytes() -> int:
    """This process's resident memory; 0 where /proc does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def cgroup_limit(path: str = "/sys/fs/cgroup/memory.max") -> int | None:
    """The control group's memory limit in bytes, or None."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 0 else None
