"""The routing policies. To add one: a class in selectors.py (or a file here), a line in ROWS, a heading in docs/routing.md; the contract
suite takes it from ROWS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.core.plugins import SelectorContext, SelectorRow
from gateway.routing.selectors import ConsistentHash, LeastOutstanding, PowerOfTwo, RoundRobin, Selector, Weighted


def _over_members(selector: Callable[..., Selector]) -> Callable[[Any, SelectorContext], Selector]:
    """The build of a policy without settings of its own."""
    return lambda settings, context: selector(context.members, context.bound, context.entropy)


ROWS: Final = (
    SelectorRow(name="consistent_hash", build=lambda _, c: ConsistentHash(c.members, c.bound, c.entropy, c.ring), ring=True),
    SelectorRow(name="least_outstanding", build=_over_members(LeastOutstanding)),
    SelectorRow(name="power_of_two", build=_over_members(PowerOfTwo)),
    SelectorRow(name="round_robin", build=_over_members(RoundRobin)),
    SelectorRow(name="weighted", build=_over_members(Weighted)),
)
