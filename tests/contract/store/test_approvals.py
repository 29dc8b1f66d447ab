"""What every store keeps to: an answer is kept encrypted until somebody decides, is given once, and to nobody else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gateway.core.approvals import Bounds, HeldUse, Hold, Requester, Take, Taken
from gateway.core.errors import ConfigError, NotFound, Overloaded, RequestError, VersionMismatch
from gateway.store import approvals
from gateway.store.approvals import MARGIN, StoredApprovals
from gateway.store.tables import approvals as table
from tests.contract.store.place import Place

BOUNDS = Bounds(answer=10_000, total=50_000, pending=3)
ME = Requester(tenant="acme", id="k", kind="api_key", identities=("key acme k",))
OTHER = Requester(tenant="acme", id="other", kind="api_key")


def hold(**changes: Any) -> Hold:
    use = HeldUse(tool="delete", of="call", arguments='{"secret":"falcon"}', sha256="a" * 64, action="hold")
    made = Hold(
        guardrail="tools",
        model="m",
        operation="chat",
        request_id="r1",
        peer="192.0.2.1",
        requester=ME,
        request="b" * 64,
        uses=[use],
        approvers=("role/x",),
        seconds=60.0,
        form="whole",
        began=time.perf_counter(),
        body=b"the falcon answer",
    )
    return msgspec.structs.replace(made, **changes)


def take(id: str, **changes: Any) -> Take:
    return msgspec.structs.replace(Take(id=id, requester=ME, request="b" * 64, request_id="r2"), **changes)


async def kept(place: Place) -> StoredApprovals:
    return (await place.open()).approvals  # type: ignore[attr-defined,no-any-return]


async def test_from_asking_to_the_one_return(place: Place) -> None:
    store = await kept(place)
    record = await store.hold(hold(), BOUNDS)
    assert (record.state, record.held.tool, record.held.sha256) == ("pending", "delete", "a" * 64)
    assert (await store.take(take(record.id))).state == "pending"
    again, content = await store.read(record.id)
    assert again == record and content is not None and content.uses == hold().uses and content.body == b"the falcon answer"
    assert (await store.decide(record.id, True, "acme/boss", "fine", dry_run=True)).state == "approved"
    assert (await store.take(take(record.id))).state == "pending", "a dry run decides nothing"
    decided = await store.decide(record.id, True, "acme/boss", "fine")
    assert (decided.state, decided.decider, decided.reason) == ("approved", "acme/boss", "fine")
    with pytest.raises(VersionMismatch):
        await store.decide(record.id, False, "acme/boss", "no")
    looked = await store.take(take(record.id, look=True))
    assert (looked.state, looked.form, looked.body) == ("approved", "whole", b"")
    assert await store.take(take(record.id, requester=OTHER)) == Taken(state="unknown")
    assert await store.take(take(record.id, request="c" * 64)) == Taken(state="other")
    assert await store.take(take("apr-none")) == await store.take(take("\0")) == Taken(state="unknown")
    assert await store.take(take(record.id, made=record.created + 0.001)) == Taken(state="unknown"), "another key of the id"
    taken = await store.take(take(record.id, made=record.created - 0.001))
    assert (taken.state, taken.body, taken.hashes) == ("taken", b"the falcon answer", ("a" * 64,))
    assert (await store.take(take(record.id))).state == "used"
    used, content = await store.read(record.id)
    assert (used.state, used.size, content) == ("used", 0, None) and used.used is not None


async def test_of_several_replicas_that_take_one_gets_it(place: Place) -> None:
    stores = [await kept(place) for _ in range(3)]
    record = await stores[0].hold(hold(), BOUNDS)
    await stores[1].decide(record.id, True, "a", "b")
    found = await asyncio.gather(*(stores[n % 3].take(take(record.id)) for n in range(9)))
    assert sorted(one.state for one in found) == ["taken"] + ["used"] * 8


async def test_what_has_expired_gives_nothing_and_is_erased(place: Place) -> None:
    store = await kept(place)
    pending, approved = [await store.hold(hold(), BOUNDS) for _ in range(2)]
    await store.decide(approved.id, True, "a", "b")
    place.clock.advance(61.0)
    assert {(await store.take(take(one.id))).state for one in (pending, approved)} == {"expired"}
    with pytest.raises(VersionMismatch) as refused:
        await store.decide(pending.id, True, "a", "b")
    assert refused.value.code == "approval_expired"
    assert (await store.get(pending.id)).state == "expired"
    swept = await store.sweep(1000.0)
    assert {one.id for one in swept.expired} == {pending.id, approved.id} and swept.counts == {"expired": 2} and swept.size == 0
    assert (await store.sweep(1000.0)).expired == []
    assert (await store.read(pending.id))[1] is None
    place.clock.advance(1001.0)
    assert (await store.sweep(1000.0)).counts == {}
    with pytest.raises(NotFound):
        await store.get(pending.id)


async def test_many_are_forgotten_in_portions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "PORTION", 2)
    store = await kept(place)
    for _ in range(5):
        await store.decide((await store.hold(hold(), BOUNDS)).id, False, "a", "b")
    place.clock.advance(1000.0)
    left = await store.hold(hold(), BOUNDS)
    assert (await store.sweep(2000.0)).counts == {"denied": 5, "pending": 1}
    assert (await store.sweep(100.0)).counts == {"pending": 1} and (await store.get(left.id)).state == "pending"


async def test_a_sweep_looks_at_what_expired_lately_and_each_hour_at_all(place: Place) -> None:
    opened = await place.open()
    store: StoredApprovals = opened.approvals  # type: ignore[attr-defined]
    await store.sweep(1e9)
    first = await store.hold(hold(), BOUNDS)
    assert (await store.sweep(1e9)).size == first.size > 0
    place.clock.advance(61.0)
    assert [one.id for one in (await store.sweep(1e9)).expired] == [first.id]
    second = await store.hold(hold(), BOUNDS)
    long_ago = sa.update(table).where(table.c.id == second.id).values(expires=second.created - 2 * MARGIN)
    await opened._database.run(lambda connection: connection.execute(long_ago), write=True)  # type: ignore[attr-defined]
    assert (await store.sweep(1e9)).expired == [], "as in a copy that was put back"
    place.clock.advance(MARGIN)
    assert [one.id for one in (await store.sweep(1e9)).expired] == [second.id]
    third = await store.hold(hold(), BOUNDS)
    place.clock.advance(3 * MARGIN)
    assert [one.id for one in (await store.sweep(1e9)).expired] == [third.id], "after a long pause"


async def test_a_denied_one_is_erased_at_once(place: Place) -> None:
    store = await kept(place)
    record = await store.hold(hold(), BOUNDS)
    await store.decide(record.id, False, "a", "b")
    assert (await store.take(take(record.id))).state == "denied" and (await store.read(record.id))[1] is None
    with pytest.raises(NotFound):
        await store.decide("apr-none", False, "a", "b")


async def test_pages_are_in_order_by_tenant_and_state(place: Place) -> None:
    store = await kept(place)
    records = []
    for number in range(5):
        requester = msgspec.structs.replace(OTHER, id=f"k{number}", tenant="acme" if number % 2 == 0 else "globex")
        records.append(await store.hold(hold(requester=requester), BOUNDS))
        place.clock.advance(0.01)
    await store.decide(records[0].id, True, "a", "b")
    first = await store.page(tenant=None, state=None, limit=3, cursor=None)
    rest = await store.page(tenant=None, state=None, limit=3, cursor=first.cursor)
    assert [one.id for one in (*first.items, *rest.items)] == [one.id for one in records] and rest.cursor is None
    assert len((await store.page(tenant=["globex"], state=None, limit=9, cursor=None)).items) == 2
    assert len((await store.page(tenant=[], state=None, limit=9, cursor=None)).items) == 0
    assert len((await store.page(tenant="acme", state="pending", limit=9, cursor=None)).items) == 2
    assert len((await store.page(tenant=None, state="approved", limit=9, cursor=None)).items) == 1
    place.clock.advance(100.0)
    assert len((await store.page(tenant=None, state="expired", limit=9, cursor=None)).items) == 5
    assert len((await store.page(tenant=None, state="pending", limit=9, cursor=None)).items) == 0


async def test_what_is_kept_is_bounded(place: Place) -> None:
    store = await kept(place)
    with pytest.raises(RequestError) as refused:
        await store.hold(hold(body=b"x" * 10_001), BOUNDS)
    assert refused.value.code == "approval_too_large"
    for _ in range(3):
        await store.hold(hold(), BOUNDS)
    with pytest.raises(Overloaded):
        await store.hold(hold(), BOUNDS)
    for number in range(5):
        await store.hold(hold(requester=msgspec.structs.replace(OTHER, id=f"o{number}"), body=b"x" * 9000), BOUNDS)
    with pytest.raises(Overloaded) as full:
        await store.hold(hold(requester=OTHER, body=b"x" * 9000), BOUNDS)
    assert full.value.code == "approvals_full"


@pytest.mark.parametrize("change", [{"expires": 1e12}, {"request": "c" * 64}, {"form": "stream"}, {"guardrail": "x"}, {"created": 0.0}])
async def test_the_database_alone_tells_nothing_and_a_changed_row_does_not_open(place: Place, change: dict[str, Any]) -> None:
    store = await kept(place)
    record = await store.hold(hold(), BOUNDS)
    row = await meddled(store, change)
    assert b"falcon" not in row.sealed and "falcon" not in repr(tuple(row))
    with pytest.raises(ConfigError):
        await store.read(record.id)


async def test_the_database_alone_can_neither_approve_nor_give_to_another(place: Place) -> None:
    store = await kept(place)
    record = await store.hold(hold(), BOUNDS)
    await meddled(store, {"state": "approved", "decided": 1.0, "decider": "x", "principal": OTHER.hashed})
    with pytest.raises(ConfigError):
        await store.take(take(record.id))
    assert (await store.take(take(record.id, requester=OTHER))).state == "unknown"


async def meddled(store: StoredApprovals, change: dict[str, Any]) -> Any:
    """The row, once somebody with the database has changed it."""

    def work(connection: sa.Connection) -> Any:
        connection.execute(sa.update(table).values(**change))
        return connection.execute(sa.select(table)).one()

    return await store._database.run(work, write=True)
