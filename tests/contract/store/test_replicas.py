"""What every store keeps to: who serves, since when, and by how much its clock is off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.clock import FakeClock
from gateway.core.storage import ReplicaRecord
from gateway.identity import keys
from gateway.store.replica_rows import GONE_SECONDS
from gateway.store.store import Store
from tests.contract.store.place import PEPPER, Place

ONE = ReplicaRecord(id="gw-1", incarnation="i1", host="h1", data="127.0.0.1:8080", admin="127.0.0.1:8081", version="1", workers=2)
TWO = ReplicaRecord(id="gw-2", incarnation="i2", host="h2")


async def test_who_serves_is_seen_by_all(place: Place) -> None:
    store, other = await place.open(), await place.open()
    began = place.clock.wall()
    await store.beat(ONE, stale=30.0)
    place.clock.advance(5.0)
    roll = await other.beat(TWO, stale=30.0)
    assert roll.now == began + 5.0
    assert [(r.id, r.started, r.seen) for r in roll.replicas] == [("gw-1", began, began), ("gw-2", began + 5.0, began + 5.0)]
    place.clock.advance(5.0)
    await store.beat(ONE, stale=30.0)
    first, second = (await other.roll()).replicas
    assert (first.started, first.seen, first.host, first.data, first.admin, first.version, first.workers) == (
        *(began, began + 10.0),
        *("h1", "127.0.0.1:8080", "127.0.0.1:8081", "1", 2),
    )
    assert second.incarnation == "i2"
    await store.leave("gw-1", "i1")
    assert [r.id for r in (await other.roll()).replicas] == ["gw-2"]


async def test_a_restart_takes_the_place_of_the_process_before(place: Place) -> None:
    store = await place.open()
    await store.beat(ONE, stale=30.0)
    place.clock.advance(3.0)
    again = ReplicaRecord(id="gw-1", incarnation="i9", host="h1")
    assert [r.incarnation for r in (await store.beat(again, stale=30.0)).replicas] == ["i1", "i9"]
    place.clock.advance(31.0)
    assert [r.incarnation for r in (await store.beat(again, stale=30.0)).replicas] == ["i9"]


async def test_what_is_gone_for_long_is_forgotten(place: Place) -> None:
    store = await place.open()
    await store.beat(ONE, stale=30.0)
    place.clock.advance(GONE_SECONDS + 1)
    await store.beat(TWO, stale=30.0)
    assert len((await store.roll()).replicas) == 2  # another one's row is only forgotten by the job
    await store.prune()
    assert [r.id for r in (await store.roll()).replicas] == ["gw-2"]


@pytest.mark.parametrize("offset", [-3600.0, 0.0, 3600.0])
async def test_a_clock_that_is_off_is_measured(place: Place, offset: float) -> None:
    clock = FakeClock(wall=place.clock.wall() + offset)
    store = Store(place.url, place.directory, keys, given_pepper=PEPPER, clock=clock, database_clock=place.time, deadline=30.0)
    place.opened.append(store)
    await store.start()
    assert [r.skew for r in (await store.beat(ONE, stale=30.0)).replicas] == [offset]


@pytest.mark.parametrize(("pauses", "expected"), [((12.0,), 0.0), ((12.0, 12.0, 12.0), 6.0), ((4.0, 12.0, 12.0), 2.0)])
async def test_a_process_that_stood_still_meanwhile_has_no_wrong_clock(place: Place, pauses: tuple[float, ...], expected: float) -> None:
    def clock(connection: Any) -> float:
        now = place.time(connection)
        place.clock.advance(next(late, 0.0))
        return now

    store = Store(place.url, place.directory, keys, given_pepper=PEPPER, clock=place.clock, database_clock=clock, deadline=30.0)
    place.opened.append(store)
    late: Iterator[float] = iter(())
    await store.start()
    late = iter(pauses)
    assert [r.skew for r in (await store.beat(ONE, stale=30.0)).replicas] == [expected]


async def test_beats_at_the_same_moment(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]
    told = [ReplicaRecord(id="same", incarnation=f"i{n}", host="h") for n in range(6)]
    async with asyncio.timeout(60):
        for _ in range(3):
            await asyncio.gather(*(stores[n % 3].beat(one, stale=30.0) for n, one in enumerate(told)))
    assert len((await stores[0].roll()).replicas) == 6
