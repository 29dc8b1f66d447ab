"""Pauses of this process: it was stopped, or its machine stood still or was moved, and the clocks went on.

What others did not do meanwhile is not held against them: whoever judges others by the time that has passed asks here how much of it this
process has slept. It reads what has come first, and gives the others a moment to say more.

Who looks at deadlines again and again has a `Pauses`. For a single wait on others there is gateway.core.deadlines.within, and `slept` where
what was late is not asked again.
"""

from __future__ import annotations

from typing import Final

STALL: Final = 1.0
"""Seconds by which a busy process may be late. What is beyond was a pause: the machine was moved or frozen, or something held the loop."""
MOST_REST_SECONDS: Final = 15.0
"""After a pause no deadline is enforced for as long as it was, but not for longer than this."""
LONGEST_REST_SECONDS: Final = 45.0
"""With what further pauses during a rest add to it."""


class Pauses:
    """The pauses of a process that looks at something every `period` seconds. now: monotonic seconds, as below.

    After a pause it rests: what arrived meanwhile lies unread in its sockets, and what the other side had to send twice comes as much later
    (RFC 6298: a retransmission waits twice as long each time). A pause during a rest prolongs it. After a rest, at least one look judges
    before another one begins: so a process that is late all the time still enforces its deadlines.
    """

    __slots__ = ("_judged", "_last", "_most", "_period", "_until")

    def __init__(self, period: float, now: float) -> None:
        self._period, self._last = period, now
        self._until, self._most, self._judged = 0.0, 0.0, True

    def since(self, now: float) -> float:
        """Looks: seconds that it stood still since the last look, as far as they count; 0.0 where it did not."""
        last, self._last = self._last, now
        late = now - last - self._period
        if late >= STALL:
            return self._paused(last, now, late)
        if now >= self._until:
            self._judged = True
        return 0.0

    def resting(self, now: float) -> bool:
        """Whether what is overdue by the last look is to be let be."""
        return now < self._until

    def begin(self, now: float) -> None:
        """It has not looked for a while, because there was nothing to look at: the next look is due in `period` seconds."""
        self._last = now

    def _paused(self, last: float, now: float, late: float) -> float:
        before, rest = self._until, late if late < MOST_REST_SECONDS else MOST_REST_SECONDS
        if last < before:
            left = before - last
            until = now + (left if left > rest else rest)
            self._until = until if until < self._most else self._most
        elif self._judged:
            self._until, self._most = now + rest, now + LONGEST_REST_SECONDS
        self._judged = now >= self._until
        return late if self._until > before and now < self._until else 0.0


def slept(begun: float, most: float, now: float) -> float:
    """Seconds that this process stood still in something that was begun then and takes `most` seconds at most; 0.0 where it did not."""
    late = now - begun - most
    return late if late > STALL else 0.0
