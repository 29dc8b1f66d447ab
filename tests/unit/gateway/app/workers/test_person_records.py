"""What the control process remembers of callers for its workers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.app.workers.person_records import PersonRecords
from gateway.core.errors import StoreUnavailable
from gateway.core.people import PersonRecord


class Asked:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def find(self, tenant: str, user: str, groups: tuple[str, ...]) -> PersonRecord:
        self.asked.append((tenant, user, groups))
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable("away")
        return PersonRecord(made=float(len(self.asked)))


ALICE, BOB, ACME = ("acme", "alice", ("g",)), ("acme", "bob", ()), ("acme", "", ())


async def filled() -> tuple[Asked, PersonRecords]:
    store = Asked()
    records = PersonRecords(store.find)
    for subject in (ALICE, BOB, ACME, ("globex", "alice", ())):
        await records.find(*subject)
    store.asked.clear()
    return store, records


async def test_a_second_worker_does_not_need_the_store() -> None:
    store, records = await filled()
    store.away = True
    assert (await records.find(*ALICE)).made == 1.0 and store.asked == []
    with pytest.raises(StoreUnavailable):
        await records.find("acme", "carol", ())


@pytest.mark.parametrize(
    ("kind", "name", "asked"),
    [
        ("users", "alice@acme", [ALICE]),
        ("logins", "alice@acme", [ALICE]),
        ("groups", "g@acme", [ALICE, BOB, ACME]),
        ("tenants", "acme", [ALICE, BOB, ACME]),
        ("tenants", "other", []),
    ],
)
async def test_a_change_drops_whom_it_concerns(kind: str, name: str, asked: list[tuple[str, str, tuple[str, ...]]]) -> None:
    store, records = await filled()
    records.changed(kind, name)
    for subject in (ALICE, BOB, ACME, ("globex", "alice", ())):
        await records.find(*subject)
    assert store.asked == asked and len(records) == 4


async def test_an_answer_that_a_change_overtook_is_not_remembered() -> None:
    store = Asked()
    records = PersonRecords(store.find)
    store.gate.clear()
    waiting = asyncio.ensure_future(records.find(*ALICE))
    await asyncio.sleep(0)
    records.changed("tenants", "other")
    store.gate.set()
    await waiting
    assert len(records) == 0


async def test_it_is_bounded_and_can_be_cleared() -> None:
    store = Asked()
    records = PersonRecords(store.find, capacity=3)
    for number in range(9):
        await records.find("acme", f"u{number}", ())
    assert len(records) == 3
    records.clear()
    assert len(records) == 0
    records.changed("tenants", "acme")
