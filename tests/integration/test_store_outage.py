"""A database that goes away, hangs and comes back: every call ends in time, and the store heals by itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.core.errors import StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.core.storage import KeySettings
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.identity import keys
from gateway.identity.stored import StoredKeys
from gateway.store import database
from gateway.store.database import THREADS, Database, make_engine
from gateway.store.feed import ChangePoller
from gateway.store.store import Store
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture

PEPPER = "p" * 32
ANY = KeySettings(models=("*",))
HERE = Peer("127.0.0.1")


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        await asyncio.sleep(0.01)


async def back(store: Store) -> None:
    """Waits until it has worked for a while without a failure."""

    async def available() -> bool:
        await store.list("models")
        return store.available

    await until(available, "the end of the outage")


@pytest.fixture
async def opened(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Store]]]:  # noqa: F811
    url, stores = f"{postgres.store()}&connect_timeout=60", []

    async def make(**options: Any) -> Store:
        stores.append(Store(url, tmp_path, keys, given_pepper=PEPPER, **options))
        await stores[-1].start()
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


async def test_a_server_that_restarts_between_two_calls_is_not_noticed(
    postgres: PostgresServer,  # noqa: F811
    opened: Callable[..., Awaitable[Store]],
) -> None:
    store = await opened(deadline=60.0)
    await asyncio.gather(*(store.list("models") for _ in range(8)))  # every connection of the pool is open
    postgres.stop()
    postgres.start()
    made = await store.create("models", "m", {}, actor="x")
    assert await store.get("models", "m") == made and store.available


async def test_a_server_that_is_down_and_comes_back(
    postgres: PostgresServer,  # noqa: F811
    opened: Callable[..., Awaitable[Store]],
) -> None:
    store = await opened(deadline=60.0)
    tasks, feed, heard = TaskOwner("test"), LocalFeed(), list[Change]()
    feed.subscribe(heard.append)
    poller = ChangePoller(store, feed, 0.05)
    await poller.start()
    store.subscribe(poller.written)
    cache = StoredKeys(store.find_key, tasks)
    record, secret = await store.create_key("t", ANY, actor="x", id="k")
    key = secret.reveal()
    principal = await cached(cache, key)
    assert principal is not None and principal.id == record.id
    postgres.stop()
    try:
        for attempt in (store.get("models", "m"), store.create("models", "m", {}, actor="x"), store.touch_keys({"k": 1.0})):
            with pytest.raises(StoreUnavailable) as caught:
                await asyncio.wait_for(attempt, 60)
            assert (caught.value.status, caught.value.code) == (503, "store_unavailable")
        assert not store.available
        assert await cached(cache, key) is principal  # what is known goes on
        with pytest.raises(StoreUnavailable):  # what is not known is no "invalid key"
            await cached(cache, keys.generate(store._entropy))
    finally:
        postgres.start()

    async def revoked() -> bool:
        try:
            await store.revoke_key("k", actor="x")
        except StoreUnavailable:
            return False
        return True

    await until(revoked, "healing")
    await back(store)
    other = await opened()
    await other.create("models", "elsewhere", {}, actor="y")
    await until(lambda: done(any(change[2].name == "elsewhere" for change in heard)), "the change of another replica")
    assert [change[2].seq for change in heard] == list(range(1, len(heard) + 1))
    await poller.aclose()
    await tasks.aclose()


async def cached(cache: StoredKeys, key: str) -> Principal | None:
    answer = cache.lookup(keys.digest(key), key, HERE)
    return answer if answer is None or isinstance(answer, Principal) else await answer


async def done(value: bool) -> bool:
    return value


async def test_sessions_that_a_failover_left_at_a_read_only_server_are_given_up(
    postgres: PostgresServer,  # noqa: F811
    opened: Callable[..., Awaitable[Store]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New sessions may write: they are at another server."""
    monkeypatch.setattr(database, "FRESH", 3600.0)
    store = await opened(deadline=60.0)
    await asyncio.gather(*(store.list("models") for _ in range(8)))  # every connection of the pool is open
    url = str(store._database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    name = store._database.engine.url.database

    def demoted(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")

    async def demote() -> None:
        held = threading.Barrier(THREADS)

        def work(connection: sa.Connection) -> None:
            held.wait(60)  # each in a session of its own
            demoted(connection)

        await asyncio.gather(*(store._database.run(work, deadline=60.0) for _ in range(THREADS)))

    await demote()
    with pytest.raises(StoreUnavailable):  # they are young: the server itself may be a standby
        await store.create("models", "early", {}, actor="x")
    assert not store.available
    monkeypatch.setattr(database, "FRESH", 0.0)
    made = await store.create("models", "m", {}, actor="x")
    assert await store.get("models", "m") == made

    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on", url)
    await demote()  # and so is each new session
    with pytest.raises(StoreUnavailable) as caught:
        await store.create("models", "late", {}, actor="x")
    assert "read-only" in str(caught.value.__cause__)


async def test_a_frozen_server_costs_the_deadline_and_no_thread(
    postgres: PostgresServer,  # noqa: F811
    opened: Callable[..., Awaitable[Store]],
) -> None:
    store = await opened(deadline=60.0)
    await asyncio.gather(*(store.list("models") for _ in range(8)))
    store._database.deadline = 3.0
    postgres.freeze()
    try:
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(store.list("models") for _ in range(8)), return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results), results
        await until(lambda: done(store.pending == 0), "the end of what hung")
    finally:
        postgres.thaw()

    async def answers() -> bool:
        try:
            await asyncio.gather(*(store.list("models") for _ in range(8)))
        except StoreUnavailable:
            return False
        return True

    await until(answers, "healing")


async def test_a_call_that_has_to_connect_to_a_frozen_server_frees_its_thread_too(
    postgres: PostgresServer,  # noqa: F811
    opened: Callable[..., Awaitable[Store]],
) -> None:
    """A connection that is not open yet cannot be broken off: its own time is bounded, whatever the URL says."""
    store = await opened(deadline=60.0)
    await asyncio.gather(*(store.list("models") for _ in range(8)))

    async def ask(deadline: float) -> Any:
        return await store._database.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar(), deadline=deadline)

    postgres.freeze()
    try:
        first = [asyncio.create_task(ask(2.0)) for _ in range(THREADS)]  # they hold every connection
        await asyncio.sleep(0)
        later = asyncio.create_task(ask(5.0))  # gets a thread whose connection was broken off
        results = await asyncio.gather(*first, later, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results), results
        await until(lambda: done(store.pending == 0), "the end of what hung", 30.0)  # of 60 s that the URL gives
    finally:
        postgres.thaw()
    await back(store)


async def test_of_two_transactions_that_wait_for_each_other_the_one_broken_off_is_done_again(
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    database = Database(make_engine(postgres.database(), tmp_path, 60.0), 60.0)
    both_hold_one = threading.Barrier(2)
    tries = []

    def make(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE held (n int PRIMARY KEY, x int)")
        connection.exec_driver_sql("INSERT INTO held VALUES (1, 0), (2, 0)")

    def add(*order: int) -> Callable[[sa.Connection], None]:
        def work(connection: sa.Connection) -> None:
            tries.append(order)
            for n in order:
                connection.execute(sa.text("UPDATE held SET x = x + 1 WHERE n = :n"), {"n": n})
                if n == order[0] and len(tries) < 3:
                    both_hold_one.wait(60)

        return work

    try:
        await database.run(make, write=True)
        await asyncio.gather(database.run(add(1, 2), write=True), database.run(add(2, 1), write=True))
        found = await database.run(lambda connection: connection.execute(sa.text("SELECT x FROM held")).scalars().all())
        assert (found, database.available) == ([2, 2], True) and len(tries) > 2
    finally:
        await database.aclose()


async def test_a_start_without_a_server_fails_in_time(tmp_path: Path) -> None:
    store = Store(f"postgresql://nobody@/none?host={tmp_path}", tmp_path, keys, deadline=2.0)
    with pytest.raises(StoreUnavailable):
        await store.start()
    await store.aclose()


async def test_a_locked_sqlite_file_costs_the_deadline_and_heals(tmp_path: Path) -> None:
    store = Store("sqlite", tmp_path, keys, deadline=3.0)
    await store.start()
    store._database.deadline = 60.0
    await store.create("models", "m", {}, actor="x")
    blocker = sqlite3.connect(tmp_path / "gatehouse.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE").close()
    store._database.deadline = 3.0
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.create("models", "n", {}, actor="x"), 60)
    store._database.deadline = 60.0
    assert (await store.get("models", "m")).version == 1  # readers do not wait for a writer
    blocker.execute("ROLLBACK").close()
    blocker.close()

    async def written() -> bool:
        try:
            await store.update("models", "m", {"again": True}, actor="x")
        except StoreUnavailable:
            return False
        return True

    await until(written, "healing")
    await back(store)
    await store.aclose()
