"""Resources of one kind are read again whenever one may have changed, however often the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.app.store.following import Followed
from gateway.core.errors import NotFound, StoreUnavailable
from gateway.core.storage import Page, Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.feed import CHANGE, RESYNC
from tests.waiting import reached


class Store:
    """Three resources on pages of two. away: how many readings fail. gate: closed, a reading waits."""

    def __init__(self) -> None:
        self.names, self.away, self.asked, self.readings = ["a", "b", "c"], 0, 0, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def list(self, kind: str, *, limit: int, cursor: str | None) -> Page[Resource]:
        names = list(self.names)
        self.asked += 1
        await self.gate.wait()
        self.readings += cursor is None
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        at = int(cursor or 0)
        items = tuple(Resource(kind, name, "", 1, {}, 1.0, 1.0, "") for name in names[at : at + 2])
        return Page(items, str(at + 2) if at + 2 < len(names) else None)

    async def get(self, kind: str, name: str) -> Resource:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        if name not in self.names:
            raise NotFound(name)
        return Resource(kind, name, "", 1, {}, 1.0, 1.0, "")


@pytest.fixture
async def owner() -> AsyncIterator[TaskOwner]:
    made = TaskOwner("test")
    yield made
    await made.aclose()


def follow(store: Store, owner: TaskOwner) -> tuple[Followed, list[list[str]]]:
    told: list[list[str]] = []
    return Followed(store, "things", lambda found: told.append([one.name for one in found]), owner), told  # type: ignore[arg-type]


def changed(kind: str) -> Any:
    return (1, CHANGE, StoreChange(1, kind, "a", "updated", 1.0))


async def test_all_pages_are_read_at_the_start(owner: TaskOwner) -> None:
    followed, told = follow(Store(), owner)
    await followed.start()
    assert (told, followed.stale) == ([["a", "b", "c"]], False)


async def test_only_its_kind_and_a_gap_are_heard(owner: TaskOwner) -> None:
    store = Store()
    followed, told = follow(store, owner)
    await followed.start()
    followed.heard(changed("others"))
    assert not followed.stale
    for heard in (changed("things"), (2, RESYNC, None)):
        store.names = store.names[1:]
        followed.heard(heard)
        await reached(lambda: not followed.stale and told[-1] == store.names, what="the reading")
    assert told == [["a", "b", "c"], ["b", "c"], ["c"]]


async def test_what_changes_during_a_reading_is_read_once_more(owner: TaskOwner) -> None:
    store = Store()
    followed, told = follow(store, owner)
    store.gate.clear()
    followed.refresh()
    await reached(lambda: store.asked == 1, what="the first reading")
    assert followed.stale, "what it waits for is not in force yet"
    store.names = ["d"]
    for _ in range(3):
        followed.refresh()
    store.gate.set()
    await reached(lambda: told and told[-1] == ["d"], what="the second reading")
    assert store.readings == 2 and not followed.stale


async def test_a_store_that_is_away_is_asked_again_without_holding_the_lock(owner: TaskOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.store.following.RETRY_SECONDS", 0.001)
    store = Store()
    store.away = 3
    followed, told = follow(store, owner)
    with pytest.raises(StoreUnavailable):
        await followed.start()
    assert followed.stale
    followed.refresh()
    await reached(lambda: told, what="the reading")
    assert store.readings == 4


async def test_only_what_has_changed_is_read_where_that_is_wanted(owner: TaskOwner) -> None:
    store, told = Store(), list[Any]()
    some = lambda found, gone: told.append(([one.name for one in found], gone))  # noqa: E731
    followed = Followed(store, "things", lambda found: told.append(len(found)), owner, some)  # type: ignore[arg-type]
    await followed.start()
    store.names = ["b", "c", "d"]
    for name in "ad":
        followed.heard((1, CHANGE, StoreChange(1, "things", name, "updated", 1.0)))
    await reached(lambda: not followed.stale)
    assert told == [3, (["d"], ["a"])] and store.readings == 1
    store.away = 1
    followed.heard(changed("things"))
    await reached(lambda: store.away == 0)
    store.names += [f"n{number}" for number in range(100)]
    for number in range(100):
        followed.heard((1, CHANGE, StoreChange(1, "things", f"n{number}", "created", 1.0)))
    await reached(lambda: not followed.stale)
    assert told[2:] == [103], "all of them, once very many have changed"
    followed.heard((1, RESYNC, None))
    await reached(lambda: not followed.stale)
    assert told[3:] == [103]
