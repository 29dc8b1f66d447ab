"""Which endpoints of a pool may get a second attempt at a request that takes long at another one. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from gateway.routing.selectors import Member

LOADED: Final = 0.8
"""The share of a pool's slots that are taken from which on there are no second attempts."""


def may_hedge(members: Iterable[Member], endpoint: str, full: Container[str]) -> tuple[str, ...] | None:
    """The endpoints that must not get it: those that do not work, had no room (`full`), whose breakers try them out, or for which others
    wait. None where nobody may: the pool is loaded, or the endpoint itself is being tried out, and its answer must show what it is to
    show."""
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
