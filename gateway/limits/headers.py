"""The x-ratelimit-* response headers: of all enforced buckets that apply, the one with the least left, for requests and for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.limits.bucket import MILLISECOND, Bucket
from gateway.limits.meter import Meter

_MILLIS: Final = tuple(b".%03ds\r\n" % value for value in range(1000))
"""The ends of lines with a time, by milliseconds."""


def line(bucket: Bucket, now: int) -> bytes:
    """The header lines of one bucket, each with its CRLF; b"" when it has nothing to show. `now`: monotonic picoseconds."""
    found = b""
    for index, meter in enumerate(bucket.shape.meters):
        if meter.shown:
            debt = bucket.debt(index, now)
            found += _meter_lines(meter, debt, meter.level(debt))
    return found


def _meter_lines(meter: Meter, debt_ps: int, level: int) -> bytes:
    """The three lines of one rate at a debt: its burst, the remainder, and the time until it is full again, rounded up."""
    reset = -(-debt_ps // MILLISECOND) if debt_ps > 0 else 0
    if reset < 1000:  # as nearly always: one division instead of three
        return b"%b%d%b0%b" % (meter.until_remaining, level, meter.until_reset, _MILLIS[reset])
    return b"%b%d%b%d%b" % (meter.until_remaining, level, meter.until_reset, reset // 1000, _MILLIS[reset % 1000])


class Gauges:
    """Which of several buckets have something to show. It stays so while they apply, so it is found once."""

    __slots__ = ("requests", "tokens")

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.requests = [bucket for bucket in buckets if bucket.shape.requests_at >= 0 and bucket.shape.enforce]
        self.tokens = [bucket for bucket in buckets if bucket.shape.tokens_at >= 0 and bucket.shape.enforce]

    def lines(self, now: int) -> bytes:
        """The header lines of all of them: the tightest for requests, the tightest for tokens."""
        if not self.tokens:
            return _tightest(self.requests, True, now) if self.requests else b""
        if not self.requests:
            return _tightest(self.tokens, False, now)
        return _tightest(self.requests, True, now) + _tightest(self.tokens, False, now)


def lines(buckets: Sequence[Bucket], now: int) -> bytes:
    """The header lines of several buckets together: the tightest for requests, the tightest for tokens."""
    listed = list(buckets)
    return _tightest(listed, True, now) + _tightest(listed, False, now)


def _tightest(buckets: list[Bucket], requests: bool, now: int) -> bytes:
    """The lines of the rate with the least left, of requests or else of tokens. Of equals, the one that is full again first. b"" without
    any rate."""
    chosen: Meter | None = None
    chosen_debt = least = 0
    for bucket in buckets:
        shape = bucket.shape
        index = shape.requests_at if requests else shape.tokens_at
        if index < 0 or not shape.enforce:
            continue
        meter = shape.meters[index]
        debt = bucket.debt(index, now)
        left = meter.level(debt)
        if chosen is None or left < least or (left == least and debt < chosen_debt):
            chosen, chosen_debt, least = meter, debt, left
    return b"" if chosen is None else _meter_lines(chosen, chosen_debt, least)


def pairs(buckets: Sequence[Bucket], now: int) -> tuple[tuple[str, str], ...]:
    """The same as (name, value), for an error."""
    found = []
    for text in lines(buckets, now).decode("ascii").split("\r\n"):
        name, separator, value = text.partition(": ")
        if separator:
            found.append((name, value))
    return tuple(found)
