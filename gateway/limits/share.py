"""A worker's share of one bucket.

What is inherited from Bucket is the worker's view of the whole bucket, for headers and errors: as it was at the last word from the control
process, less what was used here since, refilled by the time that has passed. What may be used is counted apart: `requests`, `tokens` and
`slots`, which are charged to the real bucket already.
"""

from __future__ import annotations

from gateway.limits.bucket import Bucket, Shape


class Share(Bucket):
    """`requests`, `tokens`: may be used here until `expires`, under the lease of this number. `slots`: may be used here.

    requests_out, tokens_out: what the control process believes to be here of them. turn: changes with each report, after which nothing
    that was used before can come back here. waiting: requests that it decides at this moment. full: it says that all slots are taken.
    generous_until: until then no unused slot is kept. short_until: until then what costs at least `short_tokens` is refused without
    asking. peak: slots in use at once since the last look. listed: somebody will look. Times are picoseconds.
    """

    __slots__ = (
        "expires",
        "full",
        "generous_until",
        "key",
        "lease",
        "listed",
        "peak",
        "requests",
        "requests_out",
        "short_tokens",
        "short_until",
        "slots",
        "tokens",
        "tokens_out",
        "turn",
        "waiting",
    )

    def __init__(self, shape: Shape, key: tuple[str, ...]) -> None:
        super().__init__(shape)
        self.key = key
        self.lease = self.expires = self.requests = self.tokens = self.slots = 0
        self.requests_out = self.tokens_out = self.turn = self.waiting = self.peak = 0
        self.generous_until = self.short_until = self.short_tokens = 0
        self.full = self.listed = False

    def crowded(self) -> bool:
        return self.full

    def idle(self, now: int) -> bool:
        """Nothing is here, so nothing is lost by forgetting it."""
        return self.in_use == 0 and self.waiting == 0 and self.slots == 0 and not self.listed

    def covers(self, now: int, tokens: int) -> bool:
        """Whether one request that costs so many tokens can be admitted here and now. Changes nothing."""
        shape = self.shape
        if shape.concurrent and self.in_use >= self.slots:
            return False
        if shape.requests is not None and (self.requests < 1 or now >= self.expires):
            return False
        return shape.tokens is None or (self.tokens >= tokens and now < self.expires)

    def use(self, now: int, tokens: int) -> None:
        """Takes what `covers` allowed."""
        rate = self.shape.tokens
        if rate is None:
            self.take(now, 0)
        else:
            self.take(now, tokens * rate.unit_ps)
            self.tokens -= tokens
        if self.shape.requests is not None:
            self.requests -= 1
        if self.in_use > self.peak:
            self.peak = self.in_use

    def end(self, turn: int, taken_at: int, now: int, reserved: int, actual: int) -> int:
        """Ends an exchange that reserved so many tokens. actual: what it cost; -1: it was not served.

        Returns what the control process must be told: 0 nothing; 1 a correction; 2 that the request costs nothing, too.
        """
        shape = self.shape
        self.short_until = 0
        rate = shape.tokens
        unit = 0 if rate is None else rate.unit_ps
        here = turn == self.turn and now < self.expires
        if actual < 0:
            self.give_back(taken_at, reserved * unit)
            if here:
                if shape.requests is not None:
                    self.requests += 1
                if rate is not None:
                    self.tokens += reserved
                return 0
            if shape.requests is not None:
                return 2
            return 1 if rate is not None and reserved else 0
        self.correct(taken_at, now, reserved * unit, actual * unit)
        if rate is None or actual == reserved:
            return 0
        if here and actual < reserved:
            self.tokens += reserved - actual
            return 0
        return 1

    def forget(self) -> None:
        """What is left of a lease is not to be used: it has expired, or was handed back."""
        self.requests = self.tokens = self.requests_out = self.tokens_out = 0
        self.turn += 1
