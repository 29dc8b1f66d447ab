"""Deadlines of waits in a process that may have stood still: its machine was moved or frozen, or something held the event loop."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from gateway.core.pauses import MOST_REST_SECONDS, STALL

LEAST_REST_SECONDS: Final = 0.05
"""So that what arrived just before a deadline is read first: event loops look at deadlines before they read."""


class within:
    """`async with within(seconds)`: asyncio.timeout for waits on others, fair to them. A deadline that passed while this process stood
    still rests once: what was sent in time lies unread in a socket, and what had just begun gets its time again. It rests for as long as
    it is late, and after a pause for `seconds` at least. Raises TimeoutError."""

    __slots__ = ("_due", "_handle", "_limit", "_rested", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._rested = max(0.0, seconds), False

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._limit = await asyncio.timeout(None).__aenter__()
        self._due = loop.time() + self._seconds
        self._handle = loop.call_at(self._due, self._passed)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._handle.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def _passed(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._rested:
            self._limit.reschedule(now)
            return
        self._rested = True
        late = now - self._due
        least = self._seconds if late > STALL else LEAST_REST_SECONDS
        self._due = now + min(max(late, least), MOST_REST_SECONDS)
        self._handle = loop.call_at(self._due, self._passed)
