"""A worker's share of one bucket.

What is inherited from Bucket is the worker's view of the whole bucket, for headers and errors: as it was at the last word from the control
process, less what was used here since, refilled by the time that has passed. What may be used is counted apart: `amounts` and `slots`,
which are charged to the real bucket already.
"""

from __future__ import annotations

from gateway.limits.bucket import Bucket, Shape


class Share(Bucket):
    """amounts: what may be used here until `expires`, under the lease of this number. `slots`: may be used here.

    out: what the control process believes to be here of them. turn: changes with each report, after which nothing that was used before can
    come back here. waiting: requests that it decides at this moment. taken: it says that all slots are taken. ended: that the session
    has lasted as long as it may. waits: its word on when there is more of each amount that time does not refill. generous_until: until
    then no unused slot is kept. short_until: until then what costs at least `short_costs` is refused without asking. peak: slots in use at
    once since the last look. listed: somebody will look. Times are picoseconds.
    """

    __slots__ = (
        "amounts",
        "away",
        "ended",
        "expires",
        "generous_until",
        "lease",
        "listed",
        "out",
        "peak",
        "short_costs",
        "short_until",
        "slots",
        "taken",
        "turn",
        "waiting",
        "waits",
    )

    def __init__(self, shape: Shape, key: tuple[str, ...], now: int = 0) -> None:
        super().__init__(shape, key, now)
        count = len(shape.meters)
        self.lease = self.expires = self.slots = 0
        self.amounts: list[int] = [0] * count
        self.out: list[int] = [0] * count
        self.waits: list[int] = [0] * count
        self.short_costs: list[int] = [0] * count
        self.turn = self.waiting = self.peak = 0
        self.generous_until = self.short_until = 0
        self.taken = self.ended = self.away = self.listed = False

    def crowded(self) -> bool:
        return self.taken

    def over(self, now: int) -> bool:
        return self.ended

    def wait(self, index: int, now: int) -> int:
        return max(1, self.waits[index] - now)

    def idle(self, now: int) -> bool:
        """Nothing is here, so nothing is lost by forgetting it."""
        return self.in_use == 0 and self.waiting == 0 and self.slots == 0 and not self.listed

    def covers(self, now: int, costs: list[int]) -> bool:
        """Whether one request that costs this can be admitted here and now. Changes nothing."""
        if self.shape.concurrent and self.in_use >= self.slots:
            return False
        amounts = self.amounts
        if not amounts:
            return not self.shape.wall_ps or now < self.expires
        if now >= self.expires:
            return False
        for index, cost in enumerate(costs):  # noqa: SIM110  # a generator costs more when compiled
            if amounts[index] < cost:
                return False
        return True

    def use(self, now: int, costs: list[int]) -> None:
        """Takes what `covers` allowed."""
        self.take(now, costs)
        for index, cost in enumerate(costs):
            self.amounts[index] -= cost
        if self.in_use > self.peak:
            self.peak = self.in_use

    def end(self, turn: int, taken_at: int, now: int, costs: list[int], charges: list[int]) -> bool:
        """Ends an exchange that took `costs` and cost `charges`. Returns whether the control process must be told."""
        self.short_until = 0
        self.correct(taken_at, now, costs, charges)
        if charges == costs:
            return False
        if turn == self.turn and now < self.expires:
            more = False
            for index, charge in enumerate(charges):
                if charge > costs[index]:
                    more = True
            if not more:
                for index, charge in enumerate(charges):
                    self.amounts[index] += costs[index] - charge
                return False
        return True

    def forget(self) -> None:
        """What is left of a lease is not to be used: it has expired, or was handed back."""
        self.amounts = [0] * len(self.amounts)
        self.out = [0] * len(self.out)
        self.turn += 1

    def spent(self) -> list[int]:
        """What was used of the lease since the last report."""
        return [out - amount for out, amount in zip(self.out, self.amounts, strict=True)]
