"""Debug captures of several replicas over a real store: one that was replaced elsewhere goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.audit.captures import KIND, Captures
from gateway.core.clock import FakeClock
from gateway.core.errors import AlreadyExists
from gateway.core.storage import Resource
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys)
    await made.start()
    yield made
    await made.aclose()


def captures(store: Store, clock: FakeClock, events: list[str]) -> Captures:
    return Captures(store, lambda event, *_, **__: events.append(event), TaskOwner("test"), clock)


async def test_one_ends_by_itself_and_what_was_replaced_elsewhere_goes_on(store: Store) -> None:
    clock, events = FakeClock(), list[str]()
    one, other = captures(store, clock, events), captures(store, clock, events)
    await one.begin("ci", "acme", 60.0, "why", "acme/root")
    clock.advance(61.0)
    replaced = await other.begin("ci", "acme", 60.0, "again", "acme/root")  # and the first has not heard of it
    await one.clear()
    assert (await store.get(KIND, "ci")).body == replaced.body and "audit.capture_ended" not in events
    clock.advance(61.0)
    await one.clear()
    await other.clear()
    assert not await one.every() and events.count("audit.capture_ended") == 1


async def test_one_begins_though_another_replica_clears_the_one_before_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, create = FakeClock(), store.create
    one = captures(store, clock, [])
    await one.begin("ci", "acme", 60.0, "why", "acme/root")

    async def late(*given: Any, **named: Any) -> Resource:
        monkeypatch.setattr(store, "create", create)
        await store.delete(KIND, "ci", actor="gatehouse")
        raise AlreadyExists("it was there")

    monkeypatch.setattr(store, "create", late)
    assert (await one.begin("ci", "acme", 60.0, "again", "acme/root")).body["reason"] == "again"
