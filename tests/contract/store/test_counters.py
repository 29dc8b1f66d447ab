"""What every store keeps to: counters of limits are changed one after the other, whoever changes them, and never lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from gateway.app.limits.durable import DurableLimits
from gateway.core.specs import BudgetSpec, LimitSpec
from gateway.core.storage import ControlStore, CounterName
from gateway.core.tasks import TaskOwner
from gateway.limits.counter import Ask
from gateway.limits.meter import meters_of
from gateway.store import limit_rows, rows
from tests.contract.store.place import Place

NAMES: list[CounterName] = [("l", "requests", (f"k{n}",)) for n in range(5)]


def plus_one(now: float, bodies: Sequence[str | None]) -> list[tuple[str, float]]:
    return [(str(int(body or 0) + 1), now + 100.0) for body in bodies]


async def test_replicas_change_them_one_after_the_other(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]
    await asyncio.gather(*(stores[n % 3].change_counters(NAMES if n % 2 else NAMES[::-1], plus_one) for n in range(30)))
    assert {row.name: row.body for row in await stores[0].counters_of("l")} == dict.fromkeys(NAMES, "30")
    assert await stores[0].counters_of("other") == ()


async def test_they_are_read_in_the_order_of_their_keys_after_one_and_by_keys(store: ControlStore) -> None:
    """As the code sorts texts, whatever the language of the database."""
    keys = [("B",), ("Z", "\u00e9"), ("_",), ("a",), ("a", "b"), ("\u00c4",)]
    await store.change_counters([("l", amount, key) for amount in ("tokens", "requests") for key in reversed(keys)], plus_one)
    found = [(row.name[2], row.name[1]) for row in await store.counters_of("l")]
    assert found == [(tuple(json.loads(key)), amount) for key in sorted(map(json.dumps, keys)) for amount in ("requests", "tokens")]
    after = await store.counters_of("l", 3, json.dumps(found[3][0]))
    assert [(row.name[2], row.name[1]) for row in after] == found[4:7]
    assert {row.name[2] for row in await store.counters_of("l", keys=[("a", "b"), ("_",), ("no",)])} == {("a", "b"), ("_",)}


async def test_those_of_several_limits_are_read_at_once_some_of_each(store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MANY", 2)
    names: list[CounterName] = [(f"l{limit}", "requests", (f"k{n}",)) for limit in range(3) for n in range(4)]
    await store.change_counters(names, plus_one)
    found = await store.counters_of_each(["l0", "l1", "l2", "none"], 10, 100)
    assert {row.name: row.body for row in found} == dict.fromkeys(names, "1")
    some = Counter(row.name[0] for row in await store.counters_of_each(["l0", "l2"], 3, 100))
    assert some == {"l0": 3, "l2": 3}
    few = Counter(row.name[0] for row in await store.counters_of_each(["l0", "l1"], 3, 4))
    assert few == {"l0": 2, "l1": 2}, "of every limit some"
    assert list(await store.counters_of_each([], 3, 4)) == []


async def test_keys_of_any_length_are_read_page_by_page(store: ControlStore) -> None:
    """Longer than an entry of an index may be, and the same for longer than what is in it."""
    noise = random.Random(1)
    long = ["".join(chr(noise.randrange(0x10000, 0x20000)) for _ in range(1000)) for _ in range(3)]
    keys = [*((name,) for name in long), *(("x" * 300 + str(n),) for n in range(5))]
    await store.change_counters([("l", "requests", key) for key in keys], plus_one)
    expected = [tuple(json.loads(key)) for key in sorted(map(json.dumps, keys))]
    found: list[tuple[str, ...]] = []
    while rows := await store.counters_of("l", 3, json.dumps(found[-1]) if found else ""):
        found += [row.name[2] for row in rows]
    assert found == expected
    assert [row.name[2] for row in await store.counters_of("l", keys=[keys[0], keys[4]])] == [
        one for one in expected if one in (keys[0], keys[4])
    ]
    assert await store.forget_counters("l", keys[4]) == 1


async def test_a_change_that_fails_changes_nothing(store: ControlStore) -> None:
    def broken(now: float, bodies: Sequence[str | None]) -> list[tuple[str, float]]:
        raise ValueError("no")

    await store.change_counters(NAMES[:1], plus_one)
    with pytest.raises(ValueError, match="no"):
        await store.change_counters(NAMES, broken)
    assert [row.body for row in await store.counters_of("l")] == ["1"]


async def test_they_can_be_forgotten_and_expire(place: Place) -> None:
    store = await place.open()
    await store.change_counters(NAMES, plus_one)
    assert await store.forget_counters("l", ("k0",)) == 1
    assert len(await store.counters_of("l", 3)) == 3
    place.clock.advance(101.0)
    await store.change_counters(NAMES[:1], plus_one)
    assert await store.sweep_counters() == 4
    assert [row.name for row in await store.counters_of("l")] == NAMES[:1]
    assert await store.forget_counters("l") == 1


async def test_many_are_forgotten_in_portions(store: ControlStore, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_rows, "PORTION", 2)
    await store.change_counters([*NAMES, ("other", "requests", ("k",))], plus_one)
    assert await store.forget_counters("l") == 5 and len(await store.counters_of("other")) == 1
    await store.change_counters(NAMES, plus_one)
    place.clock.advance(101.0)
    assert await store.sweep_counters() == 6


async def test_a_budget_over_replicas_is_handed_out_once(place: Place) -> None:
    meter = meters_of(LimitSpec(name="b", budget=BudgetSpec(amount=1000)))[0]
    replicas = [DurableLimits(await place.open(), name, lambda: 2, TaskOwner("test")) for name in "ab"]

    async def take(replica: DurableLimits) -> int:
        granted = 0
        for _ in range(20):
            asks = [Ask("b", meter, (key,), "x", 2, need=7, want=7, ahead=50) for key in ("k1", "k2", "k1")]
            granted += sum(one.granted for one in await replica.count(asks))
        return granted

    assert sum(await asyncio.gather(*map(take, replicas))) <= 2000
    left = [one.left for one in await replicas[0].count([Ask("b", meter, (key,), "x") for key in ("k1", "k2")])]
    assert all(one < 7 for one in left)
