"""What happens to requests while Redis is away: each limit's own `on_failure`.

closed: 503. open: not counted. local: this process has one part of the limit, as large as there are live processes; it goes on from where
the bucket was when it was last heard of. When Redis is back it is told what was admitted and has not drained away since.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import Overloaded
from gateway.limits import headers
from gateway.limits.exceeded import exceeded
from gateway.limits.redis.calls import Asked, Note
from gateway.limits.redis.held import Part, Settling, SharedHeld
from gateway.limits.redis.pot import Pot


class Outage:
    """The time that Redis is away. number: of the present or last one. parts: processes that share the limits, as known when it began."""

    def __init__(self, owner: Settling, parts: Callable[[], int]) -> None:
        self._owner, self._count = owner, parts
        self.number, self.parts, self.over = 0, 1, True
        self.decided = {"closed": 0, "open": 0, "local": 0}
        """Limits that were applied so, by mode."""
        self._used: dict[Pot, None] = {}

    def begin(self) -> None:
        if self.over:
            self.over = False
            self.number += 1
            self.parts = max(1, self._count())

    def end(self, now: int, redis_now: int) -> list[Note]:
        """What Redis must be told of. redis_now: the same moment by its clock."""
        self.over = True
        used, self._used = self._used, {}
        for pot in used:
            pot.follow(redis_now)
        found = [(pot, pot.carried(now, self.number, self.parts)) for pot in used]
        return [Note(pot, redis_now - (now - pot.drained_since(now)), -self.parts, amounts) for pot, amounts in found if any(amounts)]

    def pots(self) -> list[Pot]:
        """Of what Redis must be told at the end."""
        return list(self._used)

    def decide(self, asked: Asked, now: int) -> SharedHeld:
        """Takes from all buckets or none. Raises Overloaded, LimitExceeded."""
        fits, refused = [], False
        for pot, ticks in zip(asked.pots, asked.ticks, strict=True):
            shape = pot.shape
            self.decided[shape.on_failure] += 1
            if shape.on_failure == "closed" and shape.enforce:
                raise limits_unavailable()
            one = shape.on_failure != "local" or pot.fits(now, self.number, self.parts, ticks)
            fits.append(one)
            if not one and shape.enforce:
                refused = True
        counted = [pot for pot in asked.pots if pot.shape.on_failure == "local"]
        if refused:
            costs = [units for pot, units in zip(asked.pots, asked.units, strict=True) if pot.shape.on_failure == "local"]
            raise exceeded(counted, costs, 0)
        parts: list[Part] = []
        would = list(asked.would)
        for pot, units, ticks, one in zip(asked.pots, asked.units, asked.ticks, fits, strict=True):
            if not one:
                would.append(pot.shape.name)
                continue
            pot.in_use += 1
            if pot.shape.on_failure == "local":
                parts.append(Part(pot, units, pot.take_own(self.parts, ticks)))
                self._used[pot] = None
            else:
                parts.append(Part(pot, units, None))
        shown = headers.lines(counted, 0) if counted else b""
        return SharedHeld(self._owner, asked.amounts, parts, 0, self.number, shown, tuple(would))

    def settle(self, pot: Pot, amounts: list[int], now: int) -> None:
        """Ends a reservation of this outage."""
        pot.correct_own(now, self.number, self.parts, amounts)
        self._used[pot] = None


def limits_unavailable() -> Overloaded:
    return Overloaded("The limits of this key cannot be checked now.", code="limits_unavailable", retry_after=1.0)
