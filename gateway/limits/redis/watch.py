"""When the calls that are under way are looked at: at the deadline of the first of them, even if a later moment was meant before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class Watch:
    """later: the loop's call_later. now: microseconds of our own clock. look: looks at the calls, and then says `again`."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object], now: Callable[[], int], look: Callable[[], None]) -> None:
        self._later, self._now, self._look = later, now, look
        self._at = self._number = 0

    def by(self, deadline: int) -> None:
        """There is a call more, which has time until then, in microseconds of our own clock."""
        if not self._at or deadline < self._at:
            self.again(deadline)

    def again(self, at: int) -> None:
        """The next look is then; 0: no call is under way."""
        self._at = at
        self._number += 1
        if at:
            self._later(max(0, at - self._now()) / 1_000_000, partial(self._due, self._number))

    def _due(self, number: int) -> None:
        if number == self._number:
            self._look()
