"""Token buckets as one number each: the time at which the bucket would be full again (GCRA, the "virtual scheduling" of
ITU-T I.371, with time in place of tokens).

All state is in whole picoseconds (`ps`) of the monotonic clock. A rate of `rate` units in `per` seconds makes one unit cost
per/rate, rounded up to a picosecond: what is admitted is never more than burst + rate x time, and nothing drifts. If the
"full again" time is past, the bucket is full. Otherwise the time until then is the debt, and the level is burst minus debt. The
level is negative after an exchange that cost more than was reserved for it.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

from gateway.core.specs import LimitSpec, RateSpec

SECOND: Final = 1_000_000_000_000
MILLISECOND: Final = SECOND // 1000


class Rate:
    """The constants of one bucket of `what` (requests, tokens). `unit_ps`: what one unit costs; `burst_ps`: the debt of an empty bucket.

    `until_remaining` and `until_reset`: the x-ratelimit-* lines up to what remains, and from there to the time.
    """

    __slots__ = ("burst", "burst_ps", "unit_ps", "until_remaining", "until_reset")

    def __init__(self, spec: RateSpec, what: bytes) -> None:
        self.unit_ps = ceil(Fraction(str(spec.per)) * SECOND / Fraction(str(spec.rate)))
        burst = spec.rate if spec.burst is None else spec.burst
        self.burst = int(burst)
        self.burst_ps = int(Fraction(str(burst)) * self.unit_ps)
        self.until_remaining = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: " % (what, self.burst, what)
        self.until_reset = b"\r\nx-ratelimit-reset-%b: " % what

    def level(self, debt_ps: int) -> int:
        """Whole units left at a debt; 0 when the level is negative."""
        left = self.burst_ps - debt_ps if debt_ps > 0 else self.burst_ps
        return left // self.unit_ps if left > 0 else 0


class Shape:
    """Shared by all buckets of one limit. number: what a worker calls it towards the control process, 0 before it does. pins: while there
    are any, it is kept without a bucket."""

    __slots__ = ("concurrent", "name", "number", "pins", "request_ps", "requests", "spec", "tokens")

    def __init__(self, spec: LimitSpec) -> None:
        self.spec, self.name = spec, spec.name
        self.number = self.pins = 0
        self.requests = Rate(spec.requests, b"requests") if spec.requests else None
        self.request_ps = self.requests.unit_ps if self.requests else 0
        self.tokens = Rate(spec.tokens, b"tokens") if spec.tokens else None
        self.concurrent = spec.concurrent or 0


class Bucket:
    """The state of one limit for one key: requests, tokens and how many exchanges are under way.

    `requests_full` and `tokens_full` are the two "full again" times; `tokens_idle`, `requests_idle` the last time at which a
    charge found the bucket full: time has already refilled a reservation made before that, so it must not be refunded again.
    """

    __slots__ = ("in_use", "requests_full", "requests_idle", "shape", "tokens_full", "tokens_idle")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.in_use = 0
        self.requests_full = self.tokens_full = 0
        self.requests_idle = self.tokens_idle = 0

    def admits(self, now: int, token_ps: int) -> bool:
        """Whether one request that costs `token_ps` of the token bucket fits now. Changes nothing."""
        shape = self.shape
        if shape.concurrent and self.in_use >= shape.concurrent:
            return False
        rate = shape.requests
        if rate is not None and self.requests_full + shape.request_ps > now + rate.burst_ps:
            return False
        rate = shape.tokens
        return rate is None or self.tokens_full + token_ps <= now + rate.burst_ps

    def take(self, now: int, token_ps: int) -> None:
        """Charges what `admits` allowed."""
        shape = self.shape
        self.in_use += 1
        if shape.requests is not None:
            if self.requests_full <= now:
                self.requests_full = self.requests_idle = now
            self.requests_full += shape.request_ps
        if shape.tokens is not None:
            if self.tokens_full <= now:
                self.tokens_full = self.tokens_idle = now
            self.tokens_full += token_ps

    def give_back(self, taken_at: int, token_ps: int) -> None:
        """Undoes the `take` of `taken_at`."""
        self.in_use -= 1
        if self.requests_idle <= taken_at:
            self.requests_full -= self.shape.request_ps
        if self.tokens_idle <= taken_at:
            self.tokens_full -= token_ps

    def correct(self, taken_at: int, now: int, reserved_ps: int, actual_ps: int) -> None:
        """Ends a `take` that turned out to cost `actual_ps` of the token bucket instead of `reserved_ps`."""
        self.in_use -= 1
        if actual_ps > reserved_ps:
            if self.tokens_full <= now:
                self.tokens_full = self.tokens_idle = now
            self.tokens_full += actual_ps - reserved_ps
        elif self.tokens_idle <= taken_at:
            self.tokens_full -= reserved_ps - actual_ps

    def crowded(self) -> bool:
        """Whether as many exchanges are under way as may be."""
        return self.shape.concurrent > 0 and self.in_use >= self.shape.concurrent

    def idle(self, now: int) -> bool:
        """Full and unused, so nothing is lost by forgetting it: a new bucket starts full."""
        return self.in_use == 0 and self.requests_full <= now and self.tokens_full <= now
