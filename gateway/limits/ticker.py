"""The time of limits: whole picoseconds of the monotonic clock, counted from the start of the process.

From there, and not from the start of the machine: compiled code counts fastest below 2^62, which is 53 days of picoseconds. Beyond that it
counts as exactly, and takes half as long again. Between processes times are whole nanoseconds of the machine's clock, which all share.
"""

from __future__ import annotations

from typing import Final

from gateway.core.clock import Clock, SystemClock

NANO: Final = 1000
"""Picoseconds in a nanosecond."""


class Ticker:
    """clock: the system's, unless another is given."""

    __slots__ = ("_epoch", "_monotonic", "_nanos")

    def __init__(self, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._monotonic, self._epoch = clock.monotonic, clock.epoch
        self._nanos = int(clock.epoch) * 1_000_000_000

    def now(self) -> int:
        return int((self._monotonic() - self._epoch) * 1_000_000_000_000.0)

    def now_in_nanos(self) -> int:
        """The same in whole nanoseconds: it stays the same when it is told and heard."""
        return int((self._monotonic() - self._epoch) * 1_000_000_000.0) * NANO

    def told(self, time: int) -> int:
        """A time as other processes are told of it."""
        return time // NANO + self._nanos

    def heard(self, nanos: int) -> int:
        """A time that another process has told."""
        return (nanos - self._nanos) * NANO
