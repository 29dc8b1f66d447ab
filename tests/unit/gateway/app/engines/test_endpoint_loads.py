"""The load of endpoints: what the gateway counts and what engines say of themselves."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.app.engines.endpoint_loads import load_of, said
from gateway.routing.endpoints import Endpoint
from policies.scaling import ScaleRules, need_of, own_need_of


class Stub:
    """As much of an endpoint as is read."""

    def __init__(self, state: str = "ready", slots: int = 8, load_seconds: float | None = None, **details: Any) -> None:
        self.state, self.slots, self.load_seconds, self.details = state, slots, load_seconds, details


def members(*given: tuple[Stub, int]) -> list[tuple[Endpoint, int]]:
    return [(cast(Endpoint, stub), count) for stub, count in given]


def test_sidecars_and_external_engines_say_it_in_their_own_ways() -> None:
    assert said({"in_use": 2, "queue": 1, "kv_used": 0.5}) == (2.0, 1.0, 0.5)
    assert said({"in_use": 0, "kv_used": 1.0, "kv_held": 0.1}) == (0.0, None, 0.1)
    assert said({"load": {"running": 3.0, "kv": 0.1}, "queue": 9}) == (3.0, None, 0.1)
    assert said({"in_use": True, "queue": "many", "kv_used": -1}) == (None, None, None)


def test_replicas_that_are_gone_do_not_count_and_those_that_start_do() -> None:
    load = load_of(members((Stub(), 3), (Stub("starting"), 0), (Stub("unloaded"), 0), (Stub("draining"), 2)), 4.0, 1.5)
    assert (load.replicas, load.ready, load.slots, load.busy, load.waiting, load.queued_for) == (2, 1, 8.0, 5.0, 4.0, 1.5)


def test_an_engine_with_requests_waiting_inside_is_full_whatever_its_slots_are_said_to_be() -> None:
    load = load_of(members((Stub(slots=256, load={"running": 10.0, "waiting": 20.0}), 30)), 0.0, 0.0)
    assert (load.slots, load.busy, load.waiting) == (10.0, 10.0, 20.0)


def test_what_others_have_running_there_counts() -> None:
    assert load_of(members((Stub(load={"running": 7.0, "waiting": 0.0}), 2)), 0.0, 0.0).busy == 7.0


def test_several_gateways_at_one_engine_add_up_to_its_load() -> None:
    """Each hears of all that runs there; the sum must not grow with their number."""
    rules = ScaleRules(max=9, target=1.0, target_kv=1.0)
    told = {"running": 30.0, "waiting": 10.0, "kv": 0.9}
    loads = [load_of(members((Stub(slots=40, load=told), count)), queued, 0.0) for count, queued in ((4, 0.0), (16, 3.0), (20, 0.0))]
    assert sum(own_need_of(load, rules) for load in loads) == pytest.approx((30 + 10 + 3) / 30)  # it waits inside: 30 is all that it runs
    quiet = [load_of(members((Stub(slots=400, load={**told, "waiting": 0.0}), count)), 0.0, 0.0) for count in (10, 20)]
    assert sum(own_need_of(load, rules) for load in quiet) == pytest.approx(0.9)
    assert [need_of(load, rules)[0] for load in quiet] == [0.9, 0.9]
    alone = load_of(members((Stub(slots=8), 4), (Stub("draining"), 2)), 1.0, 0.0)
    assert own_need_of(alone, rules) == need_of(alone, rules)[0] == 7 / 8


def test_kv_is_the_mean_of_those_that_say_it_and_a_load_takes_as_long_as_the_longest() -> None:
    load = load_of(members((Stub(kv_used=0.2, load_seconds=3.0), 0), (Stub(kv_used=0.6, load_seconds=9.0), 0), (Stub(), 0)), 0.0, 0.0)
    assert load.kv == pytest.approx(0.4) and load.load_seconds == 9.0


def test_without_any_that_serves() -> None:
    load = load_of(members((Stub("down", slots=4), 0)), 2.0, 1.0)
    assert (load.replicas, load.ready, load.slots, load.kv) == (0, 0, 4.0, None)
