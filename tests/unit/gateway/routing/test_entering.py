"""What a router changes among the endpoints in force: what it costs to put one of many into force does not depend on how many stay."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.secret import Secret
from gateway.core.slices import at_once
from gateway.core.specs import EngineSpec, ModelSpec
from gateway.routing.build import build_router
from gateway.routing.endpoints import Endpoint
from gateway.routing.entering import AT_ONCE, entering_steps
from gateway.routing.registry import EndpointRegistry
from tests.unit.gateway.routing.fleet import FixedEntropy, Fleet, sidecar


def many(count: int) -> tuple[tuple[EngineSpec, ...], tuple[ModelSpec, ...]]:
    engines = tuple(EngineSpec(name=f"e{n}", runtime="external", url=f"http://e{n}:80", slots=1) for n in range(count))
    return engines, (ModelSpec(name="m", pool=tuple(engine.name for engine in engines)),)


def begun(fleet: Fleet, engines: tuple[EngineSpec, ...], models: tuple[ModelSpec, ...]):
    """A router that has done what it can before it comes into force."""
    router = build_router(models, engines, fleet.registry)
    at_once(fleet.registry.entering(router))
    return router


async def test_only_what_has_changed_is_left_for_the_step_that_puts_it_into_force(monkeypatch: pytest.MonkeyPatch):
    fleet = Fleet(1)
    engines, models = many(500)
    fleet.load(engines, models)
    changed = msgspec.structs.replace(engines[7], slots=9)
    router = build_router(models, (*engines[:7], changed, *engines[8:]), fleet.registry)
    steps = entering_steps(fleet.registry._endpoints, router, fleet.registry._connect)
    pauses = sum(1 for _ in steps)
    assert pauses >= 2 * (500 // AT_ONCE)
    at_once(fleet.registry.entering(router))
    touched: list[str] = []

    class Members(dict):  # type: ignore[type-arg]
        def __iter__(self):
            raise AssertionError("looks at every member")

        items = values = __iter__

    router.members = Members(router.members)
    fleet.registry._on_change = lambda *event: touched.append(event[0])
    found = fleet.registry.activate(router)
    assert [endpoint.name for endpoint, _, _ in found.changed] == ["e7"] and not found.made and not found.gone
    assert found.names() == {"e7"} and touched == []
    found_now = fleet.registry.find("e7")
    assert found_now is not None and found_now.slots == 9


async def test_new_endpoints_are_ready_before_they_are_in_force_and_told_once_they_are():
    fleet = Fleet(1)
    fleet.events.clear()
    version = fleet.registry.version
    router = begun(fleet, *many(3))
    assert fleet.registry.version == version and fleet.events == [] and fleet.registry.find("e0") is None
    made = [endpoint for endpoint, _, _ in router.members.values()]
    assert [endpoint.state for endpoint in made] == ["ready"] * 3 and fleet.registry.find("a") is not None
    fleet.registry.activate(router)
    assert fleet.registry.version > version
    assert [event for event in fleet.events if event[2] == "ready"] == [
        (f"e{n}", "starting", "ready", "taken as ready until its first probe") for n in range(3)
    ]
    fleet.router = router
    assert fleet.attempt().endpoint_name in ("e0", "e1", "e2")


async def test_what_was_found_for_another_router_is_found_again():
    fleet = Fleet(1)
    first = begun(fleet, *many(3))
    other = build_router(*reversed(many(2)), fleet.registry)
    fleet.registry.activate(other)
    fleet.registry.activate(first)
    assert [view["name"] for view in fleet.registry.endpoints()] == ["e0", "e1", "e2"]
    assert {view["state"] for view in fleet.registry.endpoints()} == {"ready"}


async def test_an_engine_that_becomes_ready_or_fails_in_between_is_as_it_is():
    fleet = Fleet(1)
    models = (ModelSpec(name="m", pool=("s", "t")),)
    fleet.registry.engine_ready("t", "unix:/t.sock", 2)
    router = begun(fleet, (*fleet.engines, sidecar("s"), sidecar("t")), models)
    fleet.registry.engine_ready("s", "unix:/s.sock", 3)
    fleet.registry.engine_down("t", "it crashed")
    fleet.registry.activate(router)
    assert {view["name"]: view["state"] for view in fleet.registry.endpoints()} == {"s": "ready", "t": "down"}


async def test_slots_that_are_shared_out_in_between_count():
    fleet = Fleet(1)
    registry = fleet.registry = EndpointRegistry(fleet.clock, FixedEntropy(), fleet.client, None, fleet.scheduler)
    registry.shares = {}
    router = begun(fleet, *many(1))
    endpoint: Endpoint = router.members["e0"][0]
    assert endpoint.slots == 0
    registry.shares["e0", "http://e0:80"] = 5
    registry.activate(router)
    assert endpoint.slots == endpoint.limit == 5


async def test_settings_in_place_come_into_force_with_the_router_and_not_before():
    fleet = Fleet(1)
    spec = msgspec.structs.replace(fleet.engines[0], slots=7, api_key=Secret("k" * 32))
    router = begun(fleet, (spec,), fleet.models)
    assert fleet.registry.find("a").slots == 2  # type: ignore[union-attr]
    fleet.registry.activate(router)
    assert fleet.registry.find("a").slots == 7  # type: ignore[union-attr]
