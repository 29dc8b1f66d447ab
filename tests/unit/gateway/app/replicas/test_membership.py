"""The roll of replicas: who serves, who is lost, and whose id two machines have."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.app.replicas.membership import LOST, PERIOD, Membership
from gateway.core.clock import FakeClock
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import reached


class Off(FakeClock):
    """A machine's clock, which is always so many seconds ahead of another one."""

    def __init__(self, true: FakeClock, offset: float) -> None:
        super().__init__()
        self._true, self._offset = true, offset

    def wall(self) -> float:
        return self._true.wall() + self._offset


class World:
    """A store, a clock of its database, and the events that were recorded."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.directory = FakeClock(), directory
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.stores: list[Store] = []

    async def member(self, id: str, offset: float = 0.0) -> Membership:
        clock = Off(self.clock, offset)
        store = Store(
            "sqlite", migrated(self.directory), keys, clock=clock, database_clock=lambda connection: self.clock.wall(), deadline=60.0
        )
        self.stores.append(store)
        await store.start()
        return Membership(store, id, "1.0", lambda *event: self.events.append(event))

    async def rows(self, member: Membership) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await member.view())["replicas"]
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for store in made.stores:
        await store.aclose()


async def test_who_serves_where(world: World) -> None:
    one, two = await world.member("gw-1"), await world.member("gw-2")
    one.start("10.0.0.1:8080", "10.0.0.1:8081", workers=4)
    two.start("10.0.0.2:8080", "10.0.0.2:8081")
    await reached(lambda: one._joined and two._joined)
    first, second = await world.rows(two)
    assert (first["id"], first["data"], first["admin"], first["workers"], first["here"]) == (
        "gw-1",
        "10.0.0.1:8080",
        "10.0.0.1:8081",
        4,
        False,
    )
    assert (second["id"], second["here"], second["state"], second["version"]) == ("gw-2", True, "serving", "1.0")
    await one.aclose()
    assert [row["id"] for row in await world.rows(two)] == ["gw-2"]
    await two.aclose()


async def test_one_that_died_is_lost_until_it_comes_back(world: World) -> None:
    one, two = await world.member("gw-1"), await world.member("gw-2")
    await one.beat()
    await two.beat()
    world.clock.advance(LOST * PERIOD + 1)
    await two.beat()
    assert [(row["id"], row["state"], row["duplicate"]) for row in await world.rows(two)] == [
        ("gw-1", "lost", False),
        ("gw-2", "serving", False),
    ]
    again = await world.member("gw-1")
    await again.beat()
    assert [(row["id"], row["state"]) for row in await world.rows(two)] == [("gw-1", "serving"), ("gw-2", "serving")]


async def test_others_do_not_count_as_lost_because_this_one_or_the_store_stood_still(world: World) -> None:
    """Whoever writes first afterwards sees everybody else's row as old as its own was."""
    one, two, calls = await world.member("gw-1"), await world.member("gw-2"), list[str]()
    one.call = lambda: calls.append("gw-1")
    for _ in range(2):
        await one.beat()
        await two.beat()
    assert one.live == 2
    calls.clear()
    world.clock.advance(4 * PERIOD)
    await one.beat()
    assert (one.live, one.serving, one.processes) == (2, {"gw-1", "gw-2"}, 2) and calls == ["gw-1"]
    world.clock.advance(PERIOD)
    await one.beat()
    assert (one.live, one.serving) == (1, {"gw-1"}), "it was asked, and has said nothing"
    await two.beat()
    world.clock.advance(PERIOD)
    await one.beat()
    assert one.live == 2 and calls == ["gw-1"]


async def test_a_restart_is_no_duplicate(world: World, caplog: pytest.LogCaptureFixture) -> None:
    killed, after = await world.member("gw-1"), await world.member("gw-1")
    await killed.beat()
    for _ in range(5):
        world.clock.advance(1.0)
        await after.beat()
    assert after.rivals == () and not world.events
    assert [(row["here"], row["duplicate"]) for row in await world.rows(after)] == [(True, False)]


async def test_two_machines_with_one_id_both_say_so_and_when_it_is_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one, two, other = await world.member("gw-1"), await world.member("gw-1"), await world.member("gw-2")
    for member in (one, two, other, one, two, other, one):
        await member.beat()
        world.clock.advance(1.0)
    assert len(one.rivals) == len(two.rivals) == 1 and other.rivals == ()
    assert [event[:2] for event in world.events] == [("replica_duplicate", "gw-1")] * 2
    assert [(row["id"], row["duplicate"]) for row in await world.rows(other)] == [("gw-1", True), ("gw-1", True), ("gw-2", False)]
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 2 and "give each one an id of its own" in caplog.text
    world.clock.advance(LOST * PERIOD + 1)
    await one.beat()
    assert one.rivals == () and "no other gateway has this replica's id 'gw-1' any more" in caplog.text
    assert not any(row["duplicate"] for row in await world.rows(other))


@pytest.mark.parametrize(("offset", "said"), [(0.0, False), (4.0, False), (3600.0, True), (-3600.0, True)])
async def test_a_clock_that_is_off_is_said_once(world: World, caplog: pytest.LogCaptureFixture, offset: float, said: bool) -> None:
    member = await world.member("gw-1", offset)
    await member.beat()
    await member.beat()
    assert member.skew == offset
    assert len([r for r in caplog.records if "clock differs from the database's" in r.message]) == said


async def test_a_clock_that_is_off_is_told_to_the_others_at_once(world: World) -> None:
    """What is revoked until now reaches to the clock that is furthest ahead: nobody is to wait a beat for it."""
    member, calls = await world.member("gw-1", 25.0), list[float]()
    member.call = lambda: calls.append(member.skew)
    await member.beat()
    assert len(calls) == 1
    await member.beat()
    assert len(calls) == 1, "not again while it stays as it is"


async def test_the_clocks_of_all_replicas_that_serve_are_known(world: World) -> None:
    offsets = {"gw-1": 0.0, "gw-2": 25.0, "gw-3": -600.0}
    members = {name: await world.member(name, offset) for name, offset in offsets.items()}
    assert members["gw-1"].clocks() == (0.0, 0.0, 0.0)
    for member in (*members.values(), *members.values()):
        await member.beat()
    assert {name: member.clocks() for name, member in members.items()} == {name: (own, -600.0, 25.0) for name, own in offsets.items()}
    world.clock.advance(LOST * PERIOD + 1)
    for _ in range(2):
        await members["gw-1"].beat()
    assert members["gw-1"].clocks().most == 0.0, "the one that was ahead is lost"


async def test_a_store_that_is_away_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    member = await world.member("gw-1")
    await member.beat()
    await world.stores[0].aclose()
    await member.beat()
    await member.aclose()
    assert not [r for r in caplog.records if r.levelno > logging.INFO and r.name == "gatehouse"]


async def test_the_jobs_are_part_of_the_view(world: World) -> None:
    member = await world.member("gw-1")
    store = world.stores[0]
    lease = await store.take_lease("prune", member.holder, 15.0)
    assert lease is not None
    assert (await member.view())["jobs"] == [{"name": "prune", "holder": "gw-1", "done_at": None}]
    await store.finish_lease(lease, done=True)
    assert (await member.view())["jobs"] == [{"name": "prune", "holder": "", "done_at": world.clock.wall()}]
    taken = await store.take_lease("prune", member.holder, 15.0)
    assert taken is not None
    world.clock.advance(16.0)
    assert (await member.view())["jobs"][0]["holder"] == ""


async def test_the_schema_needs_nothing_of_the_machine(world: World) -> None:
    """Incarnations are unlike each other, and a holder names one process."""
    one, two = await world.member("gw-1"), await world.member("gw-1")
    assert one.holder != two.holder and one.holder.startswith("gw-1/")
    assert await world.stores[0]._database.run(lambda c: c.execute(sa.text("SELECT count(*) FROM replicas")).scalar_one()) == 0
