"""Whether and when a failed attempt is tried again: pure bookkeeping, one per pool.

Only failures before the first byte of a response (`EngineError.safe`) are retried, at most `attempts` times in all, and
at any time the retries under way are at most `budget` (20%) of the requests in flight, or MINIMUM if that is more (a pool with few requests
could otherwise not survive the death of one engine). The budget keeps retries from multiplying the load on what is still
alive; an attempt that was refused at the door did no work anywhere, so it is retried outside of the budget.
"""

from __future__ import annotations

from typing import Final

from gateway.core.clock import Clock, Entropy
from gateway.core.errors import EngineError
from gateway.core.specs import RetrySpec

MINIMUM: Final = 10
_CLAIM_WITHIN: Final = 1.0
"""Seconds after its backoff within which a promised retry must begin, or its share of the budget is free again."""


class RetryBudget:
    """`promise` says yes or no; a retry that begins is `begin`, and one that counted there ends with `end`."""

    __slots__ = ("_clock", "_entropy", "_excused", "_expires", "promised", "running", "spec")

    def __init__(self, spec: RetrySpec, clock: Clock, entropy: Entropy) -> None:
        self.spec = spec
        self._clock, self._entropy = clock, entropy
        self.promised = 0
        self.running = 0
        self._excused = False
        self._expires = 0.0

    def promise(self, error: Exception, attempts: int, in_flight: int) -> float | None:
        """Seconds to wait before the next attempt, or None. attempts: how many were made. in_flight: requests, now."""
        if not isinstance(error, EngineError) or not error.safe or attempts >= self.spec.attempts:
            return None
        self._excused = error.refused
        if error.refused:
            return 0.0
        now = self._clock.monotonic()
        if now > self._expires:
            self.promised = 0
        if self.promised + self.running >= max(MINIMUM, self.spec.budget * in_flight):
            return None
        delay = self.spec.backoff * 2.0 ** (attempts - 1) * (0.5 + self._entropy.uniform())
        self.promised += 1
        self._expires = max(self._expires, now + delay + _CLAIM_WITHIN)
        return delay

    def begin(self) -> bool:
        """A retry has its slot. Whether it counts, until `end`: one that got it at once, after a refusal, does not."""
        if self._excused:
            self._excused = False
            return False
        self.promised = max(0, self.promised - 1)
        self.running += 1
        return True

    def end(self) -> None:
        self.running -= 1
