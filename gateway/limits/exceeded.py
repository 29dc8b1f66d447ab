"""The errors of limits, from the state of the buckets that apply."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.errors import LimitExceeded
from gateway.limits import headers
from gateway.limits.bucket import MILLISECOND, SECOND, Bucket


def whole_burst(bucket: Bucket, prompt: int) -> int:
    """The reservation, in picoseconds, for an estimate beyond the burst: the whole burst. The rest is charged at settlement.

    A prompt that exceeds the burst by itself could never pass, and is refused for good.
    """
    shape = bucket.shape
    rate = shape.tokens
    if rate is None:
        return 0
    if prompt * rate.unit_ps > rate.burst_ps:
        raise LimitExceeded(
            f"The prompt has about {prompt} tokens; the limit '{shape.name}' never allows more than {rate.burst} at once.",
            code="tokens_exceeded",
            headers=(("x-should-retry", "false"),),
        )
    return rate.burst_ps


def longest_wait(buckets: Sequence[Bucket], costs: Sequence[int], now: int) -> tuple[int, str, str, str]:
    """Of the buckets that have too little, the one that makes the caller wait longest: picoseconds, the error's code, of what there is too
    much, the limit's name. All have enough: no picoseconds. costs: of each token bucket, in picoseconds."""
    worst: tuple[int, str, str, str] = (0, "", "", "")
    for bucket, token_ps in zip(buckets, costs, strict=True):
        shape = bucket.shape
        waits = []
        if shape.requests is not None:
            wait = bucket.requests_full + shape.request_ps - now - shape.requests.burst_ps
            waits.append((wait, "rate_limit_exceeded", "requests", shape.name))
        if shape.tokens is not None:
            waits.append((bucket.tokens_full + token_ps - now - shape.tokens.burst_ps, "tokens_exceeded", "tokens", shape.name))
        if bucket.crowded():
            waits.append((SECOND, "concurrency_exceeded", "concurrent requests", shape.name))
        worst = max([worst, *(wait for wait in waits if wait[0] > 0)])
    return worst


def exceeded(buckets: Sequence[Bucket], costs: Sequence[int], now: int) -> LimitExceeded:
    """The error for the bucket that makes the caller wait longest."""
    wait_ps, code, what, name = longest_wait(buckets, costs, now)
    return LimitExceeded(
        f"Too many {what}: the limit '{name}' is reached.",
        code=code,
        retry_after=max(0.001, -(-wait_ps // MILLISECOND) / 1000),
        headers=headers.pairs(buckets, now),
    )
