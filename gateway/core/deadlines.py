"""Deadlines of waits in a process that may have stood still: its machine was moved or frozen, or something held the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from gateway.core.pauses import MOST_REST_SECONDS, STALL

LEAST_REST_SECONDS: Final = 0.05
"""So that what arrived just before a deadline is read first: event loops look at deadlines before they read."""


def rest(late: float, seconds: float) -> float:
    """Seconds for which a deadline of so many rests that was looked at so late."""
    return min(max(late, seconds if late > STALL else LEAST_REST_SECONDS), MOST_REST_SECONDS)


class Deadline:
    """Calls `passed` after so many seconds unless it is cancelled. It is fair to others: a deadline that passed while this process stood
    still rests once, as what was sent in time lies unread in a socket, and what had just begun gets its time again. It rests for as long
    as it is late, and after a pause for `seconds` at least. It is made where an event loop runs."""

    __slots__ = ("_due", "_handle", "_loop", "_passed", "_rested", "_seconds")

    def __init__(self, seconds: float, passed: Callable[[], object]) -> None:
        self._seconds, self._passed, self._rested = max(0.0, seconds), passed, False
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + self._seconds
        self._handle = self._loop.call_at(self._due, self._over)

    def cancel(self) -> None:
        self._handle.cancel()

    def _over(self) -> None:
        if self._rested:
            self._passed()
            return
        self._rested = True
        now = self._loop.time()
        late = now - self._due
        self._due = now + rest(late, self._seconds)
        self._handle = self._loop.call_at(self._due, self._over)


class within:
    """`async with within(seconds)`: asyncio.timeout for waits on others, with a Deadline. Raises TimeoutError."""

    __slots__ = ("_deadline", "_limit", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._limit = await asyncio.timeout(None).__aenter__()
        self._deadline = Deadline(self._seconds, self._passed)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._deadline.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def _passed(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time())


class Patience:
    """Seconds for several waits on others, one after the other, each `within(patience.left())`. None of them ends later than a busy process
    may be late, so whoever asks later than that stood still meanwhile: the time begins again, once."""

    __slots__ = ("_again", "_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self._again = seconds, False
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; not above 0.0: it is over."""
        now = time.monotonic()
        if now - self._until > STALL and not self._again:
            self._again, self._until = True, now + self.seconds
        return self._until - now
