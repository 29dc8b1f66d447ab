"""Data labels: no path leads a request to an endpoint that is not cleared for all of its labels."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.core.errors import ConfigError, EngineError, Overloaded, PermissionDenied
from gateway.core.specs import BreakerSpec, EngineSpec, ModelSpec, QueueSpec, RoutingSpec
from gateway.core.types import Principal
from gateway.routing.build import build_router, clearance
from gateway.routing.router import PoolAttempt, Waiting
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Fleet, chat, names

LABELS = ("pii", "restricted", "secret")
POLICIES = ("consistent_hash", "least_outstanding", "power_of_two", "round_robin", "weighted")


def labelled(fleet: Fleet, labels: set[str], **options: Any) -> PoolAttempt | Waiting:
    request = chat(options.pop("text", "hello"))
    request.labels = frozenset(labels)
    tried, tenant = options.pop("tried", ()), options.pop("tenant", "t")
    granted = fleet.route.acquire(request, Principal("k", tenant, "api_key"), None, tried, fleet.clock.monotonic() + 600.0)
    assert not isinstance(granted, float)
    return granted


def fleet_of(clearances: dict[str, tuple[str, ...] | None], slots: int = 1, **routing: Any) -> Fleet:
    count = len(clearances)
    fleet = Fleet(count, routing=RoutingSpec(**routing))
    engines = tuple(
        EngineSpec(name=name, runtime="external", url=f"http://{name}:80", slots=slots, clearance=given)
        for name, given in zip(names(count), clearances.values(), strict=True)
    )
    fleet.load(engines, fleet.models)
    return fleet


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_no_endpoint_sees_data_that_it_is_not_cleared_for(policy: str, seed: int) -> None:
    """Full pools, retries, failures up to panic mode, queues, drains and reloads, in any order."""
    chance = random.Random(f"{policy} {seed}")
    count = chance.randint(2, 6)

    def engines() -> tuple[EngineSpec, ...]:
        choices = (None, (), ("*",), ("pii",), ("pii", "restricted"), ("restricted",), LABELS)
        return tuple(
            EngineSpec(name=name, runtime="external", url=f"http://{name}:80", slots=chance.randint(1, 2), clearance=chance.choice(choices))
            for name in names(count)
        )

    breaker = BreakerSpec(failures=1, open_for=0.2, max_ejected=chance.choice((0.0, 0.5)))
    routing = RoutingSpec(policy=policy, breaker=breaker, queue=QueueSpec(size=chance.choice((2, 50)), timeout=5.0))
    fleet = Fleet(count, routing=routing)
    fleet.load(engines(), fleet.models)
    seen = {engine.name: clearance(engine) for engine in fleet.engines}
    held: list[tuple[PoolAttempt, frozenset[str]]] = []
    waiting: list[tuple[Waiting, set[str], dict[str, frozenset[str] | None]]] = []
    granted = 0

    def check(attempt: PoolAttempt, labels: set[str], known: dict[str, frozenset[str] | None]) -> None:
        nonlocal granted
        granted += bool(labels)
        allowed = known[attempt.endpoint_name]
        assert allowed is None or labels <= allowed, (attempt.endpoint_name, labels, allowed)
        held.append((attempt, frozenset(labels)))

    for _ in range(400):
        step = chance.random()
        if step < 0.5:
            labels = {label for label in LABELS if chance.random() < 0.3}
            tried = tuple(name for name in names(count) if chance.random() < 0.15)
            try:
                found = labelled(fleet, labels, tried=tried, text=str(chance.random()), tenant=chance.choice("xyz"))
            except PermissionDenied as error:
                assert error.code == "label_not_cleared" and labels
                assert not any(known is None or labels <= known for known in seen.values())
            except (EngineError, Overloaded):
                pass
            else:
                if isinstance(found, PoolAttempt):
                    check(found, labels, seen)
                else:
                    waiting.append((found, labels, seen))
        elif step < 0.85 and held:
            attempt, _ = held.pop(chance.randrange(len(held)))
            attempt.close(chance.choice((SUCCESS, SUCCESS, FAILURE, REFUSED, NEUTRAL)))
        elif step < 0.9:
            fleet.advance(0.3)
        elif step < 0.93 and waiting:
            given_up, _, _ = waiting.pop(chance.randrange(len(waiting)))
            fleet.route.abandon(given_up)
        elif step < 0.96:
            name = chance.choice(names(count))
            fleet.registry.resume(name) if chance.random() < 0.6 else fleet.registry.drain(name)
        elif step < 0.97:
            fleet.load(engines(), fleet.models)
            seen = {engine.name: clearance(engine) for engine in fleet.engines}
        fleet.scheduler.run()
        for entry in [one for one in waiting if one[0].done]:
            waiting.remove(entry)
            if entry[0].value is not None:
                check(entry[0].value, entry[1], entry[2])
    assert granted


def test_an_external_engine_is_cleared_for_nothing_and_a_sidecar_for_everything() -> None:
    external = EngineSpec(name="a", runtime="external", url="http://a:80")
    assert clearance(external) == frozenset()
    assert clearance(EngineSpec(name="b", runtime="llama.cpp", model="m.gguf")) is None
    assert clearance(EngineSpec(name="b", runtime="llama.cpp", model="m.gguf", clearance=())) == frozenset()
    assert clearance(EngineSpec(name="c", runtime="external", url="http://c:80", clearance=("*",))) is None


def test_a_request_that_nobody_may_see_is_refused_and_says_why() -> None:
    fleet = fleet_of({"a": None, "b": ("pii",)})
    with pytest.raises(PermissionDenied, match=r"No engine of m may see data with the labels pii, secret\.") as raised:
        labelled(fleet, {"pii", "secret"})
    assert (raised.value.status, raised.value.code) == (403, "label_not_cleared")
    assert isinstance(labelled(fleet, {"pii"}), PoolAttempt)


def test_a_cleared_endpoint_that_is_full_is_waited_for_while_others_are_free() -> None:
    fleet = fleet_of({"a": None, "b": ("pii",)})
    first = labelled(fleet, {"pii"})
    assert isinstance(first, PoolAttempt) and first.endpoint_name == "b"
    waiting = labelled(fleet, {"pii"})
    assert isinstance(waiting, Waiting) and fleet.route.backlog == 1
    assert isinstance(fleet.acquire(), PoolAttempt), "others are not held up"
    first.close(SUCCESS)
    fleet.scheduler.run()
    assert waiting.value is not None and waiting.value.endpoint_name == "b"
    waiting.value.close(SUCCESS)
    assert fleet.route.backlog == 0


def test_a_retry_stays_among_the_cleared() -> None:
    fleet = fleet_of({"a": None, "b": ("pii",), "c": None})
    again = labelled(fleet, {"pii"}, tried=("b",))
    assert isinstance(again, PoolAttempt) and again.endpoint_name == "b"
    assert not fleet.route.may_leave("b", 1, frozenset({"pii"})), "there is no other that may see it"
    assert fleet.route.may_leave("b", 1, frozenset())
    fleet.route.full("b", None, frozenset({"pii"}))
    assert not fleet.route.may_move(1, frozenset({"pii"}))
    fleet.route.full("b", None, frozenset())
    assert fleet.route.may_move(1, frozenset())
    assert fleet.route.serves(frozenset({"pii"})) and not fleet.route.serves(frozenset({"secret"}))


def test_a_label_that_no_engine_names_is_seen_by_those_that_may_see_all() -> None:
    fleet = fleet_of({"a": ("pii",), "b": ("*",)}, slots=8)
    assert {labelled(fleet, {"new"}).endpoint_name for _ in range(4)} == {"b"}  # type: ignore[union-attr]


def test_an_unchanged_pool_keeps_its_routes_and_another_clearance_makes_new_ones() -> None:
    fleet = fleet_of({"a": None, "b": ("pii",)})
    before = fleet.route
    fleet.load()
    assert fleet.route is before
    fleet.load(tuple(EngineSpec(name=e.name, runtime="external", url=e.url, slots=1) for e in fleet.engines), fleet.models)
    assert fleet.route is not before
    with pytest.raises(PermissionDenied):
        labelled(fleet, {"pii"})


def test_too_many_different_clearances_are_refused() -> None:
    labels = tuple(f"l{number}" for number in range(14))
    engines = tuple(
        EngineSpec(name=f"e{n}", runtime="external", url="http://x:80", clearance=tuple(one for one in labels if one != labels[n]))
        for n in range(14)
    )
    model = ModelSpec(name="m", pool=tuple(engine.name for engine in engines))
    with pytest.raises(ConfigError, match="differ in more than 64 ways"):
        build_router((model,), engines, Fleet().registry)
