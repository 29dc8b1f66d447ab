"""What stands behind a process's memory: answers on disk or in Redis, which other processes see and which outlive this one.

A request waits for it for a few milliseconds at most. While an answer is overdue, or after an error, nobody asks it, so that one that hangs
or is away costs the first few requests once and the others nothing; without it each look-up is a miss. Nothing here raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Literal, NamedTuple, Protocol

from msgspec import Struct

from gateway.caches.place import Place
from gateway.caches.sealing import Sealer, Sealers
from gateway.core.caching import Looked
from gateway.core.waiting import Signal

log = logging.getLogger("gatehouse.caches")
TierName = Literal["disk", "redis"]
PAUSE: Final = 1.0
"""Seconds for which nobody asks after an error."""
SECOND_LOOK: Final = 0.001
"""An event loop that was busy itself finds the time over before it has read what is there: it reads once more."""
MOST_WRITING: Final = 32 * 1024 * 1024
"""Bytes of answers that may be on their way at once; what comes on top is not kept."""
MOST_ASKED: Final = 1024
"""Look-ups under way at once."""
INLINE: Final = 64 * 1024
"""Bytes that are opened on the loop; larger ones in a thread."""
Failed = Callable[[str], None]


class BehindCounts(Struct, kw_only=True):
    """Counted since the process began. hits, misses: of look-ups that were answered. late: not answered in time. skipped: not asked, as it
    was away, overdue or failing, or the tenant's key was not at hand. foreign: found, but not opened: changed, moved, purged, expired,
    or of a key that is gone. stored, refused: answers that were kept, and those that came from before a purge or were too large.
    dropped: not kept because too many were on their way, or it failed. evicted: taken away for want of room. failed: errors."""

    hits: int = 0
    misses: int = 0
    late: int = 0
    skipped: int = 0
    foreign: int = 0
    stored: int = 0
    refused: int = 0
    dropped: int = 0
    evicted: int = 0
    failed: int = 0


class Stored(NamedTuple):
    """kept: whether the answer was. evicted: how many others went for it."""

    kept: bool
    evicted: int = 0


class Held(NamedTuple):
    """What is held now, by all who share it."""

    entries: int
    bytes: int


class Backend(Protocol):
    """Where the sealed answers lie. Called on the loop; each callback comes on the loop once, at any time, with the result or with what
    went wrong as text. None where it cannot be asked now: then no callback comes."""

    def ready(self) -> bool: ...

    def find(self, place: Place, done: Callable[[tuple[bytes, bytes | None] | str], None]) -> None:
        """The marks in force, 8 bytes each, and what lies there."""
        ...

    def store(self, place: Place, sealed: bytes, marks: bytes, ttl: float, done: Callable[[Stored | str], None]) -> None: ...

    async def purge(self, model: str | None, tenant: str | None, key: bytes | None, *, dry_run: bool) -> int:
        """How many answers were, or would be, forgotten. From its first moment on nothing of what is meant is found. Raises
        CacheUnavailable."""
        ...

    async def held(self) -> Held:
        """Raises CacheUnavailable."""
        ...


class CacheUnavailable(Exception):
    """It cannot be asked now; the text says why."""


class Behind:
    """name: for metrics. patience: seconds that a request waits. largest: bytes of a value. wall: seconds since the epoch."""

    def __init__(
        self,
        name: TierName,
        backend: Backend,
        sealers: Sealers,
        threads: Executor,
        wall: Callable[[], float],
        *,
        patience: float,
        largest: int,
    ) -> None:
        self.name, self.backend, self._sealers, self._threads, self._wall = name, backend, sealers, threads, wall
        self._patience, self._largest = patience, largest
        self._loop = asyncio.get_running_loop()
        self.counted = BehindCounts()
        self._overdue = self._asked = self._writing = 0
        self._paused = self._unwritable = 0.0
        self._said = self._refuses = False

    @property
    def up(self) -> bool:
        """Whether it is asked now."""
        return not self._overdue and self.backend.ready() and self._loop.time() >= self._paused

    def forget(self, tenant: str | None) -> None:
        """The keys of a tenant, or of all, are not what they were."""
        self._sealers.forget(tenant)

    # --- looking

    def find(self, place: Place) -> Signal[Looked | None] | None:
        """None, or a Signal with None, where it cannot be asked or does not answer in time; it never fails."""
        if not self.up or self._asked >= MOST_ASKED:
            self.counted.skipped += 1
            return None
        look = _Look(self, place, self._sealers.of(place.tenant))
        self._asked += 1
        look.timer = self._loop.call_later(self._patience, look.time_over)
        self.backend.find(place, look.replied)
        return look.signal

    def ended(self, late: bool) -> None:
        self._asked -= 1
        if late and self._overdue:
            self._overdue -= 1
            if not self._overdue:
                self.works()

    def overdue(self) -> None:
        self.counted.late += 1
        self._overdue += 1
        self.fails("it does not answer in time", pause=False)

    def lost(self) -> None:
        """Nothing that was asked will be answered."""
        self._overdue = 0

    def opened(self, look: _Look, marks: bytes, sealed: bytes) -> None:
        """Opens what was found, in a thread where it is large. Without the tenant's key there are the marks: by the time when an engine has
        answered it may be at hand."""
        sealer = look.sealer or self._sealers.of(look.place.tenant)
        if sealer is None:
            self.counted.skipped += 1
            look.signal.set(Looked(marks))
            return
        if len(sealed) <= INLINE:
            self._give(look, marks, sealer.open(sealed, look.place, marks, self._largest))
            return

        def given(value: tuple[bytes, float] | None) -> None:
            self._give(look, marks, value)

        def work() -> None:
            value = sealer.open(sealed, look.place, marks, self._largest)
            self._loop.call_soon_threadsafe(given, value)

        if not self._in_thread(work):
            given(None)

    def _give(self, look: _Look, marks: bytes, value: tuple[bytes, float] | None) -> None:
        if value is None:
            self.counted.foreign += 1
            look.signal.set(Looked(marks))
        else:
            self.counted.hits += 1
            look.signal.set(Looked(marks, value[0], value[1] - self._wall()))

    # --- keeping

    def store(self, place: Place, value: bytes, marks: bytes, ttl: float, compress_above: int) -> None:
        """marks: from before the engine was asked."""
        if len(value) > self._largest:
            self.counted.refused += 1
            return
        sealer = self._sealers.of(place.tenant) if self.up and self._loop.time() >= self._unwritable else None
        if sealer is None or self._writing + len(value) > MOST_WRITING:
            self.counted.dropped += 1
            return
        size = len(value)
        self._writing += size
        expires = self._wall() + ttl

        def done(result: Stored | str) -> None:
            self._writing -= size
            if isinstance(result, str):
                self.counted.dropped += 1
                self._unwritable, self._refuses = self._loop.time() + PAUSE, True
                self.fails(result, pause=False)
            else:
                self._refuses = False
                self.works()
                self.counted.evicted += result.evicted
                if result.kept:
                    self.counted.stored += 1
                else:
                    self.counted.refused += 1

        def send(sealed: bytes) -> None:
            self.backend.store(place, sealed, marks, ttl, done)

        def work() -> None:
            sealed = sealer.seal(value, place, marks, expires, compress_above)
            self._loop.call_soon_threadsafe(send, sealed)

        if not self._in_thread(work):
            done("the process ends")

    def _in_thread(self, work: Callable[[], None]) -> bool:
        try:
            self._threads.submit(work)
        except RuntimeError:  # the threads have ended
            return False
        return True

    # --- what is said

    def fails(self, why: str, *, pause: bool = True) -> None:
        if pause:
            self._paused = self._loop.time() + PAUSE
        self.counted.failed += 1
        if not self._said:
            self._said = True
            log.warning("answers cannot be kept in %s at the moment (%s): engines are asked", _NAMES[self.name], why)

    def works(self) -> None:
        """Of one that keeps nothing (a full one, or one that only reads) that is said when it keeps something again."""
        if self._said and not self._refuses and self.up:
            self._said = False
            log.info("answers are kept in %s again", _NAMES[self.name])


class _Look:
    """One look-up under way. signal: what its request waits for."""

    __slots__ = ("_behind", "_late", "_over", "place", "sealer", "signal", "timer")

    def __init__(self, behind: Behind, place: Place, sealer: Sealer | None) -> None:
        self._behind, self.place, self.sealer = behind, place, sealer
        self.signal: Signal[Looked | None] = Signal()
        self.timer: asyncio.TimerHandle | None = None
        self._late = self._over = False

    def time_over(self) -> None:
        if not self._over:
            self._over = True
            self.timer = asyncio.get_running_loop().call_later(SECOND_LOOK, self.time_over)
            return
        self.timer, self._late = None, True
        self._behind.overdue()
        self.signal.set(None)

    def replied(self, reply: tuple[bytes, bytes | None] | str) -> None:
        behind = self._behind
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        behind.ended(self._late)
        if isinstance(reply, str):
            behind.fails(reply)
            self.signal.set(None)
            return
        if self._late:
            return
        behind.works()
        marks, sealed = reply
        if sealed is None:
            behind.counted.misses += 1
            self.signal.set(Looked(marks))
        else:
            behind.opened(self, marks, sealed)


_NAMES: Final = {"disk": "the state directory", "redis": "redis"}
