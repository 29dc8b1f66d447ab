"""Which endpoints of a pool may get a second attempt at a request that takes long at another one. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from gateway.routing.selectors import Member

LOADED: Final = 0.8
"""No second attempts are made once this share of a pool's slots is taken."""


def may_hedge(members: Iterable[Member], endpoint: str, full: Container[str]) -> tuple[str, ...] | None:
    """The endpoints that must not get a second attempt: those that do not work, had no room (`full`), are being tried by their breakers, or
    have requests waiting. None if no endpoint may get one, because the pool is loaded, or because the first endpoint is itself being tried
    by its breaker, which needs to see its answer."""
    barred = [endpoint]
    used = slots = 0
    for member in members:
        here = member.endpoint
        roomy = here.name == endpoint or here.name not in full
        if here.state == "ready" and not here.probing and not here.waiting and roomy:
            used += here.in_flight
            slots += here.limit
        elif here.name == endpoint:
            return None
        else:
            barred.append(here.name)
    return None if used >= LOADED * slots else tuple(barred)
