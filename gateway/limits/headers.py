"""The x-ratelimit-* response headers: of all buckets that apply, the one with the least left, for requests and for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.limits.bucket import MILLISECOND, Bucket, Rate

_MILLIS: Final = tuple(b".%03ds\r\n" % value for value in range(1000))
"""The ends of lines with a time, by milliseconds."""


def line(bucket: Bucket, now: int) -> bytes:
    """The header lines of one bucket, each with its CRLF; b"" when it limits concurrency only. `now`: monotonic picoseconds."""
    shape = bucket.shape
    requests, tokens = shape.requests, shape.tokens
    found = b"" if requests is None else _rate_lines(requests, bucket.requests_full - now)
    if tokens is not None:
        found += _rate_lines(tokens, bucket.tokens_full - now)
    return found


def _rate_lines(rate: Rate, debt_ps: int) -> bytes:
    """The three lines of one rate at a debt: its burst, the remainder, and the time until it is full again, rounded up."""
    if debt_ps < 0:
        debt_ps = 0
    left = rate.burst_ps - debt_ps
    reset = -(-debt_ps // MILLISECOND)
    return b"%b%d%b%d%b" % (
        rate.until_remaining,
        left // rate.unit_ps if left > 0 else 0,
        rate.until_reset,
        reset // 1000,
        _MILLIS[reset % 1000],
    )


def lines(buckets: Sequence[Bucket], now: int) -> bytes:
    """The header lines of several buckets together: the tightest for requests, the tightest for tokens."""
    return _tightest([(b.shape.requests, b.requests_full - now) for b in buckets]) + _tightest(
        [(b.shape.tokens, b.tokens_full - now) for b in buckets]
    )


def _tightest(levels: list[tuple[Rate | None, int]]) -> bytes:
    """The lines of the rate with the least left. Of equals, the one that is full again first. b"" without any rate."""
    chosen: Rate | None = None
    chosen_debt = least = 0
    for rate, debt in levels:
        if rate is None:
            continue
        left = rate.level(debt)
        if chosen is None or left < least or (left == least and debt < chosen_debt):
            chosen, chosen_debt, least = rate, debt, left
    return b"" if chosen is None else _rate_lines(chosen, chosen_debt)


def pairs(buckets: Sequence[Bucket], now: int) -> tuple[tuple[str, str], ...]:
    """The same as (name, value), for an error."""
    found = []
    for text in lines(buckets, now).decode("ascii").split("\r\n"):
        name, separator, value = text.partition(": ")
        if separator:
            found.append((name, value))
    return tuple(found)
