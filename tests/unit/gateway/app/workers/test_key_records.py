from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from gateway.app.workers.key_records import KeyRecords
from gateway.core.clock import FakeClock
from gateway.core.errors import StoreUnavailable
from gateway.core.storage import KeyRecord


def record(id: str, version: int = 1) -> KeyRecord:
    return KeyRecord(id=id, tenant="acme", prefix="gh_", version=version, created=0.0, updated=0.0, actor="test")


class Store:
    """digest: the record. `hold`: answers wait, with what was known when they were asked."""

    def __init__(self) -> None:
        self.records: dict[bytes, KeyRecord] = {}
        self.asked: list[bytes] = []
        self.away = False
        self.hold: asyncio.Event | None = None

    async def find(self, digest: bytes, key: str) -> KeyRecord | None:
        self.asked.append(digest)
        found = self.records.get(digest)
        if self.hold is not None:
            await self.hold.wait()
        if self.away:
            raise StoreUnavailable("away")
        return found


async def test_a_key_that_was_asked_for_is_known_while_the_store_is_away() -> None:
    store = Store()
    store.records = {b"1": record("one")}
    keys = KeyRecords(store.find)
    assert await keys.find(b"1", "key") == record("one")
    store.away = True
    assert await keys.find(b"1", "key") == record("one") and store.asked == [b"1"]
    with pytest.raises(StoreUnavailable):
        await keys.find(b"2", "other")


async def test_an_unknown_key_is_asked_for_again() -> None:
    store = Store()
    keys = KeyRecords(store.find)
    assert await keys.find(b"1", "key") is None
    store.records = {b"1": record("one")}
    assert await keys.find(b"1", "key") == record("one")


async def test_a_change_drops_every_secret_of_a_key_and_nothing_else() -> None:
    store = Store()
    store.records = {b"1": record("one"), b"2": record("one"), b"3": record("three")}
    keys = KeyRecords(store.find)
    for digest in store.records:
        await keys.find(digest, "key")
    keys.changed("one")
    assert len(keys) == 1
    store.records[b"1"] = record("one", 2)
    assert await keys.find(b"1", "key") == record("one", 2)
    assert await keys.find(b"3", "key") == record("three") and store.asked == [b"1", b"2", b"3", b"1"]
    keys.clear()
    assert len(keys) == 0


@pytest.mark.parametrize("what", ["changed", "clear"])
async def test_an_answer_that_a_change_has_overtaken_is_not_remembered(what: str) -> None:
    store = Store()
    store.records, store.hold = {b"1": record("one")}, asyncio.Event()
    keys = KeyRecords(store.find)
    asking = asyncio.create_task(keys.find(b"1", "key"))
    await asyncio.sleep(0)
    if what == "changed":
        keys.changed("one")
    else:
        keys.clear()
    store.hold.set()
    assert await asking == record("one")  # the worker, which heard of the change too, asks again
    assert len(keys) == 0


async def test_what_is_remembered_is_bounded() -> None:
    store = Store()
    store.records = {bytes([number]): record(str(number // 2)) for number in range(8)}
    keys = KeyRecords(store.find, capacity=3)
    for digest in store.records:
        await keys.find(digest, "key")
    assert len(keys) == 3
    for number in range(4):
        keys.changed(str(number))
    assert len(keys) == 0


async def test_keys_that_have_ended_are_not_remembered() -> None:
    store, clock = Store(), FakeClock()
    keys = KeyRecords(store.find, clock=clock)
    for number in range(1000):
        digest = number.to_bytes(2, "big")
        store.records[digest] = record(str(number))
        assert await keys.find(digest, "key") == store.records[digest]
        store.records[digest] = replace(record(str(number), 2), revoked=clock.wall())
        keys.changed(str(number))
        assert await keys.find(digest, "key") == store.records[digest]
    assert len(keys) == 0
