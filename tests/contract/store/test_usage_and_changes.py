"""What every store keeps to: usage, numbered changes, idempotency keys."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from gateway.core.errors import AlreadyExists, RequestError, VersionMismatch
from gateway.core.idempotency import Idempotent
from gateway.core.ledger import Position, UsageRow
from gateway.core.storage import ControlStore, StoreChange
from gateway.store.store import Store
from gateway.store.upgrade import settings
from tests.contract.store.place import ANY, Place

# --- usage


async def test_usage_adds_up_and_is_grouped(store: ControlStore) -> None:
    rows = [
        UsageRow(day, tenant, key, "m", 1, 10, 5, 2) for day in ("2026-01-01", "2026-01-02") for tenant, key in (("a", "k1"), ("b", "k2"))
    ]
    await store.add_usage(rows)
    await store.add_usage([*rows[:2], rows[0], UsageRow("2026-01-01", "a", "k1", "n", requests=2**40)])
    await store.add_usage([])
    total = {"requests": 7 + 2**40, "prompt_tokens": 70, "completion_tokens": 35, "cached_tokens": 14}
    by_tenant = await store.report_usage()
    assert [row["tenant"] for row in by_tenant] == ["a", "b"]
    assert {name: sum(row[name] for row in by_tenant) for name in total} == total
    assert [(r["day"], r["model"], r["requests"]) for r in await store.report_usage(("day", "model"), tenant="a", key="k1")] == [
        ("2026-01-01", "m", 3),
        ("2026-01-01", "n", 2**40),
        ("2026-01-02", "m", 1),
    ]
    assert [r["requests"] for r in await store.report_usage(("day",), since="2026-01-02", until="2026-01-02")] == [2]
    assert await store.report_usage(("day",), tenant=["c"]) == []
    assert [r["requests"] for r in await store.report_usage(("model",), model="m")] == [7]
    every = ("tenant", "model", "day")
    whole = list(await store.report_usage(every))
    after: list[str] | None = None
    paged: list[dict[str, Any]] = []
    while page := await store.report_usage(every, limit=2, after=after):
        paged += page
        after = [page[-1][name] for name in every]
    assert len(whole) == 5 and paged == whole
    with pytest.raises(RequestError):
        await store.report_usage(every, after=["a"])
    for wrong in ((), ("body",), ("day", "day"), ("writer",)):
        with pytest.raises(RequestError):
            await store.report_usage(wrong)


async def test_usage_of_parallel_replicas_is_all_counted(place: Place) -> None:
    first, second = await place.open(), await place.open()
    rows = [UsageRow("2026-01-01", "t", f"k{n}", "m", 1) for n in range(20)]
    await asyncio.gather(*(store.add_usage(order) for _ in range(10) for store, order in ((first, rows), (second, rows[::-1]))))
    assert (await first.report_usage(("tenant",)))[0]["requests"] == 400


async def test_costs_are_summed_by_currency_and_never_mixed(store: ControlStore) -> None:
    await store.add_usage(
        [
            UsageRow("2026-01-01", "a", "k", "m", 1, cost=3, currency="usd", user="ann", operation="chat"),
            UsageRow("2026-01-01", "a", "k", "m", 1, cost=2**61, currency="usd", user="bob", operation="chat", writer="w"),
            UsageRow("2026-01-01", "a", "k", "free", 1),
            UsageRow("2026-01-01", "b", "k", "m", 1, cost=5, currency="eur", agent="bot", unknown=1),
            UsageRow("2026-01-01", "b", "k", "m", 1, cost=5, currency="usd"),
        ]
    )
    found = {row["tenant"]: (row["cost"], row["currency"]) for row in await store.report_usage(("tenant",))}
    assert found == {"a": (2**61 + 3, "usd"), "b": (None, None)}
    by_currency = await store.report_usage(("currency", "tenant"))
    assert [(row["currency"], row["tenant"], row["cost"]) for row in by_currency] == [
        ("", "a", 0),
        ("eur", "b", 5),
        ("usd", "a", 2**61 + 3),
        ("usd", "b", 5),
    ]
    assert [row["user"] for row in await store.report_usage(("user",), operation="chat")] == ["ann", "bob"]
    assert [row["unknown"] for row in await store.report_usage(("tenant",), agent="bot")] == [1]


async def test_what_one_replica_has_counted_another_does_not_count_again(place: Place) -> None:
    first, second = await place.open(), await place.open()
    none, once, twice = Position("w"), Position("w", 1, 100, 7, "aa"), Position("w", 1, 200, 9, "bb")
    rows = [UsageRow("2026-01-01", "t", "k", "m", 1, writer="w")]
    assert sorted(await asyncio.gather(*(store.add_usage(rows, none, once) for store in (first, second)))) == [False, True]
    assert sorted(await asyncio.gather(*(store.add_usage(rows, once, twice) for store in (first, second)))) == [False, True]
    assert not await second.add_usage(rows, once, twice) and not await first.add_usage(rows, none, twice)
    assert await first.usage_positions() == {"w": twice}
    positions, found = await second.usage_of_writers(["w", "other"])
    assert (positions, [row.requests for row in found]) == ({"w": twice}, [2])
    assert await first.usage_counted_from() == 0.0


async def test_usage_of_a_version_before_is_kept_and_not_counted_again(empty_place: Place) -> None:
    store = empty_place.make()

    def before(connection: sa.Connection) -> None:
        to_revision(connection, "0004")
        connection.execute(sa.text("INSERT INTO usage_daily VALUES ('2026-01-01', 't', 'k', 'm', 5, 10, 20, 3)"))

    await store._database.run(before, write=True)
    await store.start()
    assert [(row["requests"], row["cached_tokens"], row["cost"]) for row in await store.report_usage()] == [(5, 3, 0)]
    assert time.time() - 600 < await store.usage_counted_from() <= time.time()


def to_revision(connection: sa.Connection, revision: str) -> None:
    command.upgrade(settings(connection), revision)


# --- changes


async def test_every_write_is_one_numbered_change(store: ControlStore) -> None:
    heard: list[StoreChange] = []
    unsubscribe = store.subscribe(heard.append)
    await store.create("models", "m", {}, actor="x")
    await store.update("models", "m", {}, actor="x")
    await store.create_key("t", ANY, actor="x", id="k")
    await store.rotate_key("k", actor="x")
    await store.update_key("k", ANY, actor="x")
    await store.revoke_key("k", actor="x")
    await store.delete_key("k", actor="x")
    await store.delete("models", "m", actor="x")
    page = await store.changes_since(0)
    assert [(c.seq, c.kind, c.name, c.action) for c in page.changes] == [
        (1, "models", "m", "created"),
        (2, "models", "m", "updated"),
        (3, "keys", "k", "created"),
        (4, "keys", "k", "rotated"),
        (5, "keys", "k", "updated"),
        (6, "keys", "k", "revoked"),
        (7, "keys", "k", "deleted"),
        (8, "models", "m", "deleted"),
    ]
    assert (page.head, page.gap, list(page.changes)) == (8, False, heard)
    assert [c.seq for c in (await store.changes_since(6, limit=2)).changes] == [7, 8]
    unsubscribe()
    await store.create("models", "m", {}, actor="x")
    assert len(heard) == 8


async def test_a_write_that_fails_takes_no_number(store: ControlStore) -> None:
    await store.create("models", "m", {}, actor="x")
    for attempt in (store.create("models", "m", {}, actor="x"), store.update("models", "m", {}, actor="x", version=9)):
        with pytest.raises((AlreadyExists, VersionMismatch)):
            await attempt
    await store.create("models", "n", {}, actor="x")
    assert [c.seq for c in (await store.changes_since(0)).changes] == [1, 2]


async def test_changes_that_are_forgotten_are_a_gap(place: Place) -> None:
    store = await place.open()
    for n in range(5):
        await store.create("models", f"m{n}", {}, actor="x")
    await place.opened[0]._database.run(lambda c: c.execute(sa.text("DELETE FROM changes WHERE seq <= 3")).close(), write=True)
    assert (await store.changes_since(1)).gap and (await store.changes_since(2)).gap
    after = await store.changes_since(3)
    assert not after.gap and [c.seq for c in after.changes] == [4, 5]
    ahead = await store.changes_since(99)  # the store was set back behind what was seen
    assert (ahead.gap, ahead.head, ahead.changes) == (True, 5, ())


async def test_numbers_grow_in_the_order_of_commits_under_parallel_writers(place: Place) -> None:
    """A reader that polls while two replicas write never sees a number after a higher one: nothing can be missed."""
    stores = [await place.open(), await place.open()]
    reader = await place.open()
    seen: list[int] = []

    async def write(store: Store, name: str) -> None:
        for n in range(10):
            await store.create("models", f"{name}-{n}", {}, actor="x")

    async def read(until: int) -> None:
        while not seen or seen[-1] < until:
            page = await reader.changes_since(seen[-1] if seen else 0)
            assert not page.gap
            seen.extend(c.seq for c in page.changes)
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(read(60), *(write(store, f"w{i}{j}") for i, store in enumerate(stores) for j in range(3)))
    assert seen == list(range(1, 61))


async def test_one_of_parallel_updates_wins(place: Place) -> None:
    stores = [await place.open(), await place.open()]
    await stores[0].create("models", "m", {"n": 0}, actor="x")

    async def add(store: Store) -> int:
        lost = 0
        for _ in range(5):
            while True:
                read = await store.get("models", "m")
                try:
                    await store.update("models", "m", {"n": read.body["n"] + 1}, actor="x", version=read.version)
                    break
                except VersionMismatch:
                    lost += 1
        return lost

    async with asyncio.timeout(60):
        lost = await asyncio.gather(*(add(store) for store in stores for _ in range(3)))
    final = await stores[1].get("models", "m")
    assert (final.body, final.version) == ({"n": 30}, 31)
    assert sum(lost) > 0, "nothing was contended: the test proves nothing"


# --- idempotency keys


async def test_an_idempotency_key_repeats_the_first_answer(store: ControlStore, place: Place) -> None:
    assert await store.begin_idempotent("i", "root", "POST /x", "h1", ttl=60) is None
    assert await store.begin_idempotent("i", "root", "POST /x", "h2") == Idempotent(0, "", "h1")
    await store.finish_idempotent("i", "root", "POST /x", 201, '{"a": 1}', ttl=60)
    assert await store.begin_idempotent("i", "root", "POST /x", "h2") == Idempotent(201, '{"a": 1}', "h1")
    for other in (("j", "root", "POST /x"), ("i", "eve", "POST /x"), ("i", "root", "POST /y")):
        assert await store.begin_idempotent(*other, "h") is None
    place.clock.advance(60)
    assert await store.begin_idempotent("i", "root", "POST /x", "h3") is None


async def test_an_idempotency_key_whose_request_died_is_free_again(store: ControlStore, place: Place) -> None:
    await store.begin_idempotent("i", "root", "r", "h")
    place.clock.advance(60)
    assert await store.begin_idempotent("i", "root", "r", "h") is None
    await store.finish_idempotent("i", "root", "r", 200, "")
    place.clock.advance(60)
    assert await store.begin_idempotent("i", "root", "r", "h") is not None


async def test_an_abandoned_idempotency_key_is_free(store: ControlStore) -> None:
    await store.begin_idempotent("i", "root", "r", "h")
    await store.abandon_idempotent("i", "root", "r")
    assert await store.begin_idempotent("i", "root", "r", "h") is None
    await store.finish_idempotent("i", "root", "r", 200, "")
    await store.abandon_idempotent("i", "root", "r")
    assert await store.begin_idempotent("i", "root", "r", "h") is not None


async def test_a_request_that_is_renewed_is_under_way_for_as_long_as_it_takes(store: ControlStore, place: Place) -> None:
    assert await store.begin_idempotent("i", "root", "r", "h", holder="first") is None
    for seconds in (59, 59, 300):  # the last time it was late, and nobody has begun meanwhile
        place.clock.advance(seconds)
        assert await store.renew_idempotent("i", "root", "r", "first")
    place.clock.advance(59)
    assert await store.begin_idempotent("i", "root", "r", "h", holder="second") == Idempotent(0, "", "h")
    assert await store.finish_idempotent("i", "root", "r", 201, "{}", holder="first")
    assert not await store.renew_idempotent("i", "root", "r", "first"), "an answer lives for a day, not for a minute"
    place.clock.advance(3600)
    assert await store.begin_idempotent("i", "root", "r", "h", holder="third") == Idempotent(201, "{}", "h")


async def test_who_has_lost_an_idempotency_key_changes_nothing_of_it(store: ControlStore, place: Place) -> None:
    await store.begin_idempotent("i", "root", "r", "h", holder="first")
    place.clock.advance(60)
    assert await store.begin_idempotent("i", "root", "r", "h", holder="second") is None
    assert not await store.renew_idempotent("i", "root", "r", "first")
    assert not await store.finish_idempotent("i", "root", "r", 201, "first", holder="first")
    await store.abandon_idempotent("i", "root", "r", holder="first")
    assert await store.begin_idempotent("i", "root", "r", "h", holder="third") == Idempotent(0, "", "h"), "the second is under way"
    assert await store.finish_idempotent("i", "root", "r", 201, "second", holder="second")
    assert await store.begin_idempotent("i", "root", "r", "h") == Idempotent(201, "second", "h")


async def test_of_parallel_requests_with_one_idempotency_key_one_begins(place: Place) -> None:
    stores = [await place.open(), await place.open()]
    answers = await asyncio.gather(*(store.begin_idempotent("i", "a", "r", "h") for _ in range(5) for store in stores))
    assert answers.count(None) == 1


async def test_pruning_forgets_what_is_over(place: Place) -> None:
    store = await place.open()
    await store.begin_idempotent("old", "a", "r", "h", ttl=1)
    await store.begin_idempotent("new", "a", "r", "h", ttl=100)
    await store.create("models", "m", {}, actor="x")
    place.clock.advance(1)
    await store.prune()
    assert (await store.changes_since(0)).head == 1 and len((await store.changes_since(0)).changes) == 1
    assert await store.begin_idempotent("new", "a", "r", "h") is not None
    count = await store._database.run(lambda c: c.execute(sa.text("SELECT count(*) FROM idempotency")).scalar_one())
    assert count == 1
