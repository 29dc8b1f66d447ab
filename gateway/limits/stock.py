"""What a process has in hand of an amount that the store counts: a block, taken in advance and charged there already.

So what a killed process had in hand counts as used. A block is good until its window ends, or for some seconds where the store's counter
refills with time (gateway.limits.counter says why). Times are picoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.limits.meter import Meter

ALL: Final = 1 << 60
NEVER: Final = 1 << 62


class Stock:
    """hand: units that may be used here; negative: used without having been in hand, and owed to the store. until: until then. begun: when
    its window began here, so that no reservation of an earlier one comes back to it. window: by which the store knows it.

    left, wait_until: what the store had beside, at its last word, and until when there will not be more. short_until: until then that word
    is believed. allowance: what may be owed while the store cannot be reached; down_until: until when it is not asked again; NEVER while an
    answer of it is overdue. size: how much was asked for in advance. heard: whether the store has said anything. reset_at: when it was told
    to forget everything.
    """

    __slots__ = (
        "allowance",
        "begun",
        "down_until",
        "hand",
        "heard",
        "key",
        "left",
        "limit",
        "meter",
        "queued",
        "reset_at",
        "short_until",
        "size",
        "touched",
        "until",
        "wait_until",
        "wanted",
        "window",
    )

    def __init__(self, limit: str, meter: str, key: tuple[str, ...]) -> None:
        self.limit, self.meter, self.key = limit, meter, key
        self.hand = self.left = self.size = self.wanted = self.allowance = 0
        self.until = NEVER
        self.begun = self.wait_until = self.short_until = self.down_until = self.reset_at = 0
        self.touched = -NEVER
        self.window = -1
        self.heard = self.queued = False

    def covers(self, now: int, cost: int) -> bool:
        """Whether so much is in hand now, or may be owed. A cost of nothing always is. An expired block is given back before anything is
        owed."""
        return cost == 0 or (self.hand + self.allowance >= cost and (now < self.until or self.hand <= 0))

    def take(self, cost: int) -> None:
        self.hand -= cost

    def give_back(self, taken_at: int, cost: int) -> None:
        if self.begun <= taken_at:
            self.hand += cost

    def may_have(self, now: int, cost: int) -> bool:
        """Whether asking the store could help."""
        return now >= self.down_until and not (now < self.short_until and self.hand + self.left < cost)

    def adapt(self, more: int) -> None:
        """The limit's amount has changed by so much."""
        self.left = max(0, self.left + more)
        self.short_until = 0

    def reset(self, now: int) -> None:
        """The store's counter was deleted: what was in hand is worth nothing, and nothing is owed."""
        self.hand = self.left = self.allowance = self.short_until = 0
        self.begun, self.window, self.heard, self.reset_at = now, -1, False, now

    @property
    def unheard(self) -> bool:
        """Whether an answer of the store is overdue."""
        return self.down_until == NEVER

    def empty(self) -> bool:
        """Nothing is in hand, owed or asked for: the store knows everything."""
        return self.hand == 0 and not self.queued

    def failed(self, now: int, mode: str, replicas: int, patience: int) -> None:
        """The store cannot be reached. mode: the limit's `on_failure`."""
        self.down_until = now + patience
        if mode == "open":
            self.allowance = ALL
        elif mode == "local" and not self.allowance:
            self.allowance = max(0, self.left) // max(1, replicas)

    def unanswered(self) -> None:
        """The store has not answered in time. It may still do what it was asked, so it is not asked again before it has."""
        self.down_until = NEVER

    def heard_of(self, now: int, granted: int, left: int, window: int, until: int, wait_until: int, patience: int) -> None:
        """The store's word. What was in hand of an earlier window is gone."""
        if window != self.window:
            if self.window >= 0:
                self.begun = now
                self.hand = min(self.hand, 0)
            self.window = window
        self.hand += granted
        self.left, self.until, self.wait_until = left, until, wait_until
        self.allowance = self.down_until = 0
        self.short_until = min(now + patience, until)
        self.heard = True


class Need:
    """What one request lacks of one amount. mode: the limit's `on_failure`. outside: what workers hold of the stock."""

    __slots__ = ("cost", "meter", "mode", "outside", "stock")

    def __init__(self, stock: Stock, meter: Meter, cost: int, mode: str, outside: int = 0) -> None:
        self.stock, self.meter, self.cost, self.mode, self.outside = stock, meter, cost, mode, outside


class Restock(Protocol):
    """Asks the store for what is lacking (gateway.limits.refills)."""

    def ask(self, needs: Sequence[Need], retry: Callable[[], None]) -> None:
        """Calls back once, whatever the store says, and never within this call."""
        ...

    def want(self, need: Need) -> None:
        """The same for one who does not wait."""
        ...
