"""Purges over replicas: each does once what another has noted, and makes up on disk for what it missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.caches.purges import KEPT_SECONDS, KIND, CachePurges
from gateway.caches.disk import DiskAnswers
from gateway.core.caching import Purge
from gateway.core.clock import SystemClock
from gateway.core.errors import StoreUnavailable
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.store.feed import CHANGE, RESYNC
from gateway.store.store import Store
from tests.stores import migrated
from tests.unit.gateway.caches.test_disk import Disk, place
from tests.waiting import reached

PURGE = Purge(model="m")


class Clock(SystemClock):
    def __init__(self) -> None:
        self.ahead = 0.0

    def wall(self) -> float:  # type: ignore[override]
        return 1_800_000_000.0 + self.ahead


class Replica:
    def __init__(self, store: Store, clock: Clock, disk: DiskAnswers | None = None) -> None:
        self.made: list[Purge] = []
        self.owner = TaskOwner("replica")
        self.purges = CachePurges(store, self.forget, clock, self.owner, disk)
        store.subscribe(lambda change: self.purges.heard((0, CHANGE, change)))

    async def forget(self, purge: Purge) -> None:
        self.made.append(purge)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def test_other_replicas_do_it_once_and_the_one_that_said_it_not_again(store: Store) -> None:
    one, two = Replica(store, Clock()), Replica(store, Clock())
    for replica in (one, two):
        await replica.purges.start()
    assert await one.purges.tell(PURGE, "ann")
    await reached(lambda: two.made == [PURGE])
    two.purges.heard((0, RESYNC, 5))
    assert await two.purges.tell(Purge(tenant="acme"), "bob")
    await reached(lambda: one.made == [Purge(tenant="acme")])
    assert two.made == [PURGE]
    late = Replica(store, Clock())
    await late.purges.start()
    late.purges.heard((0, RESYNC, 5))
    await reached(lambda: not late.purges._followed.stale)
    assert late.made == []  # its memory was empty


async def test_a_disk_makes_up_for_what_was_purged_while_it_was_away(store: Store, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "caches")
    await disk.made.open(mend=True)
    for number, model in ((1, "m"), (2, "n")):
        await disk.store(place(number, model))
    await Replica(store, Clock()).purges.tell(PURGE, "ann")
    away = Replica(store, Clock(), disk.made)
    await away.purges.start()
    assert [(await disk.find(place(number, model)))[1] for number, model in ((1, "m"), (2, "n"))] == [None, b"value"]
    await disk.store(place(1, "m"))
    again = Replica(store, Clock(), disk.made)
    await again.purges.start()
    assert (await disk.find(place(1, "m")))[1] == b"value"  # it was seen
    await disk.made.aclose()


async def test_what_no_answer_can_be_older_than_is_forgotten(store: Store) -> None:
    clock = Clock()
    one = Replica(store, clock)
    await one.purges.start()
    await one.purges.tell(PURGE, "ann")
    await reached(lambda: len(one.purges._known) == 1)
    clock.ahead = KEPT_SECONDS + 1
    await one.purges.tell(PURGE, "ann")
    page = await store.list(KIND)
    assert len(page.items) == 1


async def test_a_store_that_does_not_answer_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*words: object, **more: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "create", away)
    assert not await Replica(store, Clock()).purges.tell(PURGE, "ann")
    await asyncio.sleep(0)
