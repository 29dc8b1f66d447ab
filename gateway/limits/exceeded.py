"""The errors of limits, from the state of the buckets that apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.errors import GatehouseError, LimitExceeded, Overloaded, QuotaExceeded
from gateway.limits import headers
from gateway.limits.bucket import MILLISECOND, SECOND, Bucket
from gateway.limits.meter import NEVER, Meter

FOR_GOOD: Final = 1 << 62
"""The wait for what will never pass."""


class Short:
    """One amount of which there is too little. wait_ps: until there is enough. away: nobody knows, because the store does not answer. here:
    only of what is in hand; the store may have enough, and was not asked."""

    __slots__ = ("away", "bucket", "code", "cost", "here", "meter", "wait_ps")

    def __init__(
        self, bucket: Bucket, meter: Meter | None, code: str, wait_ps: int, cost: int = 0, away: bool = False, here: bool = False
    ) -> None:
        self.bucket, self.meter, self.code, self.wait_ps, self.cost, self.away = bucket, meter, code, wait_ps, cost, away
        self.here = here


def longest_wait(buckets: Sequence[Bucket], costs: Sequence[list[int]], now: int) -> Short | None:
    """Of the amounts of which there is too little, the one that makes the caller wait longest; None if there is enough of all. Limits that
    are not enforced do not count. One of which the store may have more counts only where there is no other."""
    worst: Short | None = None
    for bucket, cost in zip(buckets, costs, strict=True):
        if bucket.shape.enforce:
            for short in shortages(bucket, cost, now):
                if worst is None or (worst.here, short.wait_ps) > (short.here, worst.wait_ps):
                    worst = short
    return worst


def shortages(bucket: Bucket, costs: list[int], now: int) -> list[Short]:
    """All amounts of which one bucket has too little for this."""
    found: list[Short] = []
    shape = bucket.shape
    for index, meter in enumerate(shape.meters):
        cost = costs[index]
        cell = bucket.cells[index]
        stock = cell.stock
        if stock is not None:
            if not stock.covers(now, cost):
                away = now < stock.down_until and (shape.on_failure == "closed" or not stock.heard)
                wait = max(MILLISECOND, stock.wait_until - now)
                found.append(Short(bucket, meter, meter.code, wait, cost, away, stock.may_have(now, cost)))
            continue
        over = cell.full + cost * meter.unit - meter.burst_ps
        if not meter.frozen:
            over -= now
        if over > 0:
            found.append(Short(bucket, meter, meter.code, bucket.wait(index, now) if meter.frozen else over, cost))
    if bucket.over(now):
        found.append(Short(bucket, None, "session_exceeded", FOR_GOOD))
    if bucket.crowded():
        found.append(Short(bucket, None, "concurrency_exceeded", SECOND))
    return found


def exceeded(buckets: Sequence[Bucket], costs: Sequence[list[int]], now: int) -> GatehouseError:
    """The error for the amount that makes the caller wait longest."""
    worst = longest_wait(buckets, costs, now)
    if worst is None:  # given back meanwhile
        return LimitExceeded("Too many requests at this moment.", retry_after=0.001)
    if worst.away:
        return Overloaded("The limits of this key cannot be checked now.", code="limits_unavailable", retry_after=1.0)
    error = _refusal(worst, buckets, now)
    error.limit = worst.bucket.shape.name
    return error


def _refusal(worst: Short, buckets: Sequence[Bucket], now: int) -> LimitExceeded:
    name, meter, code = worst.bucket.shape.name, worst.meter, worst.code
    shown = headers.pairs(buckets, now)
    retry_after = max(0.001, -(-worst.wait_ps // MILLISECOND) / 1000)
    if code == "insufficient_quota" and meter is not None:
        left = max(0, meter.burst - worst.bucket.debt(worst.bucket.shape.meters.index(meter), now))
        return QuotaExceeded(
            f"The budget '{name}' has {meter.written(left)} left; this needs {meter.needed(worst.cost)}.",
            retry_after=retry_after if worst.wait_ps < FOR_GOOD else None,
            headers=(*NEVER, *shown),
        )
    if code == "session_exceeded":
        what = "time" if meter is None else meter.words
        return LimitExceeded(f"This session has used up its {what}: the limit '{name}' is reached.", code=code, headers=(*NEVER, *shown))
    what = meter.words if meter is not None else "queued requests" if worst.bucket.shape.spec.queued else "concurrent requests"
    return LimitExceeded(f"Too many {what}: the limit '{name}' is reached.", code=code, retry_after=retry_after, headers=shown)
