"""What every store keeps to: its schema, and its beginning and end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.storage import StoreChange
from gateway.identity import keys
from gateway.store import opening
from gateway.store.database import STORES
from gateway.store.migrate import HEAD, LOCK, migrate
from gateway.store.tables import LIMIT_INDEXES, metadata
from gateway.store.upgrade import settings
from tests.contract.store.place import PEPPER, Place
from tests.integration.postgres import PostgresServer
from tests.waiting import reached

# --- schema and life


async def test_the_migrations_make_the_tables_that_the_code_means(empty_place: Place) -> None:
    store = await empty_place.open()

    def difference(connection: sa.Connection) -> list[Any]:
        own = LIMIT_INDEXES[connection.dialect.name]
        assert own in [index["name"] for index in sa.inspect(connection).get_indexes("limit_windows")]
        opts = {"compare_type": True, "include_name": lambda name, kind, parents: name != own}
        return list(compare_metadata(MigrationContext.configure(connection, opts=opts), metadata))

    assert await store._database.run(difference) == []


async def test_replicas_that_start_together_migrate_once(empty_place: Place) -> None:
    stores = [empty_place.make() for _ in range(4)]
    await asyncio.gather(*(store.start() for store in stores))
    revisions = await stores[2]._database.run(lambda c: c.execute(sa.text("SELECT version_num FROM alembic_version")).all())
    assert revisions == [(ScriptDirectory.from_config(settings()).get_current_head(),)] == [(HEAD,)]
    await stores[0].create("models", "m", {}, actor="x")
    await stores[1].start()
    assert (await stores[3].get("models", "m")).version == 1


async def test_a_failed_migration_leaves_nothing_behind(empty_place: Place) -> None:
    store = empty_place.make()

    def fail(connection: sa.Connection) -> None:
        migrate(connection)
        raise LookupError("and then the power went")

    with pytest.raises(LookupError):
        await store._database.run(fail, write=True)
    assert await store._database.run(lambda connection: sa.inspect(connection).get_table_names()) == []


async def test_the_schema_of_a_newer_gatehouse_is_refused(place: Place) -> None:
    store = await place.open()
    await store._database.run(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")).close(), write=True)
    with pytest.raises(ConfigError, match=r"newer Gatehouse .*9999"):
        await place.open()


async def test_a_database_that_was_not_restored_to_its_end_is_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    """pg_dump writes primary keys behind all rows: a restore that was killed before may have brought keys, and no limits and guardrails."""
    place = Place(postgres.database(), tmp_path)
    store = await place.open()
    try:
        await store._database.run(lambda c: c.execute(sa.text("ALTER TABLE resources DROP CONSTRAINT pk_resources")).close(), write=True)
        with pytest.raises(ConfigError, match=r"not restored to its end .*: resources\): restore the backup again, into an empty database"):
            await place.open()
    finally:
        for opened in place.opened:
            await opened.aclose()


async def test_a_start_waits_for_a_replica_that_migrates(tmp_path: Path, postgres: PostgresServer) -> None:
    """For longer than a call may take: the wait for the lock is no call that hangs."""
    url = postgres.database()
    place = Place(url, tmp_path)
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    other = engine.connect()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '0.5 s'"
    try:
        other.execute(sa.text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        start = asyncio.create_task(place.open(deadline=0.2))
        await reached(lambda: start.done() or other.scalar(sa.text(waits)))
        other.execute(sa.text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
        store = await start
        shown = await store._database.run(lambda connection: connection.scalar(sa.text("SHOW statement_timeout")), deadline=60.0)
        assert shown == "200ms"
    finally:
        other.close()
        engine.dispose()
        for opened in place.opened:
            await opened.aclose()


async def test_a_closed_store_refuses(place: Place) -> None:
    store = await place.open()
    await store.aclose()
    with pytest.raises(StoreUnavailable):
        await store.get("models", "m")


async def test_a_caller_that_leaves_does_not_hide_its_write(place: Place) -> None:
    """Cancelled while the write runs: either it happened and was announced, or it did not and was not."""
    store = await place.open()
    heard: list[StoreChange] = []
    store.subscribe(heard.append)
    for n in range(10):
        task = asyncio.get_running_loop().create_task(store.create("models", f"m{n}", {}, actor="x"))
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # the last ones may be done before they are cancelled
    await reached(lambda: not store.pending)
    assert list((await store.changes_since(0)).changes) == heard
    assert len((await store.list("models")).items) == len(heard)


async def test_a_look_says_what_a_start_would_and_changes_nothing(place: Place) -> None:
    async def look(pepper: str = PEPPER) -> None:
        await opening.look(place.url, place.directory, keys, pepper, STORES)

    await look()
    store = await place.open()
    await look()
    with pytest.raises(ConfigError, match="another pepper"):
        await look("q" * 32)
    await store._database.run(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '0018'")).close(), write=True)
    await look()  # a start would bring it up to date
    await store._database.run(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")).close(), write=True)
    with pytest.raises(ConfigError, match=r"newer Gatehouse .*9999"):
        await look()


async def test_a_look_at_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="The store cannot be opened: "):
        await opening.look(f"postgresql://nobody@/none?host={tmp_path}", tmp_path, keys, PEPPER, STORES)
