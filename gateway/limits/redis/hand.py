"""What a process has in hand of one bucket: a share of a rate, which Redis has charged already (`precision: leased`). Pure.

A share may be used until its moment by the process's own clock, counted from before it was asked for. Redis does not let the bucket refill
for what is out with holders until later than that, counted from after. So a share is never both used and refilled.
"""

from __future__ import annotations

from typing import Final

LIFE: Final = 500_000
"""Microseconds for which a share may be used, from when it was asked for."""
KEPT: Final = 750_000
"""Microseconds for which Redis counts it as out, from when it was given: clocks may differ by half."""
SHORT: Final = 50_000
LONG: Final = 250_000
"""A share that lasted less than so many microseconds is made twice as large, one that lasted longer half as large."""
MOST_BATCH: Final = 4096
"""Requests for which a share is at most."""
FIRST_BATCH: Final = 2


class Hand:
    """amounts: what is left of each meter, in ticks. until: microseconds of our own clock. given_at: of Redis's. room: used since Redis was
    told, so that so much may come back. count, total: requests that used it, and for how much. known: Redis believes that there is
    something. under_way: a call about it has no answer yet. batch: requests to take a share for. touched: used since the last look."""

    __slots__ = (
        "amounts",
        "asked_at",
        "batch",
        "count",
        "given_at",
        "known",
        "low",
        "mean",
        "room",
        "total",
        "touched",
        "under_way",
        "until",
    )

    def __init__(self, count: int) -> None:
        self.amounts: list[int] = [0] * count
        self.room: list[int] = [0] * count
        self.mean: list[int] = [0] * count
        self.total: list[int] = [0] * count
        self.low: list[int] = [0] * count
        self.until = self.given_at = self.asked_at = self.batch = self.count = 0
        self.known = self.under_way = self.touched = False

    def covers(self, now: int, costs: list[int]) -> bool:
        if now >= self.until:
            return False
        amounts = self.amounts
        for index, cost in enumerate(costs):  # compiled, faster than all()
            if amounts[index] < cost:
                return False
        return len(costs) > 0

    def use(self, costs: list[int]) -> bool:
        """Takes what it covers. Returns whether little is left."""
        amounts, room, low, total = self.amounts, self.room, self.low, self.total
        little = False
        for index, cost in enumerate(costs):
            left = amounts[index] - cost
            amounts[index] = left
            room[index] += cost
            total[index] += cost
            if left < low[index]:
                little = True
        self.count += 1
        self.touched = True
        return little

    def asking(self, costs: list[int]) -> None:
        """A request of this cost goes to Redis, because it is not covered."""
        if not self.count:
            self.mean = costs
        self.touched = True

    def correct(self, now: int, amounts: list[int]) -> list[int]:
        """Charges a request that used it more, or gives back; returns the rest of that, which Redis must be told."""
        if now >= self.until:
            return amounts
        rest: list[int] = []
        for index, amount in enumerate(amounts):
            if amount < 0:  # no more than was used since Redis was told: otherwise more would be out than it knows of
                moved = -min(-amount, self.room[index])
            else:
                moved = min(amount, self.amounts[index])
            self.amounts[index] -= moved
            self.room[index] += moved
            rest.append(amount - moved)
        return rest

    def pace(self, now: int) -> None:
        """Says for how many requests the next share is, from how long the last one lasted."""
        lasted, self.asked_at = now - self.asked_at, now
        if lasted < SHORT:
            self.batch = min(MOST_BATCH, max(FIRST_BATCH, 2 * self.batch))
        elif lasted > 4 * LONG:
            self.batch = 0
        elif lasted > LONG:
            self.batch //= 2
        elif not self.batch:
            self.batch = FIRST_BATCH
        if self.count:
            self.mean = [-(-used // self.count) for used in self.total]
            self.count, self.total = 0, [0] * len(self.total)

    def told(self) -> None:
        """Redis is told what is left."""
        self.room = [0] * len(self.amounts)
        self.under_way = True

    def given(self, until: int, given_at: int, amounts: list[int]) -> None:
        """Redis has given more, and all that is in hand lasts longer."""
        self.until, self.given_at = until, given_at
        for index, amount in enumerate(amounts):
            self.amounts[index] += amount
        self.low = [(amount + 1) // 2 for amount in self.amounts]

    def drop(self) -> None:
        """Nothing of it may be used any more."""
        self.amounts = [0] * len(self.amounts)
        self.room = [0] * len(self.amounts)
        self.until = 0
