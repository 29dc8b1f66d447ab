"""Decides whether requests may rely on the journal, or must wait until their records are in the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.audit.fastpath import FastPath
from gateway.audit.fault import OPEN, Fault
from gateway.audit.writer import ChainWriter
from gateway.core.clock import Clock

PERIOD: Final = 0.05
"""Seconds for which a decision holds."""
STEADY: Final = 100
"""Records in one PERIOD from which on a request need not wait: 1,000 requests a second. With fewer it gains nothing."""
BUSY: Final = 0.65
"""Share of its core from which on throughput counts for more than one request's wait: requests that wait for a batch and go on together
cost a fifth less work than those that go on one by one."""


class Reliance:
    """Looks at the log each PERIOD while batches are written, and opens the fast path for the next one when STEADY records were written,
    they left room on the disk, nothing failed and the loop is not BUSY. So requests that meet a disk that is full, fails or hangs wait
    for it, except those of one PERIOD, whose records are kept.

    cpu: seconds that the loop's thread has used. steady: STEADY, or less in tests.
    """

    def __init__(self, path: FastPath, writer: ChainWriter, fault: Fault, clock: Clock, cpu: Callable[[], float], steady: int) -> None:
        self._path, self._writer, self._fault, self._clock, self._cpu, self._steady = path, writer, fault, clock, cpu, steady
        self._timer: asyncio.TimerHandle | None = None
        self._written = 0
        self._since = self._used = 0.0
        self._ended = False

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """A batch was written: the log is looked at from now on."""
        if self._timer is None and self._path.usable and not self._ended:
            self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._written, self._since, self._used = self._writer.written, self._clock.monotonic(), self._cpu()
        self._timer = loop.call_later(PERIOD, self._decide, loop)

    def _decide(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        written = self._writer.written - self._written
        busy = self._cpu() - self._used > BUSY * (self._clock.monotonic() - self._since)
        sound = self._writer.roomy and self._fault.state == OPEN
        self._path.open = sound and not busy and written >= self._steady
        if written:
            self._begin(loop)

    def end(self) -> None:
        """No decision opens the fast path again."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
