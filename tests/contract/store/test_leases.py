"""What every store keeps to: one holder at a time by the database's clock, fences that only grow, writes of former holders refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from gateway.core.clock import FakeClock
from gateway.core.errors import LeaseLost, RequestError
from gateway.core.storage import Lease
from gateway.identity import keys
from gateway.store import leases
from gateway.store.rows import database_time
from gateway.store.store import Store
from tests.contract.store.place import PEPPER, Place


async def test_one_holds_it_until_it_expires_or_is_given_back(place: Place) -> None:
    one, two = await place.open(), await place.open()
    first = await one.take_lease("prune", "a", 15.0)
    assert first is not None and (first.fence, first.expires) == (1, place.clock.wall() + 15.0)
    place.clock.advance(14.9)
    assert await two.take_lease("prune", "b", 15.0) is None
    assert (await two.leases()).leases == (first,)
    place.clock.advance(0.1)
    second = await two.take_lease("prune", "b", 15.0)
    assert second is not None and (second.holder, second.fence) == ("b", 2)
    await two.finish_lease(second, done=False)
    third = await one.take_lease("prune", "a", 15.0)
    assert third is not None and third.fence == 3


async def test_names_are_independent(place: Place) -> None:
    store = await place.open()
    assert await store.take_lease("x", "a", 15.0) is not None
    assert await store.take_lease("y", "b", 15.0) is not None
    assert [(lease.name, lease.holder) for lease in (await store.leases()).leases] == [("x", "a"), ("y", "b")]
    with pytest.raises(RequestError):
        await store.take_lease("not a name", "a", 15.0)


async def test_a_renewed_lease_does_not_expire(place: Place) -> None:
    store = await place.open()
    held = await store.take_lease("x", "a", 15.0)
    assert held is not None
    for _ in range(5):
        place.clock.advance(10.0)
        held = await store.renew_lease(held, 15.0)
        assert await store.take_lease("x", "b", 15.0) is None
    assert held.fence == 1


async def test_a_job_that_was_done_is_not_due_for_its_period(place: Place) -> None:
    store = await place.open()
    held = await store.take_lease("x", "a", 15.0, period=600.0)
    assert held is not None
    await store.finish_lease(held, done=True)
    place.clock.advance(599.0)
    assert await store.take_lease("x", "b", 15.0, period=600.0) is None
    place.clock.advance(1.0)
    held = await store.take_lease("x", "b", 15.0, period=600.0)
    assert held is not None
    await store.finish_lease(held, done=False)  # it failed
    assert await store.take_lease("x", "a", 15.0, period=600.0) is not None


async def test_a_former_holder_writes_nothing(place: Place) -> None:
    """A holder that was paused comes back when another one has taken over."""
    one, two = await place.open(), await place.open()
    paused = await one.take_lease("prune", "a", 15.0)
    assert paused is not None
    await one.begin_idempotent("k", "actor", "route", "f", ttl=20.0)
    place.clock.advance(30.0)
    taken = await two.take_lease("prune", "b", 15.0)
    assert taken is not None
    for late in (one.prune(paused), one.renew_lease(paused, 15.0), one.finish_lease(paused, done=True)):
        with pytest.raises(LeaseLost, match="b holds it now"):
            await late

    def kept(connection: sa.Connection) -> int:
        return int(connection.execute(sa.text("SELECT count(*) FROM idempotency")).scalar_one())

    assert await two._database.run(kept) == 1
    await two.prune(taken)
    assert await two._database.run(kept) == 0
    await two.finish_lease(taken, done=True)
    with pytest.raises(LeaseLost, match="nobody holds it now"):
        await one.prune(paused)


async def test_a_restart_under_the_same_name_takes_its_own_lease(place: Place) -> None:
    store = await place.open()
    before = await store.take_lease("x", "a", 15.0)
    after = await store.take_lease("x", "a", 15.0)
    assert before is not None and after is not None and after.fence == before.fence + 1
    with pytest.raises(LeaseLost):
        await store.renew_lease(before, 15.0)


async def test_a_lease_that_expired_and_that_nobody_took_is_still_good(place: Place) -> None:
    store = await place.open()
    held = await store.take_lease("x", "a", 15.0)
    assert held is not None
    place.clock.advance(100.0)
    assert (await store.renew_lease(held, 15.0)).fence == held.fence


async def test_of_many_that_take_at_once_one_gets_it(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]
    for count in range(10):
        answers = await asyncio.gather(*(stores[n % 3].take_lease(f"l{count}", f"{n}", 15.0) for n in range(9)))
        assert len([answer for answer in answers if answer is not None]) == 1


@dataclass
class Ledger:
    """What holders wrote under guard, in the order of commits."""

    fences: list[int] = field(default_factory=list)


async def test_what_holders_write_is_in_the_order_of_their_fences(place: Place) -> None:
    """Many holders take, are paused at random and write late: no write follows one with a higher fence."""
    stores = [await place.open() for _ in range(3)]
    written = Ledger()

    async def holder(store: Store, name: str) -> None:
        for _ in range(8):
            lease = await store.take_lease("x", name, 0.0)  # expires at once, so that others take over in between
            await asyncio.sleep(0)
            if lease is None:
                continue

            def write(connection: sa.Connection, lease: Lease = lease) -> None:
                leases.guard(connection, lease)
                written.fences.append(lease.fence)  # under the row's lock

            try:
                await store._database.run(write, write=True)
            except LeaseLost:
                pass

    async with asyncio.timeout(60):
        await asyncio.gather(*(holder(store, f"{number}-{more}") for number, store in enumerate(stores) for more in range(2)))
    assert written.fences == sorted(written.fences) and written.fences


async def test_replicas_whose_clocks_differ_by_an_hour_agree(place: Place) -> None:
    """Leases, idempotency keys and the end of old secrets go by the database's clock."""

    async def at(offset: float) -> Store:
        store = Store(
            place.url,
            place.directory,
            keys,
            given_pepper=PEPPER,
            clock=FakeClock(wall=1.0 + offset),
            database_clock=place.time,
            deadline=30.0,
        )
        place.opened.append(store)
        await store.start()
        return store

    behind, ahead = await at(-3600.0), await at(3600.0)
    assert await behind.take_lease("x", "a", 15.0) is not None
    assert await ahead.take_lease("x", "b", 15.0) is None
    assert await behind.begin_idempotent("k", "actor", "route", "f", ttl=60.0) is None
    await ahead.prune()
    found = await ahead.begin_idempotent("k", "actor", "route", "f", ttl=60.0)
    assert found is not None and found.status == 0


async def test_the_databases_own_clock(place: Place) -> None:
    store = await place.open()
    first = await store._database.run(database_time)
    second = await store._database.run(database_time)
    assert first <= second < first + 60.0 and first > 1_700_000_000.0
