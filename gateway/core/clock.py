"""Time and randomness, injected at the edges so that tests control them."""

from __future__ import annotations

import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """`monotonic()` in seconds for durations and deadlines; `wall()` in seconds since the epoch for records. epoch: a moment of `monotonic`
    before anything happened here, for those who count in small units from it; in whole seconds."""

    @property
    def epoch(self) -> float: ...

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clock. Bound C functions: no Python frame per call. epoch: the start of this process."""

    epoch = float(int(time.monotonic()))
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0, epoch: float = 0.0) -> None:
        self._monotonic, self._wall, self.epoch = monotonic, wall, epoch

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the clock: only the wall's time moves."""
        self._wall += seconds


class Entropy(Protocol):
    """Randomness: `bytes(n)` for secrets and identifiers, `uniform()` in [0, 1) for jitter."""

    def bytes(self, n: int) -> bytes: ...

    def uniform(self) -> float: ...


class SystemEntropy:
    def bytes(self, n: int) -> bytes:
        return os.urandom(n)

    def uniform(self) -> float:
        return random.random()
