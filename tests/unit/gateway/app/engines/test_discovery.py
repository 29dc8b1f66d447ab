"""Names that are followed: what is asked, when a build waits, what is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from gateway.app.engines.discovery import AT_ONCE, Discovery
from gateway.config.merge import Merged
from gateway.core.clock import SystemClock
from gateway.core.host_port import HostPort
from gateway.core.specs import ConfigSpec, EngineSpec, StoreSpec
from gateway.core.specs.fleet import DnsSpec
from gateway.transport.names import Resolved, Unresolved
from tests.waiting import reached

QUICK = {"min_ttl": 0.02, "max_ttl": 0.05, "timeout": 60.0, "networks": ("10.0.0.0/8",)}


class Answers:
    """What is answered next; an exception is raised. held: while it is set, nothing is answered."""

    def __init__(self, *places: str) -> None:
        self.places, self.fails, self.asked = places, False, 0
        self.held = threading.Event()
        self.held.set()

    def __call__(self, dns: DnsSpec, host: str, port: int) -> Resolved:
        self.asked += 1
        self.held.wait(60)
        if self.fails:
            raise Unresolved(f"{host}: no")
        return Resolved(tuple(HostPort(place, port) for place in self.places), 0.0)


def merged(*names: str, stored: bool = False, upstreams: tuple[str, ...] = (), **dns: Any) -> Merged:
    engines = tuple(
        EngineSpec(name=name, runtime="external", url=f"http://{name}.test:80", dns=DnsSpec(**{**QUICK, **dns})) for name in names
    )
    spec = ConfigSpec(version=1, engines=engines, store=StoreSpec(upstreams=upstreams))
    return Merged(spec, {("engines", name): 1 for name in names} if stored else {})


class House:
    def __init__(self, answers: Answers) -> None:
        self.changes, self.events = 0, []  # type: ignore[var-annotated]
        self.discovery = Discovery(SystemClock(), self._changed, lambda *event: self.events.append(event), answers)

    def _changed(self) -> None:
        self.changes += 1


async def test_a_build_waits_for_the_first_answer_and_later_ones_make_another() -> None:
    answers = Answers("10.0.0.1")
    house = House(answers)
    asked = merged("far")
    assert await house.discovery.places(asked) == {"far": (HostPort("10.0.0.1", 80),)}
    assert house.changes == 0, "the build that waits has it"
    answers.places = ("10.0.0.1", "10.0.0.2")
    await reached(lambda: house.changes == 1)
    assert len((await house.discovery.places(asked))["far"]) == 2
    assert ("addresses_changed", "far", {"added": ["10.0.0.2:80"], "removed": []}) in house.events
    await house.discovery.aclose()


async def test_a_name_server_that_hangs_holds_up_the_first_build_for_a_bounded_time_and_no_other() -> None:
    answers = Answers("10.0.0.1")
    answers.held.clear()
    house = House(answers)
    asked = merged("far", timeout=0.2)
    async with asyncio.timeout(40):
        assert await house.discovery.places(asked) == {"far": ()}
    answers.held.set()
    await reached(lambda: house.changes == 1, what="the answer")
    answers.held.clear()
    async with asyncio.timeout(0.15):
        assert (await house.discovery.places(asked))["far"]
    answers.held.set()
    await house.discovery.aclose()


async def test_names_that_are_no_longer_in_force_are_no_longer_asked_for() -> None:
    answers = Answers("10.0.0.1")
    house = House(answers)
    await house.discovery.places(merged("far", "near"))
    house.discovery.keep(merged("near"))
    families = {family.name: family for family in house.discovery.collect()}
    assert [sample.labels["engine"] for sample in families["gatehouse_dns_addresses"].samples] == ["near"]
    await house.discovery.aclose()


async def test_a_change_of_settings_while_no_name_server_answers_takes_nothing_away() -> None:
    answers = Answers("10.0.0.1", "10.0.1.1")
    house = House(answers)
    await house.discovery.places(merged("far"))
    answers.fails = True
    longer = merged("far", max_ttl=0.06)
    assert [place.host for place in (await house.discovery.places(longer))["far"]] == ["10.0.0.1", "10.0.1.1"]
    narrower = merged("far", networks=("10.0.1.0/24",))
    assert [place.host for place in (await house.discovery.places(narrower))["far"]] == ["10.0.1.1"], "only where they may be"
    assert (await house.discovery.places(merged("far", servers=("10.0.0.53:53",))))["far"] == (), "another server is another truth"
    [family] = [one for one in house.discovery.collect() if one.name == "gatehouse_dns_addresses"]
    assert [(one.labels["engine"], one.value) for one in family.samples] == [("far", 2.0)], "one sample, while there are several settings"
    house.discovery.keep(longer)
    answers.fails, answers.places = False, ("10.0.0.1",)
    await reached(lambda: house.discovery.faults() == {})
    assert (await house.discovery.places(longer))["far"], "an address that is missing once is not gone yet"
    await house.discovery.aclose()


async def test_a_failure_and_addresses_that_may_not_be_keep_what_is_known_and_say_why() -> None:
    answers = Answers("10.0.0.1")
    house = House(answers)
    asked = merged("far")
    await house.discovery.places(asked)
    answers.fails = True
    await reached(lambda: house.discovery.faults() == {"far": "far.test: no"})
    answers.fails, answers.places = False, ("169.254.169.254", "127.0.0.1")
    await reached(lambda: "2 of 2 addresses" in house.discovery.faults().get("far", ""))
    assert (await house.discovery.places(asked))["far"] == (HostPort("10.0.0.1", 80),)
    answers.places = ("10.0.0.1", "127.0.0.1")
    await reached(lambda: "1 of 2 addresses" in house.discovery.faults().get("far", ""))
    assert (await house.discovery.places(asked))["far"] == (HostPort("10.0.0.1", 80),)
    await house.discovery.aclose()


async def test_an_engine_of_the_store_cannot_widen_where_engines_may_be() -> None:
    house = House(Answers("127.0.0.1"))
    wide = ("0.0.0.0/0",)
    assert await house.discovery.places(merged("far", stored=True, networks=wide)) == {"far": ()}
    assert (await house.discovery.places(merged("own", networks=wide)))["own"], "the file may"
    allowed = merged("far", stored=True, upstreams=("127.0.0.0/8",), networks=wide)
    assert (await house.discovery.places(allowed))["far"]
    assert await house.discovery.places(merged("far", stored=True, upstreams=("10.0.0.0/8",), networks=wide)) == {"far": ()}
    await house.discovery.aclose()


async def test_name_servers_that_hang_hold_up_nothing_else_that_runs_in_threads() -> None:
    answers = Answers("10.0.0.1")
    answers.held.clear()
    house = House(answers)
    many = merged(*(f"far{n}" for n in range(64)), timeout=0.05)
    try:
        async with asyncio.timeout(40):
            await house.discovery.places(many)
            await reached(lambda: answers.asked == AT_ONCE, what="as many questions as may be under way")
            await asyncio.to_thread(int)
    finally:
        answers.held.set()
        await house.discovery.aclose()


async def test_an_address_of_which_nothing_was_said_stays() -> None:
    def ask(dns: DnsSpec, host: str, port: int) -> Resolved:
        first = not asked
        asked.append(host)
        both = (HostPort("10.0.0.1", port), HostPort("fd00::1", port))
        return Resolved(both, 0.0) if first else Resolved(both[:1], 0.0, unknown=frozenset((6,)), why="AAAA of far.test: no answer")

    asked: list[str] = []
    house = House(Answers())
    house.discovery = Discovery(SystemClock(), house._changed, lambda *event: house.events.append(event), ask)
    wanted = merged("far", networks=("10.0.0.0/8", "fd00::/8"))
    await house.discovery.places(wanted)
    await reached(lambda: house.discovery.faults() == {"far": "AAAA of far.test: no answer"}, what="the reason")
    assert [place.host for place in (await house.discovery.places(wanted))["far"]] == ["10.0.0.1", "fd00::1"]
    assert house.changes == 0
    await house.discovery.aclose()
