"""Committed changes are told in order, of many some at a time, and whoever waits for the last is never left waiting."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.storage import StoreChange
from gateway.store.notifier import AT_ONCE, ChangeNotifier

MANY = 3 * AT_ONCE + 5


def changes(count: int, first: int = 1) -> tuple[StoreChange, ...]:
    return tuple(StoreChange(first + number, "tenants", f"t{number}", "deleted", 0.0) for number in range(count))


async def test_few_are_told_at_once() -> None:
    notifier, heard, over = ChangeNotifier(), list[int](), asyncio.Event()
    notifier.subscribe(lambda change: heard.append(change.seq))
    notifier.tell(changes(AT_ONCE), over.set)
    assert heard == list(range(1, AT_ONCE + 1)) and over.is_set()


async def test_of_many_the_loop_gets_turns_in_between() -> None:
    notifier, heard, over = ChangeNotifier(), list[int](), asyncio.Event()
    notifier.subscribe(lambda change: heard.append(change.seq))
    notifier.tell(changes(MANY), over.set)
    assert len(heard) == AT_ONCE and not over.is_set()
    notifier.tell(changes(1, first=1000))  # a later write does not wait for it
    assert heard[-1] == 1000
    await over.wait()
    assert [seq for seq in heard if seq < 1000] == list(range(1, MANY + 1))


async def test_whoever_waits_is_told_of_the_end_though_a_subscriber_fails() -> None:
    notifier, over = ChangeNotifier(), asyncio.Event()

    def fail(change: StoreChange) -> None:
        raise ValueError(change.name)

    end = notifier.subscribe(fail)
    with pytest.raises(ValueError, match="t0"):
        notifier.tell(changes(MANY), over.set)
    assert over.is_set()
    end()
    notifier.tell(changes(1))
