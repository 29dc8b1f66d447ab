"""Endpoints across reloads."""

from __future__ import annotations

import msgspec

from gateway.core.errors import EngineError
from gateway.core.secret import Secret
from gateway.core.specs import EngineSpec, ModelSpec, PoolMemberSpec, RoutingSpec, TimeoutsSpec
from gateway.routing.build import build_router
from gateway.routing.registry import MANY, EndpointRegistry
from tests.unit.gateway.routing.fleet import SUCCESS, FixedEntropy, Fleet, settled, sidecar
from tests.waiting import reached


def pair() -> ModelSpec:
    return ModelSpec(name="m", pool=("a", "b"))


def test_a_reload_keeps_what_did_not_change():
    fleet = Fleet(2)
    running = fleet.attempt()
    fleet.fail("b", 5)
    before = fleet.route
    fleet.load()
    assert fleet.route is before
    assert fleet.in_flight() == 1
    assert fleet.state("b") == "open"
    assert len(fleet.clients) == 2
    running.close(SUCCESS)
    assert fleet.in_flight() == 0


def test_a_changed_model_gets_a_new_route_over_the_same_endpoints():
    fleet = Fleet(2)
    fleet.fail("b", 5)
    before = fleet.route
    fleet.load(models=(ModelSpec(name="m", pool=("a", "b"), routing=RoutingSpec(policy="round_robin")),))
    assert fleet.route is not before
    assert fleet.state("b") == "open"
    assert len(fleet.clients) == 2


def test_of_a_large_pool_only_what_has_changed_is_made_anew_and_no_two_routes_count_together():
    fleet = Fleet(3)
    before, members = fleet.route, dict(fleet.router.members)
    fleet.load(engines=(*fleet.engines[:2], msgspec.structs.replace(fleet.engines[2], slots=7)))
    assert fleet.route is before, "slots are the endpoint's"
    assert [name for name, member in fleet.router.members.items() if member is not members[name]] == ["c"]
    running = fleet.attempt()
    fleet.load(engines=(*fleet.engines[:2], msgspec.structs.replace(fleet.engines[2], timeouts=TimeoutsSpec(total=1.0))))
    assert fleet.route is not before and [member.total_timeout for member in fleet.route.members][2] == 1.0
    assert not {*before.members} & {*fleet.route.members} and [member.index for member in fleet.route.members] == [0, 1, 2]
    assert sum(member.load for member in before.members) == 1.0 and sum(member.load for member in fleet.route.members) == 0.0
    running.close(SUCCESS)
    other = (ModelSpec(name="m", pool=(PoolMemberSpec(engine="a", weight=0.0), "b", PoolMemberSpec(engine="c", model="x"))),)
    fleet.load(models=other)
    assert [(member.endpoint.name, member.index, member.upstream_model) for member in fleet.route.members] == [
        ("b", 0, None),
        ("c", 1, "x"),
    ]
    fleet.load()
    assert [member.endpoint.name for member in fleet.route.members] == ["b", "c"]


def test_requests_waiting_on_the_old_route_are_still_served():
    fleet = Fleet(1, engine={"slots": 1})
    running, old = fleet.attempt(), fleet.wait()
    fleet.load(models=(ModelSpec(name="m", pool=("a",), max_tokens=5),))
    new = fleet.wait()
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert old.value is not None and not new.done
    old.value.close(SUCCESS)
    fleet.scheduler.run()
    assert new.done


def test_settings_that_need_no_new_connection_change_in_place():
    fleet = Fleet(1)
    running = fleet.attempt()
    timeouts = TimeoutsSpec(first_byte=3.0)
    spec = EngineSpec(name="a", runtime="external", url="http://a:80", slots=7, timeouts=timeouts, api_key=Secret("k" * 32))
    fleet.load(engines=(spec,))
    (view,) = fleet.registry.endpoints()
    assert (view["slots"], view["in_flight"]) == (7, 1)
    attempt = fleet.attempt()
    assert attempt.first_byte_timeout == 3.0
    assert attempt.request_headers == b"authorization: Bearer " + b"k" * 32 + b"\r\n"
    assert running.first_byte_timeout == 120.0
    assert len(fleet.clients) == 1


async def test_another_url_is_another_endpoint_and_the_old_one_finishes_first():
    fleet = Fleet(1)
    running = fleet.attempt()
    fleet.load(engines=(EngineSpec(name="a", runtime="external", url="http://elsewhere:80"),))
    assert fleet.in_flight() == 0
    assert fleet.attempt().client is fleet.clients[1]
    await settled()
    assert not fleet.clients[0].closed
    running.close(SUCCESS)
    await settled()
    assert fleet.clients[0].closed
    assert fleet.in_flight() == 1


def test_a_url_may_end_with_v1():
    fleet = Fleet(1)
    fleet.load(engines=(*fleet.engines, EngineSpec(name="b", runtime="external", url="http://b:80/base/v1/")), models=(pair(),))
    assert fleet.clients[-1].address == "http://b:80/base"


async def test_requests_waiting_for_an_endpoint_that_was_replaced_are_still_served_by_it():
    fleet = Fleet(1, engine={"slots": 1})
    running, waiting = fleet.attempt(), fleet.wait()
    fleet.load(engines=(EngineSpec(name="a", runtime="external", url="http://elsewhere:80", slots=1),))
    running.close(SUCCESS)
    fleet.scheduler.run()
    await settled()
    assert waiting.value is not None
    assert waiting.value.client is fleet.clients[0]
    assert not fleet.clients[0].closed
    waiting.value.close(SUCCESS)
    await settled()
    assert fleet.clients[0].closed


async def test_requests_waiting_for_a_removed_sidecar_that_dies_are_not_sent_to_it():
    fleet = Fleet(1)
    fleet.load(engines=(*fleet.engines, sidecar("s", slots=1)), models=(ModelSpec(name="m", pool=("s",)),))
    fleet.registry.engine_ready("s", "unix:/s.sock", 1)
    running, waiting = fleet.attempt(), fleet.wait()
    fleet.load(models=(ModelSpec(name="m", pool=("a",)),))
    fleet.registry.engine_down("s", "stopped")
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert isinstance(waiting.error, EngineError)
    fleet.advance(0.1)
    await settled()
    assert running.client.closed  # type: ignore[attr-defined]


async def test_a_removed_endpoint_closes_when_the_last_waiting_request_has_left():
    fleet = Fleet(2, engine={"slots": 1})
    fleet.attempt(tried=("a",))
    retry = fleet.wait(tried=("a",))
    before = fleet.route
    fleet.load(models=(ModelSpec(name="m", pool=("b",)),))
    await settled()
    assert not fleet.clients[0].closed
    before.abandon(retry)
    fleet.advance(0.1)
    await settled()
    assert fleet.clients[0].closed
    assert not fleet.clients[1].closed


async def test_an_endpoint_that_is_removed_closes_when_idle():
    fleet = Fleet(2)
    fleet.load(models=(ModelSpec(name="m", pool=("a",)),))
    await settled()
    assert [client.closed for client in fleet.clients] == [False, True]
    assert [view["name"] for view in fleet.registry.endpoints()] == ["a"]


def test_a_router_that_is_not_activated_changes_nothing():
    fleet = Fleet(1)
    build_router((ModelSpec(name="x", pool=("z",)),), (EngineSpec(name="z", runtime="external", url="http://z"),), fleet.registry)
    assert [view["name"] for view in fleet.registry.endpoints()] == ["a"]
    assert fleet.registry.find("z") is None and fleet.events == [("a", "starting", "ready", "taken as ready until its first probe")]


def test_the_names_of_a_model_at_its_engines():
    fleet = Fleet(2, engine={"slots": 1})
    pool = ("a", PoolMemberSpec(engine="b", model="theirs"))
    fleet.load(models=(ModelSpec(name="m", pool=pool, upstream_model="common"),))
    attempts = (fleet.attempt("1"), fleet.attempt("2"))
    assert {attempt.endpoint_name: attempt.upstream_model for attempt in attempts} == {"a": "common", "b": "theirs"}


async def test_closing_the_registry_closes_the_clients():
    fleet = Fleet(3)
    await fleet.registry.aclose()
    assert all(client.closed for client in fleet.clients)


def many(count: int) -> tuple[tuple[EngineSpec, ...], tuple[ModelSpec, ...]]:
    engines = tuple(EngineSpec(name=f"e{n}", runtime="external", url=f"http://e{n}:80", slots=1) for n in range(count))
    return engines, (ModelSpec(name="m", pool=tuple(engine.name for engine in engines)),)


def test_many_endpoints_that_come_into_force_are_told_as_one():
    fleet = Fleet(1)
    told: list[list[str]] = []
    registry = EndpointRegistry(
        fleet.clock, FixedEntropy(), fleet.client, lambda *event: fleet.events.append(event), fleet.scheduler, on_many=told.append
    )
    fleet.registry = registry
    fleet.load(*many(MANY))
    assert told == [] and [event[0] for event in fleet.events[1:]] == [f"e{n}" for n in range(MANY)]
    fleet.events.clear()
    fleet.load(*many(2 * MANY + 1))
    assert told == [[f"e{n}" for n in range(MANY, 2 * MANY + 1)]] and fleet.events == []
    fleet.registry.force("e3", "open")
    assert [event[:3] for event in fleet.events] == [("e3", "ready", "open")]


async def test_many_endpoints_that_go_finish_what_they_have_and_close_their_clients():
    fleet = Fleet(1)
    fleet.load(*many(3 * MANY))
    running = fleet.attempt()
    fleet.load(*many(1))
    kept = {"http://e0:80", running.client.address}
    await reached(lambda: all(client.closed or client.address in kept for client in fleet.clients))
    assert [client.address for client in fleet.clients if not client.closed] in (sorted(kept), sorted(kept, reverse=True))
    running.close(SUCCESS)
    await reached(lambda: {client.address for client in fleet.clients if not client.closed} == {"http://e0:80"})
    await fleet.registry.aclose()


async def test_clients_that_wait_to_be_closed_are_closed_with_the_registry():
    fleet = Fleet(1)
    fleet.load(*many(3 * MANY))
    fleet.load(*many(1))
    await fleet.registry.aclose()
    assert all(client.closed for client in fleet.clients)
