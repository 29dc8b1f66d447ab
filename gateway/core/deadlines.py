"""Deadlines that allow for pauses of this process: its machine was moved or frozen, or something held up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from gateway.core.pauses import MOST_REST_SECONDS, STALL

LEAST_REST_SECONDS: Final = 0.05
"""A deadline rests at least so long. Event loops run timers before they read sockets, and what arrived in time should be read first."""


def rest(late: float, seconds: float) -> float:
    """How many more seconds to wait when a deadline of `seconds` fires `late` seconds too late."""
    return min(max(late, seconds if late > STALL else LEAST_REST_SECONDS), MOST_REST_SECONDS)


class Deadline:
    """Calls `passed` after so many seconds unless it is cancelled. To be made where an event loop runs.

    A deadline that passed while this process stood still is extended once, because an answer that was sent in time may lie unread in a
    socket. It is extended by as much as it is late, and after a pause of the process by at least `seconds`, so that what had just begun
    gets its full time."""

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
        self._deadline = Deadline(self._seconds, self.end)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._deadline.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def end(self) -> None:
        """The time is over now."""
        with suppress(RuntimeError):  # it has passed just now
            self._limit.reschedule(asyncio.get_running_loop().time())


class Patience:
    """A time for several waits in a row, each of them `within(patience.left())`. A wait can overrun only by as much as a busy process is
    late; a larger overrun means that this process stood still, and the time then starts again, once."""

    __slots__ = ("_again", "_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self._again = seconds, False
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; 0.0 or less once the time is over."""
        now = time.monotonic()
        if now - self._until > STALL and not self._again:
            self._again, self._until = True, now + self.seconds
        return self._until - now
