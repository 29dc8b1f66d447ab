"""State shared by a data plane's exchanges: the Snapshot in force, the exchanges, coarse time, and one sweep for all deadlines."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, Protocol

from gateway.core.approvals import ApprovalDesk
from gateway.core.conversations import ConversationDesk
from gateway.core.errors import GatehouseError
from gateway.core.pauses import STALL, Pauses
from gateway.core.slices import Turns
from gateway.core.snapshot import Snapshot
from gateway.core.standing import Standing
from gateway.core.tasks import TaskOwner
from gateway.pipeline.memory import MemoryBudget
from gateway.pipeline.named import NamedCallers
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tracing import Sampler


class Refusals(Protocol):
    """Counts connections that are closed before a request."""

    def count(self, listener: str, reason: str, address: str) -> None: ...


class _Uncounted:
    def count(self, listener: str, reason: str, address: str) -> None:
        """Not counted."""


class UnderWay(Protocol):
    """The plane's view of an exchange."""

    wake_at: float

    def expired(self, now: float) -> None: ...

    def cancel(self, error: GatehouseError) -> None: ...

    def reconsider(self) -> None: ...


SWEEP_SECONDS: Final = 0.05
"""How often deadlines are checked; a `call_later` for each wait would cost more than the wait."""
SAMPLE_EVERY: Final = 64
"""One exchange in this many has its phases timed."""


_BLOCK: Final = 4096
_TWO: Final = tuple([b"%02x" % number for number in range(256)])
_ONE: Final = tuple([b"%x" % number for number in range(16)])
"""The last three digits of identifiers. To format a number costs more than all else of one, and one table of all of them would be 200 KB
that each request reads another part of."""


class DataPlane:
    """The state of one data worker. `now` is monotonic time, at most one sweep old; `date` the value of the Date header.

    closing: each connection closes after its next answer, which says so. draining: not ready for traffic any more. standing: who and what
    is stopped. resting: no deadline is enforced, because this process stood still. listeners: called at each sweep, after the exchanges.
    first_denial(peer, code, now): whether the denial of an unknown caller gets a record of its own; further ones in the same second are
    only counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.tasks = TaskOwner("data plane")
        self.turns = Turns()
        self.exchanges: set[UnderWay] = set()
        self.snapshot: Snapshot | None = None
        self.closing = self.draining = False
        self.memory = MemoryBudget()
        self.named = NamedCallers()
        self.refused: Refusals = _Uncounted()
        self.standing = Standing()
        self.approvals: ApprovalDesk | None = None
        """Where answers are kept that need an approval; set by the composition root."""
        self.conversations: ConversationDesk | None = None
        """Where answers are kept that later requests go on with; set by the composition root."""
        self.upload_bytes, self.upload_seconds = 0, 0.0
        """Bounds of a file that a client sends (gateway.server.files_and_batches); 0 where none is taken."""
        self.texts: Any = None
        """Whose texts are kept (gateway.pipeline.capture.Texts); None where nothing is encrypted."""
        self.records: Any = None
        """Has the keys of records at hand (gateway.pipeline.capture.RecordKeys); None where records are not encrypted as a whole."""
        self.sampler: Sampler | None = None
        """Decides which requests are traced; None where nothing is."""
        self.observer: Any = None
        """Is told of each request that has a record (gateway.telemetry.observer.Observer); None where nobody wants to know."""
        self.counts_phases = False
        """Whether the phases of the exchange that begins are counted."""
        self.standing.changed.append(self._reconsider)
        self.now = time.monotonic()
        self.date = formatdate(usegmt=True).encode()
        self._date_due = 0.0
        self.resting = False
        self.paused = 0.0
        """When the last pause of this process was noticed; what began before is not measured."""
        self._pauses = Pauses(SWEEP_SECONDS, self.now)
        self._identifier = str(uuid.uuid4())[:24].encode()
        self._count = self._begun = 0
        self._block = self._identifier + b"0" * 9
        """The beginning of the identifiers of the next _BLOCK exchanges."""
        self._idle: asyncio.Event | None = None
        self.listeners: list[Callable[[], None]] = []
        self.first_denial: Callable[[str, str, float], bool] = lambda peer, code, now: True
        metrics.in_flight = self.exchanges.__len__
        metrics.held_bytes = lambda: self.memory.held

    def stood(self, then: float) -> bool:
        """Whether this process stood still since `paused` had that value, also where no sweep has noticed it yet."""
        return self.paused != then or time.monotonic() - self.now > SWEEP_SECONDS + STALL

    def current(self) -> Snapshot:
        """The Snapshot in force, for a request that starts now."""
        if self.snapshot is None:
            raise RuntimeError("the data plane has no snapshot yet")
        return self.snapshot

    def next_id(self) -> bytes:
        """A request identifier: 74 random bits that name this process, and a count, in the form of a UUID (RFC 9562, version 4). Some
        engines (llama_cpp.server) refuse a request whose `x-request-id` is none."""
        self._count += 1
        last = self._count % _BLOCK
        if last == 0:
            self._block = b"%b%09x" % (self._identifier, self._count // _BLOCK)
        return b"%b%b%b" % (self._block, _TWO[last >> 4], _ONE[last & 15])

    def timed(self) -> bool:
        """Whether the exchange that begins now may need a clock (gateway.pipeline.phases.clock_of). Counts exchanges, as their identifiers
        may be the clients'."""
        self._begun += 1
        self.counts_phases = self._begun % SAMPLE_EVERY == 0
        return self.counts_phases or self.sampler is not None

    def sweep(self) -> None:
        """Ends exchanges that are past their deadline. Called every SWEEP_SECONDS by the owner of the listener.

        A process that stood still enforces no deadline for a while (gateway.core.pauses).
        """
        now = time.monotonic()
        self.now = now
        if self._pauses.since(now):
            self.paused = now
        self.resting = self._pauses.resting(now)
        if now >= self._date_due:
            self.date, self._date_due = formatdate(usegmt=True).encode(), now + 1.0
        if not self.resting:
            for exchange in [x for x in self.exchanges if x.wake_at <= now]:
                exchange.expired(now)
        for listener in self.listeners:
            listener()

    def _reconsider(self, source: str) -> None:
        """Something was stopped, or may go on."""
        if self.standing.active:
            for exchange in list(self.exchanges):
                exchange.reconsider()

    def settled(self, exchange: UnderWay) -> None:
        """An exchange has ended."""
        self.exchanges.discard(exchange)
        if self._idle is not None and not self.exchanges:
            self._idle.set()

    async def drained(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until no exchange is under way; returns whether that happened."""
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
