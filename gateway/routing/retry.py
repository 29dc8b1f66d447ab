"""Whether and when a failed attempt is retried: pure bookkeeping, one per pool.

Only failures before the first byte of a response (`EngineError.safe`) are retried, at most `attempts` times in all, and
retries under way never exceed `budget` (20%) of the requests in flight, or MINIMUM if that is more, so that a pool with few requests
survives the death of one engine. The budget keeps retries from multiplying the load on the engines that are left. An attempt whose
connection was refused, or for which the engine had no room, caused no work, so its retry does not count.
"""

from __future__ import annotations

from typing import Final

from gateway.core.clock import Clock, Entropy
from gateway.core.errors import EngineError
from gateway.core.specs import RetrySpec

MINIMUM: Final = 10
_CLAIM_WITHIN: Final = 1.0
"""A promised retry must begin within this many seconds after its backoff, or its share of the budget is free again."""


class RetryBudget:
    """Ask `promise` whether to retry; call `begin` when the retry begins, and `end` after it if `begin` counted it."""

    __slots__ = ("_clock", "_entropy", "_excused", "_expires", "promised", "running", "spec")

    def __init__(self, spec: RetrySpec, clock: Clock, entropy: Entropy) -> None:
        self.spec = spec
        self._clock, self._entropy = clock, entropy
        self.promised = 0
        self.running = 0
        self._excused = False
        self._expires = 0.0

    def promise(self, error: Exception, attempts: int, in_flight: int) -> float | None:
        """Seconds to wait before the next attempt, or None for no retry. attempts: made so far. in_flight: requests now."""
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

    def allows(self, attempts: int, in_flight: int) -> bool:
        """Whether `promise` would say yes to a safe failure now. Promises nothing."""
        promised = 0 if self._clock.monotonic() > self._expires else self.promised
        return attempts < self.spec.attempts and promised + self.running < max(MINIMUM, self.spec.budget * in_flight)

    def excuse(self) -> None:
        """The next retry follows a refusal that caused no work: it does not count."""
        self._excused = True

    def begin(self) -> bool:
        """A retry has its slot. Whether it counts until `end`: after a refusal that caused no work it does not."""
        if self._excused:
            self._excused = False
            return False
        self.promised = max(0, self.promised - 1)
        self.running += 1
        return True

    def end(self) -> None:
        self.running -= 1
