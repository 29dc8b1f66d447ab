"""Turns at something that takes only so many at a time, shared fairly among requests: a free one goes to the request that has the fewest.

So a request with very many questions has all turns that nobody else wants, and gives them back, one answer after another, as soon as
others come: none of them waits behind its questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Party:
    """A request. held: its turns; waiting: for more of them."""

    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class FairTurns:
    """most: turns at a time."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._levels: list[dict[Party, None]] = []
        """Who waits, by the number of their turns, in the order in which they came to have so many."""

    @asynccontextmanager
    async def turn(self, party: Party) -> AsyncIterator[None]:
        """Waits for a turn, without a deadline of its own, and gives it back at the end."""
        await self._take(party)
        try:
            yield
        finally:
            self._give(party)

    async def _take(self, party: Party) -> None:
        if self._free:
            self._free -= 1
            party.held += 1
            return
        turn = asyncio.get_running_loop().create_future()
        party.waiting.append(turn)
        self._level(party.held).setdefault(party)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come already
                self._give(party)
            elif turn in party.waiting:
                party.waiting.remove(turn)
                if not party.waiting:
                    self._level(party.held).pop(party)
            raise

    def _give(self, party: Party) -> None:
        if party.waiting:
            self._level(party.held).pop(party)
        party.held -= 1
        if party.waiting:
            self._level(party.held)[party] = None
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (level := next((level for level in self._levels if level), None)):
            party = next(iter(level))
            del level[party]
            turn = party.waiting.popleft()
            if not turn.done():  # its question was given up in this turn of the loop
                self._free -= 1
                party.held += 1
                turn.set_result(None)
            if party.waiting:
                self._level(party.held)[party] = None

    def _level(self, held: int) -> dict[Party, None]:
        while held >= len(self._levels):
            self._levels.append({})
        return self._levels[held]
