"""The x-ratelimit-* response headers: of all buckets that apply, the one with the least left, for requests and for tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.limits.bucket import MILLISECOND, Bucket


def line(bucket: Bucket, now: int) -> bytes:
    """The header lines of one bucket, each with its CRLF; b"" when it limits concurrency only. `now`: monotonic picoseconds."""
    shape = bucket.shape
    requests, tokens = shape.requests, shape.tokens
    if requests is None:
        return shape.token_lines % _tokens_left(bucket, now) if tokens is not None else b""
    debt = bucket.requests_full - now
    if debt < 0:
        debt = 0
    left = requests.burst_ps - debt
    remaining = left // requests.unit_ps if left > 0 else 0
    reset = -(-debt // MILLISECOND)
    if tokens is None:
        return shape.request_lines % (remaining, reset // 1000, reset % 1000)
    debt = bucket.tokens_full - now
    if debt < 0:
        debt = 0
    left = tokens.burst_ps - debt
    token_reset = -(-debt // MILLISECOND)
    return shape.both_lines % (
        remaining,
        reset // 1000,
        reset % 1000,
        left // tokens.unit_ps if left > 0 else 0,
        token_reset // 1000,
        token_reset % 1000,
    )


def lines(buckets: Sequence[Bucket], now: int) -> bytes:
    """The header lines of several buckets together: the tightest for requests, the tightest for tokens."""
    requests = [bucket for bucket in buckets if bucket.shape.requests is not None]
    tokens = [bucket for bucket in buckets if bucket.shape.tokens is not None]
    found = b""
    if requests:
        tightest = min(requests, key=lambda bucket: _requests_left(bucket, now))
        found = tightest.shape.request_lines % _requests_left(tightest, now)
    if tokens:
        tightest = min(tokens, key=lambda bucket: _tokens_left(bucket, now))
        found += tightest.shape.token_lines % _tokens_left(tightest, now)
    return found


def pairs(buckets: Sequence[Bucket], now: int) -> tuple[tuple[str, str], ...]:
    """The same as (name, value), for an error."""
    found = []
    for text in lines(buckets, now).decode("ascii").split("\r\n"):
        name, separator, value = text.partition(": ")
        if separator:
            found.append((name, value))
    return tuple(found)


def _requests_left(bucket: Bucket, now: int) -> tuple[int, int, int]:
    rate = bucket.shape.requests
    return (0, 0, 0) if rate is None else (rate.level(bucket.requests_full - now), *_reset(bucket.requests_full - now))


def _tokens_left(bucket: Bucket, now: int) -> tuple[int, int, int]:
    rate = bucket.shape.tokens
    return (0, 0, 0) if rate is None else (rate.level(bucket.tokens_full - now), *_reset(bucket.tokens_full - now))


def _reset(debt_ps: int) -> tuple[int, int]:
    """Seconds and milliseconds until the bucket is full again, rounded up."""
    return divmod(-(-max(0, debt_ps) // MILLISECOND), 1000)
