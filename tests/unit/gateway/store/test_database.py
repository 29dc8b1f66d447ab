"""The way to the database: which URLs, which files, bounded work; and who must not pay for importing it."""

from __future__ import annotations

import asyncio
import ctypes
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.store import database as module
from gateway.store.database import CACHE_KIB, FILE, MAX_PENDING, SPILL_PAGES, STEADY, Database, make_engine
from tests.waiting import reached

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///x.db", "nonsense", "", "postgresql+psycopg2://x/y", "postgresql://x:port/y"])
def test_urls_that_are_no_store(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_engine(url, tmp_path, 5.0)
    assert caught.value.path == "store.url"


def test_a_password_is_in_no_error(tmp_path: Path) -> None:
    for url in ("mysql://user:hunter2@host/x", "postgresql://user:hunter2@host:nonsense/x", "postgresql://u@h/x?password=hunter2"):
        with pytest.raises(ConfigError) as caught:
            make_engine(url, tmp_path, 5.0)
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(make_engine("postgresql://user:hunter2@host/x", tmp_path, 5.0))


def test_settings_in_a_postgresql_url_are_kept(tmp_path: Path) -> None:
    engine = make_engine("postgresql://u@/d?host=/run/pg&connect_timeout=9&options=-c%20search_path%3Dx&sslmode=require", tmp_path, 5.0)
    arguments, options = engine.dialect.create_connect_args(engine.url)
    assert arguments == [] and {k: options[k] for k in ("host", "connect_timeout", "sslmode")} == {
        "host": "/run/pg",
        "connect_timeout": "9",
        "sslmode": "require",
    }


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).touch(mode=0o644)
    engine = make_engine("sqlite", tmp_path, 5.0)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE x (y)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {FILE: 0o600, f"{FILE}-wal": 0o600, f"{FILE}-shm": 0o600}
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_engine("sqlite", tmp_path / "missing", 5.0)
    assert caught.value.path == "state_dir"


def in_use() -> int:
    """Bytes that SQLite has allocated in this process."""
    library = ctypes.CDLL("libsqlite3.so.0")
    library.sqlite3_memory_used.restype = ctypes.c_int64
    return int(library.sqlite3_memory_used())


def test_a_connection_keeps_few_pages_in_memory(tmp_path: Path) -> None:
    """Each of them would keep two million bytes of what it has read, by SQLite's default: for hours the memory grew with the keys."""
    engine = make_engine("sqlite", tmp_path, 5.0)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE x (y)")
        assert connection.exec_driver_sql("PRAGMA cache_spill").scalar() == SPILL_PAGES, "the commit is not the first time that it writes"
        before = in_use()
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000)"
        connection.exec_driver_sql(f"{numbers} INSERT INTO x SELECT randomblob(1000) FROM n")
        connection.commit()
        assert connection.exec_driver_sql("SELECT count(y) FROM x").scalar() == 4000
        assert in_use() - before < 2 * CACHE_KIB * 1024
    engine.dispose()


def test_calls_one_after_another_share_a_connection(tmp_path: Path) -> None:
    engine = make_engine("sqlite", tmp_path, 5.0)
    with engine.connect() as first, engine.connect() as second:
        known = [each.connection.driver_connection for each in (first, second)]
    used = set()
    for _ in range(4):
        with engine.connect() as connection:
            used.add(connection.connection.driver_connection)
    assert len(used) == 1 and used < set(known)
    engine.dispose()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(make_engine("sqlite", tmp_path, 60.0), 60.0)
    yield made
    await made.aclose()


async def test_the_loop_runs_while_the_database_works(database: Database) -> None:
    held = threading.Event()
    waiting = asyncio.ensure_future(database.run(lambda connection: held.wait(60)))
    await database.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    assert not waiting.done()
    held.set()
    assert await waiting


async def test_calls_under_way_are_bounded(database: Database) -> None:
    held = threading.Event()
    waiting = [asyncio.ensure_future(database.run(lambda connection: held.wait(60))) for _ in range(MAX_PENDING)]
    await asyncio.sleep(0)
    assert database.pending == MAX_PENDING
    with pytest.raises(StoreUnavailable, match="too much"):
        await database.run(lambda connection: None)
    held.set()
    await asyncio.gather(*waiting)
    assert database.pending == 0


async def test_a_call_past_its_deadline_is_broken_off(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEADY", 0.0)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreUnavailable, match="in time"):
        await database.run(lambda connection: connection.exec_driver_sql(endless).scalar(), deadline=0.05)
    await reached(lambda: not database.pending)
    assert not database.available
    assert await database.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar()) == 1
    assert database.available


async def test_a_pause_of_this_process_costs_a_call_none_of_its_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends 35 s late, so the answer that has come meanwhile, or comes now, is taken."""
    loop, held, paused = asyncio.get_running_loop(), threading.Event(), [0.0]
    time_of = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_of() + paused[0])
    call = asyncio.ensure_future(database.run(lambda connection: held.wait(60), deadline=5.0))
    await asyncio.sleep(0)
    paused[0] = 40.0
    for _ in range(3):
        await asyncio.sleep(0)
    assert not call.done()
    held.set()
    assert await call and database.available


@pytest.mark.parametrize(("hosts", "took", "tries"), [("one", 1.9, 1), ("one", 13.0, 2), ("a,b,c", 6.5, 1), ("a,b,c", 13.0, 2)])
def test_a_pause_of_this_process_while_it_connects_costs_no_connection(
    hosts: str, took: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg says then that it took too long."""
    now, tried, made = [1000.0], list[dict[str, Any]](), object()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Dialect:
        def connect(self, **named: Any) -> object:
            tried.append(named)
            if len(tried) == 1:
                now[0] += took
                raise LookupError("connection timeout expired")
            return made

    named = {"host": hosts, "connect_timeout": 2}
    if tries == 1:
        with pytest.raises(LookupError):
            module.connect(Dialect(), None, (), named)  # type: ignore[arg-type]
    else:
        assert module.connect(Dialect(), None, (), named) is made  # type: ignore[arg-type]
    assert tried == [named] * tries


@pytest.mark.parametrize(
    ("given", "left", "seconds"),
    [(None, None, 2), ("60", None, 60), ("60", 4.2, 5), ("60", -1.0, 2), (1, 0.5, 1), ("0", None, 130), ("0", 9.0, 9), ("x", 9.0, 2)],
)
def test_connecting_takes_no_longer_than_its_call_waits(
    given: str | int | None, left: float | None, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_thread", SimpleNamespace() if left is None else SimpleNamespace(ends=1000.0 + left))
    assert module._patience(given, 1000.0) == seconds


async def test_a_transaction_that_failed_across_a_pause_is_done_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the server's statement_timeout is over by the time that it goes on."""
    now, calls = [1000.0], list[float]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep))

    def work(connection: sa.Connection) -> Any:
        calls.append(now[0])
        if len(calls) == 1:
            now[0] += 600.0
            connection.exec_driver_sql("SELECT * FROM missing")
        return connection.exec_driver_sql("SELECT 1").scalar()

    assert await database.run(work) == 1 and calls == [1000.0, 1600.0]


def fail_full(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA max_page_count = 1").close()
    try:
        connection.exec_driver_sql("CREATE TABLE big AS SELECT randomblob(100000) AS x")
    finally:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000").close()


def one(connection: sa.Connection) -> Any:
    return connection.exec_driver_sql("SELECT 1").scalar()


async def test_a_full_disk_is_over_when_something_was_written(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads go on meanwhile, and say nothing about it."""
    caplog.set_level("INFO", "gatehouse.store")
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep))
    await database.run(lambda connection: connection.exec_driver_sql("CREATE TABLE t (x)"), write=True)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await database.run(fail_full, write=True)
        now[0] += 60.0
        assert await database.run(one) == 1 and not database.available
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("the store takes no writes: OperationalError")
    await database.run(lambda connection: connection.exec_driver_sql("INSERT INTO t VALUES (1)"), write=True)
    assert database.available and database.lost is None and caplog.messages[1:] == ["the store answers again"]


async def test_a_store_that_fails_now_and_then_is_not_said_to_come_and_go(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gatehouse.store")
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep))
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await database.run(lambda connection: connection.exec_driver_sql("SELECT * FROM missing"))
        now[0] += STEADY / 2
        assert await database.run(one) == 1 and not database.available
    now[0] += STEADY / 2
    assert await database.run(one) == 1 and database.available
    assert [message.partition(":")[0] for message in caplog.messages] == ["the store does not answer", "the store answers again"]


async def test_work_that_raises_changes_nothing(database: Database) -> None:
    def fail(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE x (y)")
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(fail, write=True)
    assert await database.run(lambda connection: sa.inspect(connection).get_table_names()) == []
    assert database.available


async def test_an_error_names_no_statement_and_no_value(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await database.run(lambda connection: connection.execute(sa.text("INSERT INTO missing VALUES (:secret)"), {"secret": "hunter2"}))
    shown = f"{caught.value} {caught.value.__cause__} {caplog.text}"
    assert "no such table" in shown and "hunter2" not in shown and "INSERT" not in shown


def test_what_the_data_plane_needs_does_not_import_the_database() -> None:
    """SQLAlchemy and Alembic cost a process tens of megabytes."""
    modules = "gateway.identity.stored, gateway.identity.api_key, gateway.core.storage, gateway.pipeline.pipeline, gateway.server.protocol"
    program = f"import sys, {modules}; print([m for m in ('sqlalchemy', 'alembic', 'psycopg', 'gateway.store') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sqlite_does_not_import_postgresqls_driver() -> None:
    program = "import sys, gateway.store.store; print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
