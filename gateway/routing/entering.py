"""What a router will change among the endpoints in force, found in steps before it comes into force.

Of ten thousand endpoints a reload changes a few. To find them takes longer than the loop may be held; to put them into force, which has to
be one step, does not. New endpoints of external engines get their clients here, as nobody routes to them yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.core.slices import Steps
from gateway.core.specs import BreakerSpec, EngineSpec
from gateway.routing.endpoints import Endpoint

AT_ONCE: Final = 64
"""Endpoints that are looked at between two pauses."""


class Fleet(Protocol):
    """The registry's view of a router that goes into force."""

    @property
    def members(self) -> Mapping[str, tuple[Endpoint, EngineSpec, BreakerSpec]]: ...


@dataclass(slots=True)
class Entering:
    """fleet: the router. endpoints: all that it has, by name. made: the new ones that have their clients. changed: those whose settings are
    new, or which wait for their engine. gone: those in force that it does not have."""

    fleet: Fleet
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    made: list[Endpoint] = field(default_factory=list)
    changed: list[tuple[Endpoint, EngineSpec, BreakerSpec]] = field(default_factory=list)
    gone: list[Endpoint] = field(default_factory=list)

    def names(self) -> set[str]:
        """The names of all endpoints that are new, changed or gone."""
        found = {endpoint.name for endpoint in (*self.made, *self.gone)}
        return found | {endpoint.name for endpoint, _, _ in self.changed}


def entering_steps(now: Mapping[str, Endpoint], fleet: Fleet, connect: Callable[[Endpoint], None]) -> Steps[Entering]:
    """now: the endpoints in force, which no other router may change meanwhile. connect: gives a new endpoint its client."""
    found = Entering(fleet)
    for number, (name, member) in enumerate(fleet.members.items(), 1):
        endpoint, spec, breaker = member
        found.endpoints[name] = endpoint
        if now.get(name) is not endpoint and endpoint.first is not None:
            endpoint.reconfigure(spec, breaker)
            connect(endpoint)
            found.made.append(endpoint)
        elif endpoint.client is None or spec is not endpoint.spec or breaker != endpoint.breaker.spec:
            found.changed.append(member)
        if number % AT_ONCE == 0:
            yield
    for number, (name, endpoint) in enumerate(now.items(), 1):
        if found.endpoints.get(name) is not endpoint:
            found.gone.append(endpoint)
        if number % AT_ONCE == 0:
            yield
    return found
