"""Token buckets as one number each: the time at which the bucket would be full again (GCRA, the "virtual scheduling" of
ITU-T I.371, with time in place of tokens).

All state is in integer nanoseconds. A rate of `rate` units in `per` seconds makes one unit cost per/rate nanoseconds, kept
as an exact fraction and rounded up: what is admitted is never more than burst + rate x time, and no float drifts. With
`full_at` in the past the bucket is full; (full_at - now) is the debt, and the level is burst minus that debt. A level may be
negative when an exchange cost more than was reserved for it.
"""

from __future__ import annotations

from fractions import Fraction

from gateway.core.specs import LimitSpec, RateSpec

SECOND = 1_000_000_000


class Rate:
    """The fixed side of one bucket. `numerator`/`denominator`: nanoseconds a unit; `burst_ns`: the debt of an empty bucket."""

    __slots__ = ("burst", "burst_ns", "denominator", "numerator")

    def __init__(self, spec: RateSpec) -> None:
        unit = Fraction(str(spec.per)) * SECOND / Fraction(str(spec.rate))
        self.numerator, self.denominator = unit.numerator, unit.denominator
        burst = spec.rate if spec.burst is None else spec.burst
        self.burst = int(burst)
        self.burst_ns = int(Fraction(str(burst)) * unit)

    def cost(self, units: int) -> int:
        """Nanoseconds that `units` cost, rounded up."""
        return -(-units * self.numerator // self.denominator)

    def level(self, debt_ns: int) -> int:
        """Whole units that are left at a debt; 0 when it is negative."""
        left = self.burst_ns - debt_ns if debt_ns > 0 else self.burst_ns
        return left * self.denominator // self.numerator if left > 0 else 0


_LINES = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%d.%%03ds\r\n"


class Shape:
    """The fixed side of a limit: what all its buckets share. The templates are the x-ratelimit-* lines, to be filled with
    what remains and the time until the bucket is full again (seconds, milliseconds)."""

    __slots__ = ("both_lines", "concurrent", "name", "request_lines", "request_ns", "requests", "token_lines", "tokens")

    def __init__(self, spec: LimitSpec) -> None:
        self.name = spec.name
        self.requests = Rate(spec.requests) if spec.requests else None
        self.request_ns = self.requests.cost(1) if self.requests else 0
        self.tokens = Rate(spec.tokens) if spec.tokens else None
        self.concurrent = spec.concurrent or 0
        self.request_lines = _template(b"requests", self.requests)
        self.token_lines = _template(b"tokens", self.tokens)
        self.both_lines = self.request_lines + self.token_lines


def _template(what: bytes, rate: Rate | None) -> bytes:
    return b"" if rate is None else _LINES % (what, rate.burst, what, what)


class Bucket:
    """The state of one limit for one key: requests, tokens and how many exchanges are under way.

    `requests_full` and `tokens_full` are the two "full again" times; `tokens_idle`, `requests_idle` the last time at which a
    charge found the bucket full: a reservation made before that has been refilled by time already and must not be refunded
    a second time.
    """

    __slots__ = ("in_use", "requests_full", "requests_idle", "shape", "tokens_full", "tokens_idle")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.in_use = 0
        self.requests_full = self.tokens_full = 0
        self.requests_idle = self.tokens_idle = 0

    def admits(self, now: int, token_ns: int) -> bool:
        """Whether one request that costs `token_ns` of the token bucket fits now. Changes nothing."""
        shape = self.shape
        if shape.concurrent and self.in_use >= shape.concurrent:
            return False
        rate = shape.requests
        if rate is not None and self.requests_full + shape.request_ns > now + rate.burst_ns:
            return False
        rate = shape.tokens
        return rate is None or self.tokens_full + token_ns <= now + rate.burst_ns

    def take(self, now: int, token_ns: int) -> None:
        """Charges what `admits` allowed."""
        shape = self.shape
        self.in_use += 1
        if shape.requests is not None:
            if self.requests_full <= now:
                self.requests_full = self.requests_idle = now
            self.requests_full += shape.request_ns
        if shape.tokens is not None:
            if self.tokens_full <= now:
                self.tokens_full = self.tokens_idle = now
            self.tokens_full += token_ns

    def give_back(self, taken_at: int, token_ns: int) -> None:
        """Undoes a `take` of `taken_at` as if it had not been."""
        self.in_use -= 1
        if self.requests_idle <= taken_at:
            self.requests_full -= self.shape.request_ns
        if self.tokens_idle <= taken_at:
            self.tokens_full -= token_ns

    def correct(self, taken_at: int, now: int, reserved_ns: int, actual_ns: int) -> None:
        """Ends a `take` that turned out to cost `actual_ns` of the token bucket instead of `reserved_ns`."""
        self.in_use -= 1
        if actual_ns > reserved_ns:
            if self.tokens_full <= now:
                self.tokens_full = self.tokens_idle = now
            self.tokens_full += actual_ns - reserved_ns
        elif self.tokens_idle <= taken_at:
            self.tokens_full -= reserved_ns - actual_ns

    def idle(self, now: int) -> bool:
        """Full and unused: forgetting it loses nothing, as a new bucket starts full."""
        return self.in_use == 0 and self.requests_full <= now and self.tokens_full <= now
