"""Two transactions at the same moment, in an order that the test chooses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.contract.store.place import Place
from tests.waiting import SECONDS, reached


class Pause:
    """The first call of a function stands still in the store's thread, in the middle of its transaction, until `go`. late: once it has done
    its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, *, late: bool = False) -> None:
        self._there, self._goes, self._first = threading.Event(), threading.Event(), True
        real = getattr(where, name)

        def paused(*given: Any, **named: Any) -> Any:
            mine, self._first = self._first, False
            found = real(*given, **named) if late else None
            if mine:
                self._there.set()
                assert self._goes.wait(SECONDS)
            return found if late else real(*given, **named)

        monkeypatch.setattr(where, name, paused)

    async def reached(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        """Begins the work, and returns once it stands here."""
        begun = asyncio.ensure_future(work)
        await reached(lambda: self._there.is_set() or begun.done(), what="the middle of the transaction")
        assert self._there.is_set(), begun.result()
        return begun

    def go(self) -> None:
        self._goes.set()


def waiting(place: Place) -> int:
    """How many transactions of PostgreSQL's wait for a lock."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def beside(place: Place, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begins the work, and returns once it waits for another transaction, or is done. SQLite has one writer at a time."""
    begun = asyncio.ensure_future(work)
    if place.url != "sqlite":
        await reached(lambda: begun.done() or waiting(place), what="the second transaction")
    return begun


async def ended(*begun: asyncio.Future[Any]) -> list[Any]:
    return await asyncio.gather(*begun, return_exceptions=True)


@contextmanager
def held(place: Place, statement: str, *given: Any) -> Iterator[psycopg.Connection]:
    """A transaction of PostgreSQL's that has run the statement, until it is committed."""
    with psycopg.connect(place.url) as connection:
        assert connection.execute(statement.encode(), given).rowcount > 0
        yield connection
