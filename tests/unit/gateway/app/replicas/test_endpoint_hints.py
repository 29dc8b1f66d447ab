"""What a replica tells of its endpoints, and what it does when it is told: it probes, at a bounded pace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.app.replicas.endpoint_hints import GATHER, PAUSE, EndpointHints, digest
from gateway.core.specs import EngineSpec, HealthSpec
from gateway.routing.health import ProbeResult
from gateway.store.hints import MOST
from tests.unit.gateway.routing.fleet import REFUSED, SUCCESS, Fleet
from tests.waiting import reached


class Told:
    def __init__(self, fleet: Fleet) -> None:
        self.hints: list[Sequence[str]] = []
        self.fleet = fleet
        self.part = EndpointHints(fleet.registry, self.hints.append, fleet.clock)
        self.seen = len(fleet.events)

    async def news(self) -> list[Sequence[str]]:
        """Hands on what changed at the fleet; the hints that left."""
        for name, old, new, _ in self.fleet.events[self.seen :]:
            self.part.changed(name, old, new)
        self.seen = len(self.fleet.events)
        if self.part._timer is not None:
            await reached(lambda: self.part._timer is None)
        found, self.hints[:] = list(self.hints), []
        return found


class Probe:
    """Notes what is probed; everything refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult:
        self.asked.append(spec.name)
        return ProbeResult(ok=False, reason="refused", refused=True)

    async def forget(self, engine: str) -> None: ...

    async def aclose(self) -> None: ...


def trip(fleet: Fleet, name: str) -> None:
    endpoint = fleet.registry.find(name)
    assert endpoint is not None
    endpoint.probed(ProbeResult(ok=False, reason="refused", refused=True))


def heal(fleet: Fleet, name: str) -> None:
    endpoint = fleet.registry.find(name)
    assert endpoint is not None
    endpoint.probed(ProbeResult(ok=True))
    fleet.attempt(tried=tuple(other.name for other in fleet.registry.in_force() if other.name != name)).close(SUCCESS)


async def test_a_refusal_is_told_once_and_the_return_too() -> None:
    fleet = Fleet()
    told = Told(fleet)
    fleet.attempt(tried=("b", "c")).close(REFUSED)
    assert await told.news() == [[digest("http://a:80")]]
    fleet.clock.advance(PAUSE)
    heal(fleet, "a")
    assert await told.news() == [[digest("http://a:80")]]


async def test_what_changes_together_is_one_hint() -> None:
    fleet = Fleet(count=5)
    told = Told(fleet)
    for name in "abc":
        trip(fleet, name)
    assert await told.news() == [[digest(f"http://{name}:80") for name in "abc"]]
    assert GATHER < 0.1


async def test_many_are_several_hints() -> None:
    fleet = Fleet(count=26)
    told = Told(fleet)
    for name in "abcdefghijklmnopqrstuvwxyz":
        trip(fleet, name)
    told.part._leaving.update(dict.fromkeys(f"{n}" for n in range(20)))
    assert [len(hint) for hint in await told.news()] == [MOST, 46 - MOST]


async def test_one_that_flaps_is_told_once_a_second() -> None:
    fleet = Fleet()
    told = Told(fleet)
    for _ in range(5):
        trip(fleet, "a")
        heal(fleet, "a")
    assert len(await told.news()) == 1
    fleet.clock.advance(PAUSE)
    trip(fleet, "a")
    assert len(await told.news()) == 1
    assert len(told.part._told) == 1


async def test_what_is_no_news_for_others() -> None:
    fleet = Fleet()
    told = Told(fleet)
    fleet.registry.force("a", "open")
    fleet.registry.drain("b")
    fleet.registry.resume("b")
    assert await told.news() == []
    sidecar = EngineSpec(name="s", runtime="llama.cpp", model="x")
    fleet.load((*fleet.engines, sidecar), (*fleet.models, fleet.models[0].__class__(name="n", pool=("s",))))
    fleet.registry.engine_ready("s", "/run/s.sock", 2)
    await told.news()
    trip(fleet, "s")
    assert await told.news() == []
    told.part.changed("nowhere", "ready", "open")
    assert await told.news() == []


async def test_a_hint_has_the_endpoint_probed_and_only_the_probe_counts() -> None:
    fleet = Fleet(engine={"slots": 2, "health": HealthSpec(interval=3600.0)})  # nothing else probes meanwhile
    told, probe = Told(fleet), Probe()
    fleet.registry.start_probing(probe)
    await reached(lambda: sorted(probe.asked) == ["a", "b", "c"])  # its own round
    heal(fleet, "b")
    probe.asked.clear()
    told.part.heard(["f" * 16])
    told.part.heard([digest("http://b:80/v1")])
    for _ in range(50):
        told.part.heard([digest("http://b:80")])
    await reached(lambda: probe.asked == ["b"])
    endpoint = fleet.registry.find("b")
    assert endpoint is not None
    await reached(lambda: endpoint.state in ("open", "unhealthy"))
    assert told.part.probes == 1
    await fleet.registry.aclose()


async def test_a_hint_without_a_prober_does_nothing() -> None:
    fleet = Fleet()
    told = Told(fleet)
    told.part.heard([digest("http://a:80")])
    endpoint = fleet.registry.find("a")
    assert endpoint is not None and endpoint.state == "ready"


async def test_the_end_sends_nothing_more() -> None:
    fleet = Fleet()
    told = Told(fleet)
    trip(fleet, "a")
    told.part.changed("a", "ready", "open")
    told.part.close()
    told.part.close()
    await asyncio.sleep(2 * GATHER)
    assert told.hints == []


@pytest.mark.parametrize("address", ["http://a:80", "http://a:80/", "http://a:80/v1"])
def test_addresses_of_one_server_have_one_digest(address: str) -> None:
    assert digest(address) == digest("http://a:80") != digest("http://a:81")
