"""What every store keeps to where a file and a batch meet."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.errors import NotFound, PermissionDenied, RequestError
from gateway.store.store import Store
from gateway.store.upgrade import settings
from tests.contract.store.place import ANY, Place

ROUNDS = 30
FILE = FileRecord(id="file-1", tenant="acme", owner="acme/app", name="in.jsonl", purpose="batch", size=1, key="")
BATCH = BatchRecord(
    id="batch_1", creator=Creator(id="app", tenant="acme", kind="api_key"), endpoint="/v1/embeddings", input="file-1", state="validating",
    created=0.0, expires=0.0, window="24h",
)  # fmt: skip


async def test_a_file_goes_or_its_batch_comes_but_never_both(place: Place) -> None:
    one, other = await place.open(), await place.open()
    for number in range(ROUNDS):
        file = msgspec.structs.replace(FILE, id=f"file-{number}")
        await one.files.add(file, 100.0, time.perf_counter(), ROUNDS, ROUNDS)
        batch = msgspec.structs.replace(BATCH, id=f"batch_{number}", input=file.id)
        made, gone = await asyncio.gather(
            one.batches.add(batch, 100.0, ROUNDS), other.files.delete("acme", file.id), return_exceptions=True
        )
        both = (type(made), type(gone))
        assert both in ((BatchRecord, RequestError), (NotFound, FileRecord)), both


MINE, THEIRS = "api_key app", "user bob"


async def files_of(store: Store, caller: str | None) -> list[str]:
    return [one.id for one in (await store.files.page("acme", 9, None, False, None, caller))[0]]


async def batches_of(store: Store, caller: str | None) -> list[str]:
    return [one.id for one in (await store.batches.page("acme", 9, None, caller=caller))[0]]


async def two_callers(store: Store) -> None:
    """file-1 and batch_1 are the key's, file-2 and batch_2 the user's, file-3 nobody's."""
    callers = {
        "1": (MINE, Creator(id="app", tenant="acme", kind="api_key")),
        "2": (THEIRS, Creator(id="b", tenant="acme", kind="oidc", user="bob")),
    }
    for number, (caller, creator) in callers.items():
        await store.files.add(msgspec.structs.replace(FILE, id=f"file-{number}", caller=caller), 100.0, time.perf_counter(), 9, 9)
        batch = msgspec.structs.replace(BATCH, id=f"batch_{number}", input=f"file-{number}", creator=creator)
        await store.batches.add(batch, 100.0, 9)
    await store.files.add(msgspec.structs.replace(FILE, id="file-3"), 100.0, time.perf_counter(), 9, 9)


async def test_each_caller_reaches_its_own_and_the_tenant_all(place: Place) -> None:
    store = await place.open()
    await two_callers(store)
    assert await files_of(store, MINE) == ["file-1"] and await files_of(store, THEIRS) == ["file-2"]
    assert await files_of(store, None) == ["file-1", "file-2", "file-3"] and await files_of(store, "") == []
    assert await batches_of(store, MINE) == ["batch_1"] and await batches_of(store, THEIRS) == ["batch_2"]
    assert await batches_of(store, None) == ["batch_2", "batch_1"]
    assert (await store.files.get("acme", "file-1", MINE)).caller == MINE
    assert (await store.batches.get("batch_1", "acme", MINE)).id == "batch_1"
    for foreign in (
        store.files.get("acme", "file-2", MINE),
        store.files.delete("acme", "file-2", MINE),
        store.files.get("acme", "file-3", ""),
    ):
        with pytest.raises(NotFound, match="There is no file"):
            await foreign
    for theirs in (store.batches.get("batch_2", "acme", MINE), store.batches.cancel("batch_2", "acme", MINE)):
        with pytest.raises(NotFound, match="There is no batch"):
            await theirs
    assert not (await store.batches.get("batch_2", "acme")).cancels


async def test_results_belong_to_whom_the_batch_belongs_to(place: Place) -> None:
    store = await place.open()
    await two_callers(store)
    for number in ("1", "2"):
        held = await store.batches.take("here", 10.0, (), [] if number == "1" else ["batch_1"])
        assert held is not None and held.id == f"batch_{number}"
        made = msgspec.structs.replace(FILE, id=f"file-of-{number}", caller="somebody else")
        await store.batches.finish(msgspec.structs.replace(held, state="completed"), [made], 100.0)
    assert await files_of(store, MINE) == ["file-1", "file-of-1"] and await files_of(store, THEIRS) == ["file-2", "file-of-2"]


async def test_the_next_key_or_user_of_a_name_reaches_nothing_of_the_one_before(place: Place) -> None:
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    await store.create("users", "bob@acme", {"name": "bob", "tenant": "acme"}, actor="x", tenant="acme")
    await two_callers(store)
    held = await store.batches.take("here", 10.0, (), ())
    assert held is not None and held.id == "batch_1"
    await store.delete_key("app", actor="x", dry_run=True)
    assert await files_of(store, MINE) == ["file-1"]
    await store.delete_key("app", actor="x")
    held = await store.batches.advance(held, 10.0)
    assert await files_of(store, MINE) == [] and await batches_of(store, MINE) == []
    await store.batches.finish(msgspec.structs.replace(held, state="failed"), [msgspec.structs.replace(FILE, id="file-4")], 100.0)
    assert await files_of(store, MINE) == [], "nor what comes of the batch of the one before"
    assert await files_of(store, THEIRS) == ["file-2"] and await batches_of(store, THEIRS) == ["batch_2"]
    await store.delete("users", "bob@acme", actor="x")
    assert await files_of(store, THEIRS) == [] and await batches_of(store, THEIRS) == []
    assert await files_of(store, None) == ["file-1", "file-2", "file-3", "file-4"]


async def test_what_a_deleted_key_had_under_way_does_not_become_its_successors(place: Place) -> None:
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    await store.files.add(msgspec.structs.replace(FILE, id="file-1", caller=MINE), 100.0, time.perf_counter(), 9, 9)
    await store.delete_key("app", actor="x")
    began = time.perf_counter()
    with pytest.raises(PermissionDenied, match="was deleted"):
        await store.files.add(msgspec.structs.replace(FILE, id="file-2", caller=MINE), 100.0, began, 9, 9)
    with pytest.raises(PermissionDenied, match="was deleted"):
        await store.batches.add(BATCH, 100.0, 9, began)
    await store.files.add(msgspec.structs.replace(FILE, id="file-2", caller=THEIRS), 100.0, began, 9, 9)


async def test_what_an_earlier_version_wrote_is_nobodys(empty_place: Place) -> None:
    """Also what it writes beside this one, while a gateway is being upgraded."""
    store = empty_place.make()
    columns = "id, tenant, owner, name, purpose, size, key, created, expires"
    insert = f"INSERT INTO files ({columns}) VALUES (:id, 'acme', 'acme/app', 'x', 'batch', 1, '', 1, 9e12)"

    def before(connection: sa.Connection) -> None:
        command.upgrade(settings(connection), "0017")
        connection.execute(sa.text(insert), {"id": "file-1"})

    await store._database.run(before, write=True)
    await store.start()
    await store._database.run(lambda connection: connection.execute(sa.text(insert), {"id": "file-2"}).close(), write=True)
    assert await files_of(store, None) == ["file-1", "file-2"] and await files_of(store, MINE) == [] == await files_of(store, "")
    assert (await store.files.get("acme", "file-1")).caller == ""
    assert (await store.files.delete("acme", "file-1")).owner == "acme/app"
