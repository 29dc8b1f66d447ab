"""What every store keeps to: answers are kept encrypted, each for its tenant, within bounds, until they expire."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gateway.core.conversations import AnswerFound, KeepAnswer, Said
from gateway.core.errors import Overloaded, RequestError
from gateway.core.specs.responses import ResponsesSpec
from gateway.store import kept_answers
from gateway.store.kept_answers import KeptAnswers, Sizes
from gateway.store.tables import kept_answers as table
from tests.contract.store.place import Place

SAID = Said(items=b'["the falcon"]', answer=b'{"output":"the falcon answer"}', labels=("secret",))
BOUNDS = ResponsesSpec(retention=100.0)


def wanted(id: str = "resp_1", **changes: Any) -> KeepAnswer:
    made = KeepAnswer(id=id, tenant="acme", owner="user bob", model="m", said=SAID, began=time.perf_counter())
    return msgspec.structs.replace(made, **changes)


async def kept(place: Place) -> KeptAnswers:
    return (await place.open()).kept_answers


async def rows(store: KeptAnswers, statement: Any) -> Any:
    return await store._database.run(lambda connection: connection.execute(statement), write=True)


async def test_every_replica_has_it_until_it_expires(place: Place) -> None:
    one, two = await kept(place), await kept(place)
    await one.keep(wanted(), BOUNDS)
    assert await two.find("resp_1", "acme") == AnswerFound(model="m", owner="user bob", said=SAID)
    assert await two.sweep() == Sizes(1, len(msgspec.msgpack.encode(SAID)))
    place.clock.advance(99.0)
    assert (await one.find("resp_1", "acme")).said == SAID
    place.clock.advance(2.0)
    assert await one.find("resp_1", "acme") == AnswerFound()
    assert await one.sweep() == Sizes(0, 0)


@pytest.mark.parametrize("expired", [True, False])
async def test_many_are_erased_in_portions(place: Place, monkeypatch: pytest.MonkeyPatch, expired: bool) -> None:
    monkeypatch.setattr(kept_answers, "PORTION", 2)
    store = await kept(place)
    for number in range(5):
        await store.keep(wanted(f"resp_{number}"), BOUNDS)
    await store.keep(wanted("resp_other", tenant="other"), ResponsesSpec(retention=1000.0))
    if expired:
        place.clock.advance(101.0)
        assert (await store.sweep()).answers == 1
    else:
        assert await store.erase_all("acme") == 5
    assert (await store.sweep()).answers == 1 and (await store.find("resp_other", "other")).said == SAID


@pytest.mark.parametrize(("id", "tenant"), [("resp_1", "other"), ("resp_2", "acme"), ("resp_%", "acme"), ("\0", "acme"), ("resp_1", "a\0")])
async def test_nobody_elses_is_found_or_erased(place: Place, id: str, tenant: str) -> None:
    store = await kept(place)
    await store.keep(wanted(), BOUNDS)
    assert await store.find(id, tenant) == AnswerFound() and not await store.erase(id, tenant)
    assert (await store.find("resp_1", "acme")).said == SAID


async def test_nothing_of_it_can_be_read_or_moved_in_the_database(place: Place) -> None:
    store = await kept(place)
    await store.keep(wanted(), BOUNDS)
    sealed = (await rows(store, sa.select(table.c.sealed))).scalar_one()
    assert b"falcon" not in sealed and b"secret" not in sealed
    for column, value in (("tenant", "other"), ("owner", "user eve"), ("model", "n"), ("expires", 1e12), ("sealed", sealed[:-1] + b"\0")):
        before = (await rows(store, sa.select(table.c[column]))).scalar_one()
        await rows(store, sa.update(table).values({column: value}))
        assert (await store.find("resp_1", "other" if column == "tenant" else "acme")).said is None
        await rows(store, sa.update(table).values({column: before}))
    assert (await store.find("resp_1", "acme")).said == SAID


async def test_erasing_one_and_a_whole_tenant(place: Place) -> None:
    store = await kept(place)
    for number in range(3):
        await store.keep(wanted(f"resp_{number}"), BOUNDS)
    await store.keep(wanted("resp_x", tenant="other"), BOUNDS)
    assert await store.erase("resp_0", "acme") and not await store.erase("resp_0", "acme")
    assert await store.erase_all("acme") == 2 and await store.erase_all("acme") == 0
    assert (await store.find("resp_1", "acme")).said is None and (await store.find("resp_x", "other")).said == SAID


async def test_bounds_of_one_and_of_a_tenant(place: Place) -> None:
    store = await kept(place)
    size = len(msgspec.msgpack.encode(SAID))
    with pytest.raises(RequestError) as long:
        await store.keep(wanted(), msgspec.structs.replace(BOUNDS, max_bytes=size - 1))
    assert long.value.code == "response_too_large"
    bounds = msgspec.structs.replace(BOUNDS, max_bytes=size, max_total_bytes=2 * size)
    await store.keep(wanted("resp_1"), bounds)
    await store.keep(wanted("resp_2"), bounds)
    with pytest.raises(Overloaded) as full:
        await store.keep(wanted("resp_3"), bounds)
    assert full.value.code == "responses_full"
    await store.keep(wanted("resp_4", tenant="other"), bounds)
    place.clock.advance(101.0)
    await store.keep(wanted("resp_3"), bounds)


async def test_a_tenants_total_is_not_read_for_every_answer(place: Place) -> None:
    """What others have added counts seconds later; what was kept or erased here counts at once."""
    one, two = await kept(place), await kept(place)
    read: list[str] = []
    sa.event.listen(one._database.engine, "before_cursor_execute", lambda *told: read.append(told[2]))
    bounds = msgspec.structs.replace(BOUNDS, max_total_bytes=3 * len(msgspec.msgpack.encode(SAID)))
    for number in range(2):
        await one.keep(wanted(f"resp_{number}"), bounds)
    assert await one.erase("resp_0", "acme")
    for number in range(2, 4):
        await one.keep(wanted(f"resp_{number}"), bounds)
    for number in range(4, 7):
        with pytest.raises(Overloaded):
            await one.keep(wanted(f"resp_{number}"), bounds)
    assert len([statement for statement in read if "sum(" in statement]) == 1
    assert await two.erase_all("acme") == 3
    with pytest.raises(Overloaded):
        await one.keep(wanted("resp_7"), bounds)
    place.clock.advance(61.0)
    await one.keep(wanted("resp_7"), bounds)
