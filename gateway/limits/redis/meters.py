"""What a bucket in Redis counts, in whole numbers that the doubles of its Lua hold exactly.

Debts are counted in ticks. A rate says how many ticks one unit costs and how many drain away each microsecond; both are whole, and their
ratio is the rate exactly, or a little less where that would need numbers beyond 2^52. Of what time does not refill, a tick is a unit, or
several where there are too many of them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gateway.limits.meter import SECOND, Meter
from gateway.limits.windows import span

MOST: Final = 1 << 52
"""Of a debt, in ticks."""
ROOM: Final = 1 << 51
"""Of a burst, in ticks; the rest is for debts beyond it. A burst that takes years to refill may be cut for it."""
FINE: Final = 200
"""A rate is met to one part in so many at least."""
SLICES: Final = 60
"""Parts of a rolling window."""
NEVER: Final = 1 << 62
SESSION: Final = 86_400_000_000
"""Microseconds after which a session without a request has ended."""
PS: Final = SECOND // 1_000_000
"""Picoseconds in a microsecond."""


class Ticks:
    """unit: ticks that one unit costs; scale: units of one tick. drain: ticks a microsecond; 0 for what time does not refill, -1 for a
    rolling window. burst: the debt of what is used up. begin, end: of a window of the calendar, or the width of a slice and the length of
    a rolling window, in microseconds; 0 for others."""

    __slots__ = ("begin", "burst", "drain", "end", "meter", "scale", "unit")

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.unit = self.scale = 1
        self.drain = self.begin = self.end = 0
        if meter.frozen:
            self.scale = max(1, meter.burst // ROOM)
            self.burst = meter.burst // self.scale
            if meter.budget is not None and not isinstance(meter.budget.window, str):
                self.drain, self.end = -1, int(meter.budget.window.rolling * 1_000_000)
                self.begin = max(1_000_000, self.end // SLICES)
            return
        burst = Fraction(meter.burst_ps, meter.unit)
        wanted = Fraction(str(meter.rate)) / (Fraction(str(meter.per)) * 1_000_000)
        most = min(ROOM, max(int(ROOM // max(burst, Fraction(1))), int(FINE / wanted)))
        speed = _at_most(wanted, max(1, most))
        self.unit, self.drain = speed.denominator, speed.numerator
        self.burst = min(ROOM, int(burst * self.unit))

    @property
    def calendar(self) -> bool:
        """Whether it counts in a window of the calendar."""
        return self.meter.budget is not None and self.drain == 0

    def turn(self, now: int) -> int:
        """Goes to the window of the calendar in which this moment is, in microseconds since the epoch; returns its end."""
        budget = self.meter.budget
        assert budget is not None and isinstance(budget.window, str)
        begin, end = span(budget.window, budget.timezone, now / 1_000_000)
        self.begin, self.end = int(begin * 1_000_000), int(end * 1_000_000)
        return self.end

    def lapsed(self, elapsed: int) -> bool:
        """Whether what was used so many microseconds ago counts no more, of what drains not: its window has passed, its session ended. Not
        of windows of the calendar: their pots follow them (gateway.limits.redis.pot)."""
        if self.drain < 0:
            return elapsed >= self.begin + self.end
        return self.drain == 0 and self.meter.budget is None and elapsed >= SESSION

    def of(self, units: int) -> int:
        """So many units in ticks, rounded up; less than 0 for less."""
        if units < 0:
            return -self.of(-units)
        found = units * self.unit if self.scale == 1 else -(-units * self.unit // self.scale)
        return found if found < MOST else MOST

    def shown(self, ticks: int) -> int:
        """A debt as gateway.limits.bucket has it: picoseconds, rounded up, or units of what time does not refill."""
        if self.meter.frozen:
            return ticks * self.scale
        return -(-ticks * self.meter.unit // self.unit)


def _at_most(speed: Fraction, most: int) -> Fraction:
    """The speed, or the next lower one whose denominator is at most `most`."""
    found = speed.limit_denominator(most)
    if found > speed:
        factor = most // found.denominator
        found = Fraction(found.numerator * factor - 1, found.denominator * factor)
    return found if found > 0 else Fraction(1, most)
