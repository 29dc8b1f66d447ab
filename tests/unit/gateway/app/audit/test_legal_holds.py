"""Legal holds over replicas on one store: every replica honours them, with the store away, emptied, put back or tampered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.audit.legal_holds import CHANGED, KIND, SURE_SECONDS, LegalHolds, name_of
from gateway.audit.holds import Holds
from gateway.core.clock import FakeClock
from gateway.core.errors import StoreUnavailable
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.store.feed import CHANGE, RESYNC
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import reached


class Away:
    """A store that can go away."""

    def __init__(self, store: Store) -> None:
        self._store, self.away = store, False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        return getattr(self._store, name)


class Replica:
    """One of several on a database, with a log directory of its own."""

    def __init__(self, bench: Bench, name: str, store: Store) -> None:
        directory = bench.directory / name
        directory.mkdir(exist_ok=True)
        self.store, self.files = Away(store), Holds(directory, bench.clock)
        self.holds = LegalHolds(self.store, lambda: store.derived("legal holds"), self.files, bench.owner, bench.clock)  # type: ignore[arg-type]

    def held(self) -> list[str]:
        return [hold.tenant for hold in self.files.list()]


class Bench:
    def __init__(self, tmp_path: Path) -> None:
        self.directory, self.owner, self.clock = tmp_path, TaskOwner("test"), FakeClock()
        self.stores: list[Store] = []

    async def replica(self, name: str) -> Replica:
        store = Store("sqlite", migrated(self.directory), keys, given_pepper="p" * 32, deadline=60.0)
        await store.start()
        self.stores.append(store)
        made = Replica(self, name, store)
        await made.holds.look()
        return made


@pytest.fixture
async def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path)
    yield made
    await made.owner.aclose()
    for store in made.stores:
        await store.aclose()


@pytest.mark.parametrize("tenant", ["acme", "größe", "../../etc", 'a"b\\c', "x" * 128, "a b\n"])
async def test_a_hold_counts_on_every_replica_until_it_is_released(bench: Bench, tenant: str) -> None:
    first, second = await bench.replica("a"), await bench.replica("b")
    made = await first.holds.add(tenant, "case 7", "counsel")
    assert made == {"tenant": tenant, "since": bench.clock.wall(), "why": "case 7", "actor": "counsel", "everywhere": True}
    second.holds.heard((1, CHANGE, StoreChange(1, KIND, name_of(tenant), "created", 1)))
    await reached(lambda: second.held() == [tenant])
    assert second.holds.why(tenant) == "case 7" and await second.holds.list() == [made]
    assert (await second.holds.add(tenant, "case 8", "somebody"))["why"] == "case 7"
    assert await second.holds.release(tenant) == {**made, "released": bench.clock.wall()} and await second.holds.release(tenant) is None
    first.holds.heard((2, RESYNC, None))
    await reached(lambda: first.held() == [])
    bench.clock.advance(1)
    assert (await first.holds.add(tenant, "case 9", "counsel"))["everywhere"]
    await second.holds.look()
    assert second.holds.why(tenant) == "case 9"


async def test_without_the_store_a_hold_counts_here_and_nothing_is_taken_away(bench: Bench) -> None:
    first, second = await bench.replica("a"), await bench.replica("b")
    first.store.away = second.store.away = True
    assert (await first.holds.add("acme", "case 7", "counsel"))["everywhere"] is False and first.held() == ["acme"]
    with pytest.raises(StoreUnavailable):
        await first.holds.release("acme")
    assert first.held() == ["acme"] and not second.holds.unsure()
    bench.clock.advance(SURE_SECONDS + 1)
    await second.holds.look()
    assert "cannot be known" in second.holds.unsure() and second.holds.why("other")
    first.store.away = second.store.away = False
    await first.holds.look()
    await second.holds.look()
    assert second.held() == ["acme"] and not second.holds.unsure() and not second.holds.why("other")
    assert [one["everywhere"] for one in await first.holds.list()] == [True]


async def test_a_hold_of_a_version_without_the_store_is_brought_there(bench: Bench) -> None:
    (bench.directory / "a").mkdir()
    (bench.directory / "a" / "holds.json").write_text('[{"tenant":"acme","since":5.0,"why":"case 1","actor":"counsel"}]')
    await bench.replica("a")
    assert (await bench.replica("b")).held() == ["acme"]


async def test_a_store_that_was_emptied_or_put_back_releases_nothing(bench: Bench) -> None:
    replica = await bench.replica("a")
    await replica.holds.add("acme", "case 7", "counsel")
    await replica.holds.release("acme")
    released = await replica.store.get(KIND, name_of("acme"))
    bench.clock.advance(10)
    await replica.holds.add("acme", "case 8", "counsel")
    await replica.store.update(KIND, released.name, released.body, actor="somebody")  # as it was, with its proof
    await replica.holds.look()
    assert replica.held() == ["acme"]
    await replica.store.delete(KIND, released.name, actor="somebody")
    await replica.holds.look()
    assert replica.held() == ["acme"] and (await bench.replica("b")).held() == ["acme"]


async def test_a_row_that_was_changed_in_the_database_stays_in_force(bench: Bench) -> None:
    replica = await bench.replica("a")
    await replica.holds.add("acme", "case 7", "counsel")
    row = await replica.store.get(KIND, name_of("acme"))
    await replica.store.update(KIND, row.name, {**row.body, "released": 5.0}, actor="somebody")
    fresh = await bench.replica("b")
    assert fresh.held() == ["acme"] and CHANGED in fresh.holds.why("acme")
    await replica.store.update(KIND, row.name, {"nothing": 1}, actor="somebody")
    bench.clock.advance(SURE_SECONDS + 1)
    await fresh.holds.look()
    assert fresh.held() == ["acme"] and fresh.holds.unsure()


async def test_what_a_scrape_shows(bench: Bench) -> None:
    replica = await bench.replica("a")
    await replica.holds.add("acme", "case 7", "counsel")
    assert [family.samples[0].value for family in replica.holds.collect()] == [1.0, 1.0]
    bench.clock.advance(SURE_SECONDS + 1)
    assert [family.samples[0].value for family in replica.holds.collect()] == [1.0, 0.0]
