"""Pauses of this process: it was stopped, or its machine stood still or was moved, and the clocks went on.

What others did not do meanwhile is not held against them: whoever judges others by the time that has passed asks here how much of it this
process has slept. It reads what has come first, and gives the others a moment to say more.
"""

from __future__ import annotations

from typing import Final

STALL: Final = 1.0
"""Seconds by which a busy process may be late. What is beyond was a pause."""


AGAIN: Final = 60.0
"""Seconds from the end of one pause to the end of the next that counts: a process that is late all the time must still judge."""


class Pauses:
    """How long this process stood still between two rounds of what it does every `period` seconds. now: monotonic seconds, as below."""

    __slots__ = ("_last", "_next", "_period")

    def __init__(self, period: float, now: float) -> None:
        self._period, self._last, self._next = period, now, now

    def since(self, now: float) -> float:
        """Seconds that it stood still since it was asked last; 0.0 where it did not."""
        last, self._last = self._last, now
        stood = slept(last, self._period, now) if now >= self._next else 0.0
        if stood:
            self._next = now + AGAIN
        return stood


def slept(begun: float, most: float, now: float) -> float:
    """Seconds that this process stood still in something that was begun then and takes `most` seconds at most; 0.0 where it did not."""
    late = now - begun - most
    return late if late > STALL else 0.0
