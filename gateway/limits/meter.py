"""One amount that a limit counts: what of a request it is, what a unit costs, how much there is at once."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

from gateway.core.errors import LimitExceeded, QuotaExceeded
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec

SECOND: Final = 1_000_000_000_000
MILLISECOND: Final = SECOND // 1000
NANO: Final = 1_000_000_000

REQUESTS: Final = 0
TOKENS: Final = 1
BYTES: Final = 2
ELEMENTS: Final = 3
MONEY: Final = 4
"""Kinds of amounts; money is in billionths of its currency."""
_KINDS: Final = {"requests": REQUESTS, "tokens": TOKENS, "bytes": BYTES, "elements": ELEMENTS}
DURABLE_FROM: Final = 60.0
"""Seconds: rates with a longer period are counted in the store."""
NEVER: Final = (("x-should-retry", "false"),)


class Meter:
    """The constants of one amount. what: its kind. unit: what one unit costs, in picoseconds, or 1 where time refills nothing (`frozen`).
    burst: how many units there are at once; burst_ps: the debt then. durable: counted in the store. budget: of a window of time.
    bound: of a session. code: of the error. shown: what it is called in headers, b"" for those without.

    until_remaining, until_reset: the x-ratelimit-* lines up to what remains, and from there to the time.
    """

    __slots__ = (
        "bound",
        "budget",
        "burst",
        "burst_ps",
        "code",
        "currency",
        "durable",
        "frozen",
        "name",
        "per",
        "rate",
        "shown",
        "unit",
        "until_remaining",
        "until_reset",
        "what",
        "words",
    )

    def __init__(self, name: str, what: int, words: str, code: str) -> None:
        self.name, self.what, self.words, self.code = name, what, words, code
        self.unit = 1
        self.burst = self.burst_ps = 0
        self.frozen = self.bound = self.durable = False
        self.budget: BudgetSpec | None = None
        self.currency = ""
        self.shown = self.until_remaining = self.until_reset = b""
        self.rate = self.per = 0.0

    def of_rate(self, spec: RateSpec) -> None:
        self.unit = ceil(Fraction(str(spec.per)) * SECOND / Fraction(str(spec.rate)))
        burst = spec.rate if spec.burst is None else spec.burst
        self.burst = int(burst)
        self.burst_ps = int(Fraction(str(burst)) * self.unit)
        self.durable = spec.per > DURABLE_FROM
        self.rate, self.per = spec.rate, spec.per

    def of_amount(self, units: int) -> None:
        self.burst = self.burst_ps = units
        self.frozen = True

    def in_headers(self, shown: bytes) -> None:
        self.shown = shown
        self.until_remaining = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: " % (shown, self.burst, shown)
        self.until_reset = b"\r\nx-ratelimit-reset-%b: " % shown

    def level(self, debt: int) -> int:
        """Whole units left at a debt; 0 when the level is negative."""
        left = self.burst_ps - debt if debt > 0 else self.burst_ps
        return left // self.unit if left > 0 else 0

    def written(self, units: int) -> str:
        """An amount as people read it."""
        if self.what != MONEY:
            return f"{units} {self.words if units != 1 else self.words.removesuffix('s')}"
        digits = 6 if units >= NANO // 1_000_000 else 9
        return f"{units / NANO:.{digits}f}".rstrip("0").rstrip(".") + f" {self.currency}"

    def needed(self, units: int) -> str:
        """The same of what a request takes: tokens and their price are an estimate, everything else is counted."""
        return f"about {self.written(units)}" if self.what in (TOKENS, MONEY) else self.written(units)

    def never(self, limit: str, least: int) -> LimitExceeded:
        """The error for what could never pass."""
        most = self.written(self.burst)
        if self.budget is not None:
            return QuotaExceeded(f"This needs {self.needed(least)}; the budget '{limit}' has {most} in all.", headers=NEVER)
        what = "prompt" if self.what == TOKENS else "request"
        return LimitExceeded(
            f"The {what} has {self.needed(least)}; the limit '{limit}' never allows more than {self.burst} at once.",
            code=self.code,
            headers=NEVER,
        )


def meters_of(spec: LimitSpec) -> list[Meter]:
    """Everything that a limit counts, apart from requests under way, always in the same order."""
    found: list[Meter] = []
    for name, rate, code in (
        ("requests", spec.requests, "rate_limit_exceeded"),
        ("tokens", spec.tokens, "tokens_exceeded"),
        ("bytes", spec.bytes, "rate_limit_exceeded"),
        ("elements", spec.elements, "rate_limit_exceeded"),
    ):
        if rate is not None:
            meter = Meter(name, _KINDS[name], name, code)
            meter.of_rate(rate)
            if name in ("requests", "tokens"):
                meter.in_headers(name.encode())
            found.append(meter)
    if (budget := spec.budget) is not None:
        found.append(_budget(budget))
    if (loop := spec.session) is not None:
        for name, most, what in (("session_calls", loop.calls, REQUESTS), ("session_tokens", loop.tokens, TOKENS)):
            if most is not None:
                meter = Meter(name, what, "requests" if what == REQUESTS else "tokens", "session_exceeded")
                meter.of_amount(most)
                meter.bound = True
                found.append(meter)
    return found


def lasts(spec: LimitSpec) -> bool:
    """Whether one of its meters is durable."""
    rates = (spec.requests, spec.tokens, spec.bytes, spec.elements)
    return spec.budget is not None or any(rate is not None and rate.per > DURABLE_FROM for rate in rates)


def _budget(spec: BudgetSpec) -> Meter:
    what = {"tokens": TOKENS, "requests": REQUESTS}.get(spec.unit, MONEY)
    meter = Meter(f"budget_{spec.unit}", what, spec.unit, "insufficient_quota")
    if what == MONEY:
        meter.currency = spec.unit
        meter.of_amount(round(Fraction(str(spec.amount)) * NANO))
    else:
        meter.of_amount(int(spec.amount))
    meter.budget = spec
    meter.durable = True
    return meter
