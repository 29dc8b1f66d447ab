"""What all exchanges of one data plane share: the Snapshot in force, those under way, coarse time, and one sweep for every deadline."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, Protocol

from gateway.core.errors import GatehouseError
from gateway.core.snapshot import Snapshot
from gateway.core.tasks import TaskOwner
from gateway.pipeline.memory import MemoryBudget
from gateway.telemetry.metrics import Metrics


class UnderWay(Protocol):
    """What the plane knows of an exchange."""

    wake_at: float

    def expired(self, now: float) -> None: ...

    def cancel(self, error: GatehouseError) -> None: ...


SWEEP_SECONDS: Final = 0.05
"""Deadlines are checked this often; a `call_later` for each wait would cost more than the wait."""
SAMPLE_EVERY: Final = 64
"""One exchange in so many has its phases timed one by one."""


class DataPlane:
    """The state of one data worker. `now` is monotonic time, at most one sweep old; `date` the value of the Date header.

    listeners: called at each sweep, after the exchanges. first_denial(peer, code, now): whether a denial of an unknown caller is
    recorded by itself; further ones of the same second are counted together.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.tasks = TaskOwner("data plane")
        self.exchanges: set[UnderWay] = set()
        self.snapshot: Snapshot | None = None
        self.draining = False
        self.memory = MemoryBudget()
        self.now = time.monotonic()
        self.date = formatdate(usegmt=True).encode()
        self._date_due = 0.0
        self._identifier = os.urandom(8).hex().encode()
        self._count = 0
        self._idle: asyncio.Event | None = None
        self.listeners: list[Callable[[], None]] = []
        self.first_denial: Callable[[str, str, float], bool] = lambda peer, code, now: True
        metrics.in_flight = self.exchanges.__len__

    def current(self) -> Snapshot:
        """The Snapshot in force, for a request that starts now."""
        if self.snapshot is None:
            raise RuntimeError("the data plane has no snapshot yet")
        return self.snapshot

    def next_id(self) -> bytes:
        """A request identifier: 64 random bits of this process and a count."""
        self._count += 1
        return b"req-%b-%d" % (self._identifier, self._count)

    def sampled(self) -> bool:
        """Whether the exchange that has just got its identifier is one whose phases are timed."""
        return self._count % SAMPLE_EVERY == 0

    def sweep(self) -> None:
        """Ends what is past its deadline. Called every SWEEP_SECONDS by the owner of the listener."""
        self.now = now = time.monotonic()
        if now >= self._date_due:
            self.date, self._date_due = formatdate(usegmt=True).encode(), now + 1.0
        for exchange in [x for x in self.exchanges if x.wake_at <= now]:
            exchange.expired(now)
        for listener in self.listeners:
            listener()

    def settled(self, exchange: UnderWay) -> None:
        """An exchange has ended."""
        self.exchanges.discard(exchange)
        if self._idle is not None and not self.exchanges:
            self._idle.set()

    async def drained(self, timeout: float) -> bool:
        """Waits until no exchange is under way, at most `timeout` seconds; says whether that came."""
        if not self.exchanges:
            return True
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True
