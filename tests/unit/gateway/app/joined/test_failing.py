"""Which placed engines are moved because they fail, and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app.joined.failing import LONGEST_MOVE, PAUSE, Failing, Sight, sight
from gateway.app.joined.placing import Host
from gateway.core.joining import PlacedEngine, Room
from gateway.core.specs import BreakerSpec, EngineSpec
from gateway.routing.endpoints import Endpoint
from gateway.routing.health import ProbeResult

REVISION = "a" * 32
WELL, PROBES = Sight("well"), Sight("probes", "no answer")
AFTER = 30.0


def host(name: str, *engines: str, **fields: Any) -> Host:
    room = Room(placed=tuple(PlacedEngine(name=one, revision=REVISION) for one in engines))
    given = {"serves": ("*",), "drained": False, "silent": None, "since": 0.0, "room": room, "ready": frozenset(engines), **fields}
    return Host(name=name, **given)


class House:
    """Machines x, y and z, each with the engine `chat`; seen: what the gateway sees of them now."""

    def __init__(self) -> None:
        self.now, self.events, self.places = 0.0, list[tuple[str, str, dict[str, Any]]](), True
        self.failing = Failing(lambda: self.now, lambda *event: self.events.append(event))
        self.hosts = [host(name, "chat") for name in "xyz"]
        self.wanted, self.after = {"chat": REVISION}, AFTER
        self.seen = {("chat", name): WELL for name in "xyz"}

    def look(self, seconds: float = 0.0, **seen: Sight) -> list[str]:
        """The machines from which the engine is to be moved after so many seconds."""
        self.now += seconds
        self.seen |= {("chat", name): one for name, one in seen.items()}
        moving = self.failing.look(self.hosts, self.wanted, self.seen, self.after, places=lambda engine: self.places)
        return [machine for _, machine in moving]

    @property
    def told(self) -> list[str]:
        return [f"{event} {engine} {detail['machine']}" for event, engine, detail in self.events]


def test_a_pause_of_this_process_is_no_failure_of_an_engine() -> None:
    house = House()
    house.look(x=PROBES)
    house.look(1.0)
    house.now += 60.0
    places = {"places": lambda engine: True, "stood": 60.0}
    assert house.failing.look(house.hosts, house.wanted, house.seen, AFTER, **places) == {}
    assert house.look(AFTER - 1.1) == [] and house.look(0.2) == ["x"]


def test_what_fails_its_probes_for_as_long_as_is_set_is_moved_and_said_once() -> None:
    house = House()
    assert house.look(x=PROBES) == [] and house.look(AFTER - 0.1) == []
    assert house.failing.why("chat", "x") == "no answer (for 30 s)" and house.failing.why("chat", "y") == ""
    assert house.look(0.1) == ["x"] and house.look(5.0) == ["x"]
    assert house.told == ["engine_failing chat x"]
    assert house.failing.at("x").startswith("chat: no answer")
    samples = {sample.name: sample.value for family in house.failing.collect() for sample in family.samples}
    assert samples == {"gatehouse_placed_engine_failing": 1.0, "gatehouse_placed_engine_moves_total": 1.0}


def test_one_good_moment_begins_the_time_anew() -> None:
    house = House()
    house.look(x=PROBES)
    house.look(AFTER - 1.0, x=WELL)
    assert house.look(1.0, x=PROBES) == [] and house.look(AFTER - 1.0) == []
    house.look(0.0, x=Sight(""))
    assert house.look(60.0) == [] and house.look(0.0, x=PROBES) == [], "whether it works could not be said for a while"
    assert house.look(AFTER) == ["x"]


def test_failed_requests_count_by_how_often_the_breaker_opens_and_not_by_how_long_nobody_asks() -> None:
    house = House()
    assert house.look(x=Sight("requests", "its requests fail", 1)) == []
    assert house.look(AFTER * 10) == [], "its breaker waits for a request"
    assert house.look(1.0, x=Sight("requests", "its requests fail", 2)) == []
    assert house.look(1.0, x=Sight("requests", "its requests fail", 3)) == ["x"]


def test_a_process_that_ends_again_and_again_is_moved_and_one_that_ended_once_is_not() -> None:
    house = House()
    ended, loading = Sight("ended", "its process ends again and again"), Sight("")
    for _ in range(2):
        assert house.look(10.0, x=ended) == [] and house.look(10.0, x=ended) == [] and house.look(10.0, x=loading) == []
    assert house.look(600.0) == [], "it loads"
    assert house.look(1.0, x=ended) == ["x"]


def test_a_gateway_that_sees_most_machines_fail_moves_nothing() -> None:
    house = House()
    house.look(x=PROBES, y=PROBES)
    assert house.look(10 * AFTER) == [] and house.told == []
    assert "2 of 3 machines fail as this gateway sees them" in house.failing.why("chat", "x")
    assert house.look(1.0, y=WELL) == ["x"]
    assert house.look(1.0, y=PROBES, z=PROBES) == [], "a move that has begun stands still, too"
    other = House()
    del other.hosts[1:], other.seen["chat", "y"], other.seen["chat", "z"]
    other.look(x=PROBES)
    assert other.look(AFTER) == ["x"], "the only machine: another one must take the order"
    other.seen["own", "y"] = WELL
    other.seen["chat", "y"] = PROBES
    assert other.look(1.0) == ["x"], "a machine of which one engine works can be reached"


def test_one_machine_of_an_engine_at_a_time_and_pauses_that_double() -> None:
    house = House()
    house.hosts += [host(name) for name in "vw"]
    house.seen |= {("own", name): WELL for name in "vw"}
    house.look(x=PROBES)
    house.look(1.0, y=PROBES)
    assert house.look(AFTER) == ["x"] and house.failing.over == {("chat", "x"), ("chat", "y")}
    del house.seen["chat", "x"]
    house.hosts[0] = host("x")
    assert house.look(1.0) == [], "it has left x"
    assert house.failing.shunned == {("chat", "x")}
    assert house.look(PAUSE - 0.1) == [] and house.look(0.1) == ["y"]
    house.look(1.0, y=WELL)
    assert house.failing.shunned == set(), "x may have it again, and it works at y"
    house.look(1.0, y=PROBES)
    assert house.look(2 * PAUSE - 1.1) == [] and house.look(0.1) == ["y"]
    assert house.told == ["engine_failing chat x", "engine_failing chat y", "engine_failing chat y"]


def test_what_stands_still_is_no_longer_moved_after_a_while() -> None:
    house = House()
    house.look(x=PROBES)
    assert house.look(AFTER) == ["x"] and house.look(LONGEST_MOVE) == ["x"]
    assert house.look(0.1) == []
    assert house.look(2.0, x=PROBES) == [] and house.look(PAUSE) == ["x"], "it fails on, and has its pause"


@pytest.mark.parametrize("change", ["never", "older", "drained", "silent", "failed", "not its gateway"])
def test_who_is_left_alone(change: str) -> None:
    house = House()
    x = house.hosts[0]
    if change == "never":
        house.after = 0.0
    elif change == "older":
        house.wanted = {"chat": "b" * 32}
    elif change == "drained":
        house.hosts[0] = host("x", "chat", drained=True)
    elif change == "silent":
        house.hosts[0] = host("x", "chat", silent=1.0)
    elif change == "failed":
        house.hosts[0] = host("x", room=Room(placed=(PlacedEngine(name="chat", revision=REVISION, failed=REVISION),)))
    else:
        house.places = False
    house.look(x=PROBES)
    assert house.look(10 * AFTER) == [] and house.told == [], x


class Effects:
    """What an endpoint asks of its registry."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


def test_what_an_endpoint_shows() -> None:
    effects = Effects()
    endpoint = Endpoint(EngineSpec(name="chat@x", runtime="external"), effects, BreakerSpec(failures=1))  # type: ignore[arg-type]
    ready, none = frozenset({"chat"}), frozenset[str]()
    client: Any = object()
    endpoint.ready("10.0.0.1:1", 1, client)

    def seen() -> Sight:
        return sight("chat", ready, none, endpoint)

    assert seen().kind == "well"
    assert sight("chat", none, none, endpoint).kind == sight("chat", ready, none, None).kind == "", "nothing is there to be judged"
    assert sight("chat", none, ready, endpoint).kind == "ended"
    endpoint.ended("failure", endpoint.epoch, client)
    first = seen()
    assert first.kind == "requests"
    effects.time += 10.0
    endpoint.tick(effects.time)
    assert seen() == first, "its breaker lets one through"
    endpoint.ended("failure", endpoint.epoch, client)
    assert seen().kind == "requests" and seen() != first
    endpoint.force("open")
    assert seen().kind == "", "an operator's own doing"
    endpoint.force("closed")
    assert seen().kind == "well", "an operator says so"
    endpoint.force(None)
    endpoint.probed(ProbeResult(False, "connection refused", refused=True))
    assert (seen().kind, seen().why) == ("probes", "connection refused")
    endpoint.drain(True)
    assert seen().kind == ""
