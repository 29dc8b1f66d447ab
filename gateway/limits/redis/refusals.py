"""Refusals without asking: what was said of a bucket a moment ago is enough to refuse what costs as much."""

from __future__ import annotations

from gateway.core.errors import GatehouseError
from gateway.limits.exceeded import exceeded, longest_wait
from gateway.limits.redis.calls import Asked
from gateway.limits.redis.meters import PS


def as_before(asked: Asked, now: int) -> GatehouseError | None:
    """The error for a request that would be refused as one before it was: of the bucket that makes it wait longest."""
    worst = place = 0
    for index, (pot, ticks) in enumerate(zip(asked.pots, asked.ticks, strict=True)):
        if now < pot.short_until and pot.hopeless(ticks):
            short = longest_wait((pot,), (asked.units[index],), (now - pot.seen) * PS)
            if short is not None and short.wait_ps > worst:
                worst, place = short.wait_ps, index
    if not worst:
        return None
    pot = asked.pots[place]
    return exceeded((pot,), (asked.units[place],), (now - pot.seen) * PS)
