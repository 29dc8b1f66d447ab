"""The x-ratelimit-* response headers: of all buckets that apply, the one with the least left, for requests and for tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.limits.bucket import Bucket, Rate

_LINES = (
    b"x-ratelimit-limit-%(what)b: %%d\r\nx-ratelimit-remaining-%(what)b: %%d\r\nx-ratelimit-reset-%(what)b: %%d.%%03ds\r\n"
)
_REQUESTS = _LINES % {b"what": b"requests"}
_TOKENS = _LINES % {b"what": b"tokens"}
_BOTH = _REQUESTS + _TOKENS


def lines(buckets: Sequence[Bucket], now: int) -> bytes:
    """Header lines, each with its CRLF; b"" when the limits are on concurrency only. `now`: monotonic nanoseconds."""
    requests, tokens = _tightest_requests(buckets, now), _tightest_tokens(buckets, now)
    if requests is not None and tokens is not None:
        return _BOTH % (*requests, *tokens)
    if requests is not None:
        return _REQUESTS % requests
    return b"" if tokens is None else _TOKENS % tokens


def pairs(buckets: Sequence[Bucket], now: int) -> tuple[tuple[str, str], ...]:
    """The same as (name, value), for an error."""
    found = []
    for line in lines(buckets, now).decode("ascii").split("\r\n"):
        name, separator, value = line.partition(": ")
        if separator:
            found.append((name, value))
    return tuple(found)


def _tightest_requests(buckets: Sequence[Bucket], now: int) -> tuple[int, int, int, int] | None:
    best: tuple[int, int, int, int] | None = None
    for bucket in buckets:
        rate = bucket.shape.requests
        if rate is not None:
            left = _left(rate, bucket.requests_full - now)
            if best is None or left[1] < best[1]:
                best = left
    return best


def _tightest_tokens(buckets: Sequence[Bucket], now: int) -> tuple[int, int, int, int] | None:
    best: tuple[int, int, int, int] | None = None
    for bucket in buckets:
        rate = bucket.shape.tokens
        if rate is not None:
            left = _left(rate, bucket.tokens_full - now)
            if best is None or left[1] < best[1]:
                best = left
    return best


def _left(rate: Rate, debt: int) -> tuple[int, int, int, int]:
    """Limit, remaining, and the time until the bucket is full again as seconds and milliseconds (rounded up)."""
    if debt <= 0:
        return rate.burst, rate.burst, 0, 0
    return rate.burst, rate.level(debt), *divmod(-(-debt // 1_000_000), 1000)
