"""What every store keeps to of data keys: one active key a tenant, whoever makes it, and nothing left of those that were destroyed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import AlreadyExists, NotFound, VersionMismatch
from gateway.core.vault import DataKeyRow
from gateway.store.data_keys import StoredDataKeys
from tests.contract.store.place import Place

WRAPPED = "PLANTEDWRAPPEDKEY" * 6


def row(id: str, version: int = 1, tenant: str = "acme", **changes: Any) -> DataKeyRow:
    given = {"state": "active", "master": "local-1", "wrapped": f"{WRAPPED}{id}", "created": 0.0, **changes}
    return DataKeyRow(id=id, tenant=tenant, version=version, **given)


async def keys(place: Place) -> StoredDataKeys:
    return (await place.open()).data_keys


async def test_of_replicas_that_make_a_key_at_once_one_wins(place: Place) -> None:
    stores = [await keys(place) for _ in range(3)]
    made = await asyncio.gather(*(store.add(row(f"dk-{number}"), None) for number, store in enumerate(stores)), return_exceptions=True)
    assert sum(isinstance(one, DataKeyRow) for one in made) == 1, made
    assert all(isinstance(one, DataKeyRow | AlreadyExists) for one in made)
    found = await stores[0].every()
    assert len(found) == 1 and found[0].created > 0 and await stores[2].current("acme") == found[0]


async def test_a_rotation_retires_the_key_before_and_happens_once(place: Place) -> None:
    store, other = await keys(place), await keys(place)
    first = await store.add(row("dk-1"), None)
    await store.add(row("dk-2", 2), first.id)
    with pytest.raises(AlreadyExists):
        await other.add(row("dk-3", 2), first.id)
    assert [(one.id, one.state) for one in await store.every(["acme"])] == [("dk-1", "retired"), ("dk-2", "active")]
    assert (await store.get("dk-1")).ended is not None and await store.current("globex") is None
    with pytest.raises(NotFound):
        await store.get("dk-9")


async def test_a_key_is_wrapped_anew_only_as_it_was_seen(place: Place) -> None:
    store = await keys(place)
    made = await store.add(row("dk-1"), None)
    assert not await store.rewrap("dk-1", "other", "new", "local-2")
    assert await store.rewrap("dk-1", made.wrapped, "new", "local-2")
    assert ((await store.get("dk-1")).wrapped, (await store.get("dk-1")).master) == ("new", "local-2")


async def test_destroyed_keys_leave_their_rows_and_nothing_of_themselves(place: Place) -> None:
    store = await keys(place)
    await store.add(row("dk-1"), None)
    await store.add(row("dk-2", 2), "dk-1")
    await store.add(row("dk-3", tenant="globex"), None)
    with pytest.raises(VersionMismatch):
        await store.shred("acme", ["dk-1"])
    gone = await store.shred("acme", ["dk-1", "dk-2"])
    assert [one.id for one in gone] == ["dk-1", "dk-2"] and await store.shred("acme", None) == []
    assert [(one.id, one.state, one.wrapped) for one in await store.every(["acme"])] == [("dk-1", "shredded", ""), ("dk-2", "shredded", "")]
    assert (await store.current("globex")) is not None and await store.current("acme") is None
    assert not await store.rewrap("dk-1", "", "new", "local-2")
    files = b"".join(path.read_bytes() for path in place.directory.rglob("*") if path.is_file())
    if place.url == "sqlite":
        assert f"{WRAPPED}dk-3".encode() in files
        assert f"{WRAPPED}dk-1".encode() not in files and f"{WRAPPED}dk-2".encode() not in files
    assert (await store.add(row("dk-4", 3), None)).version == 3


async def test_changes_are_numbered_with_the_tenant_as_their_name(place: Place) -> None:
    opened = await place.open()
    await opened.data_keys.add(row("dk-1"), None)
    await opened.data_keys.add(row("dk-2", 2), "dk-1")
    await opened.data_keys.shred("acme", None)
    found = (await opened.changes_since(0)).changes
    assert {(one.kind, one.name) for one in found} == {("audit-keys", "acme")}
    assert [one.action for one in found] == ["created", "rotated", "shredded"]
