"""Jobs that one replica does for all: once a period, taken over from one that dies, fenced off from one that was paused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.app.replicas.jobs import Job, Jobs
from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, LeaseLost
from gateway.core.storage import Lease
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import SECONDS, reached

PERIOD = 600.0
Run = Callable[[Lease], Coroutine[Any, Any, None]]


class World:
    """A database with a clock of its own, and replicas that look for jobs when told to."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.directory = FakeClock(), directory
        self.stores: list[Store] = []
        self.replicas: list[Jobs] = []
        self.runs: list[str] = []

    async def replica(self, name: str, run: Run | None = None, hold: float = 15.0) -> Jobs:
        async def note(lease: Lease) -> None:
            self.runs.append(name)

        store = Store("sqlite", migrated(self.directory), keys, database_clock=lambda connection: self.clock.wall(), deadline=60.0)
        await store.start()
        jobs = Jobs(store, name, (Job("tidy", PERIOD, run or note),), hold=hold)
        self.stores.append(store)
        self.replicas.append(jobs)
        return jobs

    async def lease(self) -> Lease:
        return (await self.stores[0].leases()).leases[0]

    async def look(self, *replicas: Jobs) -> None:
        for jobs in replicas:
            await jobs.look()
        await reached(lambda: not any(jobs._held for jobs in replicas))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for jobs in made.replicas:
        await jobs.aclose()
    for store in made.stores:
        await store.aclose()


async def test_a_job_runs_once_a_period_on_one_of_them(world: World) -> None:
    one, two = await world.replica("a"), await world.replica("b")
    await world.look(one, two)
    await world.look(two, one)
    assert world.runs == ["a"]
    world.clock.advance(PERIOD)
    await asyncio.gather(*(jobs.look() for jobs in (one, two)))
    await world.look(one, two)
    assert len(world.runs) == 2


async def test_looks_that_overlap_begin_a_job_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As when the store is so slow that the first look lasts until the second is due."""
    begun, end = list[Lease](), asyncio.Event()

    async def run(lease: Lease) -> None:
        begun.append(lease)
        await end.wait()

    jobs = await world.replica("a", run)
    await asyncio.gather(*(jobs.look() for _ in range(5)))
    await reached(lambda: bool(begun))
    assert [(await world.lease()).fence] == [lease.fence for lease in begun]
    end.set()
    await reached(lambda: not jobs._held)
    assert (await world.lease()).done == world.clock.wall() and not caplog.records


async def test_another_one_takes_over_from_one_that_was_killed(world: World) -> None:
    one, two = await world.replica("a"), await world.replica("b")
    lease = await world.stores[0].take_lease("tidy", "killed", 15.0, period=PERIOD)
    assert lease is not None
    await world.look(one, two)
    assert world.runs == []
    world.clock.advance(15.0)
    await world.look(two, one)
    assert world.runs == ["b"]
    with pytest.raises(LeaseLost):
        await world.stores[0].finish_lease(lease, done=True)


async def test_a_long_job_keeps_its_lease(world: World) -> None:
    done = asyncio.Event()

    async def long(lease: Lease) -> None:
        await done.wait()
        world.runs.append("a")

    one, two = await world.replica("a", long, hold=0.15), await world.replica("b")
    await one.look()
    before = await world.lease()
    for _ in range(5):
        world.clock.advance(0.1)
        async with asyncio.timeout(SECONDS):
            while (await world.lease()).expires < world.clock.wall() + 0.15:  # renewed by the present time
                await asyncio.sleep(0.01)
        await two.look()
    assert (await world.lease()).fence == before.fence and not two._held
    done.set()
    await world.look(one)
    assert world.runs == ["a"]


async def test_one_that_was_paused_is_cancelled_when_it_comes_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def endless(lease: Lease) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    one = await world.replica("a", endless, hold=0.3)
    await one.look()
    async with asyncio.timeout(SECONDS):
        while await world.stores[0].take_lease("tidy", "b", 1000.0) is None:  # also where it has just renewed it after all
            world.clock.advance(30.0)  # it renewed nothing in the meantime
    await reached(lambda: ended == ["cancelled"] and not one._held)
    assert "is not this replica's any more" in caplog.text
    assert (await world.lease()).holder == "b"


@pytest.mark.parametrize("error", [GatehouseError("the disk is full"), ValueError("a defect")])
async def test_a_job_that_failed_is_tried_again_when_its_lease_has_expired(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def fails(lease: Lease) -> None:
        raise error

    one, two = await world.replica("a", fails), await world.replica("b")
    await world.look(one, two)
    assert world.runs == [] and "the job 'tidy' failed" in caplog.text
    world.clock.advance(15.0)
    await world.look(two)
    assert world.runs == ["b"]


async def test_an_end_in_order_gives_the_job_to_another_at_once(world: World) -> None:
    async def endless(lease: Lease) -> None:
        await asyncio.Event().wait()

    one, two = await world.replica("a", endless), await world.replica("b")
    await one.look()
    await one.aclose()
    await world.look(two)
    assert world.runs == ["b"]


async def test_a_store_that_is_away_is_left_to_the_next_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one = await world.replica("a")
    await world.stores[0].aclose()
    await one.look()
    assert world.runs == [] and not [r for r in caplog.records if r.name == "gatehouse" and r.levelno > logging.DEBUG]


async def test_it_looks_by_itself(world: World, tmp_path: Path) -> None:
    store = world.stores
    await world.replica("a")

    async def note(lease: Lease) -> None:
        world.runs.append("c")

    jobs = Jobs(store[0], "c", (Job("other", PERIOD, note),), look=0.01)
    world.replicas.append(jobs)
    jobs.start()
    await reached(lambda: world.runs == ["c"])
