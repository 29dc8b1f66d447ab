"""What every store keeps to: the queue of webhooks' deliveries."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.deliveries import Delivery
from gateway.store import delivery_rows
from tests.contract.store.place import Place

FAR = 1000.0


def delivery(id: str, **more: object) -> Delivery:
    return Delivery(id=id, webhook="w", event="e", body="{}", created=0.0, due=0.0, **more)  # type: ignore[arg-type]


async def test_a_delivery_is_queued_once_and_taken_by_one(place: Place) -> None:
    first, second = await place.open(), await place.open()
    assert await first.add_deliveries([delivery("1")], 1) == 1
    assert await second.add_deliveries([delivery("1"), delivery("2")], 1) == 1, "there is no room"
    both = await asyncio.gather(first.take_deliveries(9.0, FAR), second.take_deliveries(9.0, FAR))
    assert [one.id for found in both for one in found] == ["1"]
    place.clock.advance(9.0)
    assert await second.add_deliveries([delivery("2")], 2) == 1
    assert [(one.id, one.attempts) for one in await first.take_deliveries(10.0, FAR)] in ([("1", 2), ("2", 1)], [("2", 1), ("1", 2)])
    await second.settle_delivery("1", status="delivered", pause=0.0, code=204, error="")
    await second.settle_delivery("2", status="pending", pause=5.0, code=503, error="x" * 1000)
    place.clock.advance(4.0)
    assert [one.id for one in await first.take_deliveries(10.0, FAR)] == []
    place.clock.advance(1.0)
    assert [(one.id, one.attempts, len(one.error)) for one in await first.take_deliveries(10.0, FAR)] == [("2", 2, 500)]


async def test_no_delivery_waits_for_a_clock_that_was_set_back(place: Place) -> None:
    store = await place.open()
    await store.add_deliveries([delivery("1")], 1)
    await store.take_deliveries(10.0, FAR)
    await store.settle_delivery("1", status="pending", pause=500.0, code=503, error="")
    place.clock.step(-400.0)
    assert await store.take_deliveries(10.0, FAR) == []
    place.clock.step(-86400.0)
    assert [(one.id, one.attempts) for one in await store.take_deliveries(10.0, FAR)] == [("1", 2)]


async def test_many_deliveries_are_forgotten_in_portions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_rows, "PORTION", 2)
    store = await place.open()
    for number in range(8):
        place.clock.advance(1.0)
        await store.add_deliveries([delivery(f"{number}")], 10)
        if number:
            await store.settle_delivery(f"{number}", status="failed" if number % 2 else "delivered", pause=0.0, code=200, error="")
    assert await store.forget_deliveries(1000.0, 2) == 5
    assert [one.id for one in await store.deliveries()] == ["7", "6", "0"], "the newest are left, and what waits"
    assert await store.forget_deliveries(-1.0, 10) == 2


async def test_settled_deliveries_are_forgotten_unless_they_keep_something_from_being_told_again(place: Place) -> None:
    store, begin = await place.open(), place.clock.wall()
    await store.add_deliveries([delivery("1"), delivery("2", keep=begin + 100.0), delivery("3")], 10)
    place.clock.advance(60.0)
    await store.add_deliveries([delivery("4")], 10)
    for id in ("1", "2", "4"):
        await store.settle_delivery(id, status="delivered", pause=0.0, code=200, error="")
    assert await store.forget_deliveries(10.0, 10) == 1
    assert {one.id for one in await store.deliveries()} == {"2", "3", "4"}
    assert await store.forget_deliveries(10.0, 1) == 1
    assert {one.id for one in await store.deliveries("w")} == {"3", "4"} and await store.deliveries("v") == []
