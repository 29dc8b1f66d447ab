"""SQLite and PostgreSQL alike: transactions in a few threads, each with a deadline that also frees its thread.

The event loop never waits for a database. A call past its deadline fails with StoreUnavailable, and whatever blocks its thread is broken
off: SQLite is interrupted, PostgreSQL's socket is shut down (a frozen server does not answer a cancel request).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from gateway.core.deadlines import within
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.pauses import slept
from gateway.core.plugins import StoreContext, StoreRow, Table, built
from gateway.store.postgres_hints import CONNECT_ARGUMENTS
from gateway.store.postgres_url import url_of

T = TypeVar("T")
log = logging.getLogger("gatehouse.store")

FILE = "gatehouse.db"
THREADS = 4
MAX_PENDING = 512
"""Calls that may be under way or waiting for a thread; more are refused at once."""
BUSY_SHARE = 0.8
"""The share of a call's deadline for which SQLite waits for another process's write."""
CONNECT_TIMEOUT = 2
UNBOUNDED: Final = 130
"""What psycopg makes of a `connect_timeout` of 0, in seconds."""
GIVE_WAY: Final = 0.1
"""Seconds that the other one of two transactions that waited for each other has to end."""
STEADY: Final = 1.0
"""Seconds without a failed call after which the store counts as back: one that fails now and then is not said to come and go each time."""
FRESH: Final = 2.0
"""Seconds after which a session that may only read is given up for a new one. A younger one shows that the server takes no writes."""
READ_ONLY: Final = "25006"
DISK_FULL: Final = "53100"
WRITING = "gatehouse_write"
BORN: Final = "gatehouse_born"
CACHE_KIB: Final = 256
"""Most memory for the pages of each connection to SQLite between transactions. Its default of 2,000 KiB fills for hours while keys come and
go: 0.7 KiB a key. A page that is not there comes from the kernel's cache in some microseconds."""
SPILL_PAGES: Final = 500
"""Pages (2 MiB) that one transaction may change before it writes some of them ahead of its commit. SQLite also takes this number's lowest
eight bits as a switch: with 512 it never would."""
STATEMENTS: Final = 32
"""Prepared statements that each connection to SQLite keeps, of some 10 KiB each: what runs all the time needs fewer."""


def make_engine(url: str, state_dir: Path, statement_timeout: float, stores: Table[StoreRow] | None = None) -> sa.Engine:
    """An SQLAlchemy engine for a URL, by its scheme. Does not connect yet. Raises ConfigError."""
    stores = STORES if stores is None else stores
    scheme = url.partition(":")[0].partition("+")[0]
    scheme = "postgresql" if scheme == "postgres" else scheme
    if scheme not in stores:
        known = " or ".join("'sqlite'" if row.name == "sqlite" else f"{row.name}://..." for row in stores)
        raise ConfigError(f"a store is {known}", path="store.url")
    row = stores[scheme]
    try:
        engine: sa.Engine = built(
            row.build, row.settings, {}, StoreContext(name=scheme, url=url, state_dir=state_dir, timeout=statement_timeout)
        )
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path or "store.url") from None
    return engine


def _sqlite_engine(settings: Any, context: StoreContext) -> sa.Engine:
    """A file in the state directory, 0600."""
    if context.url != "sqlite":
        raise ConfigError("a store is 'sqlite' or postgresql://...")
    return _sqlite(context.state_dir / FILE, context.timeout * BUSY_SHARE)


def _postgresql_engine(settings: Any, context: StoreContext) -> sa.Engine:
    try:
        parsed = url_of(context.url)
        if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ConfigError("a store is 'sqlite' or postgresql://...")
        return _postgresql(parsed.set(drivername="postgresql+psycopg"), context.timeout)
    except (exc.ArgumentError, ValueError):
        raise ConfigError("the store's URL cannot be read") from None
    except ModuleNotFoundError:
        raise ConfigError("PostgreSQL needs the package psycopg: install requirements/server.txt, which pins it") from None


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _sqlite(path: Path, busy_timeout: float) -> sa.Engine:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"the store {path} cannot be written: {error.strerror}", path="state_dir") from None
    engine = sa.create_engine(
        sa.URL.create("sqlite+pysqlite", database=str(path)),
        connect_args={"timeout": busy_timeout, "check_same_thread": False, "cached_statements": STATEMENTS},
        pool_size=THREADS + 1,
        max_overflow=0,
        pool_use_lifo=True,  # each has its own pages and statements in memory (200 to 400 KiB): as few as will do are used
        json_serializer=_dumps,
    )

    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # no implicit transactions: `begun` says when and how one begins
        bounds = f"cache_size=-{CACHE_KIB}", f"cache_spill={SPILL_PAGES}"
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF", *bounds):
            connection.execute(f"PRAGMA {pragma}").close()
        _write_ahead(connection, busy_timeout)

    def begun(connection: sa.Connection) -> None:
        # A write takes its lock first. Otherwise a transaction that reads before it writes fails at once if another one has written since.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITING) else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def _write_ahead(connection: Any, seconds: float) -> None:
    """If several processes open a new file, one turns the log on. SQLite does not make the others wait for that, so they retry."""
    end = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _postgresql(url: sa.URL, statement_timeout: float) -> sa.Engine:
    milliseconds = int(statement_timeout * 1000)
    settings = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} -c idle_in_transaction_session_timeout={milliseconds}"
    given = dict(url.query)
    if "password" in given:
        raise ConfigError("write the password before the '@' of the URL: there it is masked wherever the URL is shown", path="store.url")
    connect_args: dict[str, Any] = {"options": f"{given.pop('options', '')} {settings}".strip()}
    for name, value in {
        "application_name": "gatehouse",
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": milliseconds,
    }.items():
        if name not in given:
            connect_args[name] = value
    engine = sa.create_engine(
        url.set(query=given),
        connect_args=connect_args,
        pool_size=THREADS,
        max_overflow=0,
        pool_recycle=1800,
        json_serializer=_dumps,
        execution_options={CONNECT_ARGUMENTS: connect_args},
    )
    event.listen(engine, "do_connect", connect)
    event.listen(engine, "connect", _born)
    event.listen(engine, "handle_error", _demoted)
    return engine


def _born(connection: Any, record: Any) -> None:
    record.info[BORN] = time.monotonic()


def _demoted(context: sa.engine.ExceptionContext) -> None:
    """After a failover that cut no connections, the pool's sessions are at a server that only reads, and would stay there until they are
    recycled. They are given up together, and the work is done again on a new one."""
    if getattr(context.original_exception, "sqlstate", None) != READ_ONLY or context.connection is None:
        return
    if time.monotonic() - context.connection.info.get(BORN, 0.0) > FRESH:
        context.is_disconnect = True


def connect(dialect: sa.Dialect, record: Any, arguments: Any, named: dict[str, Any]) -> Any:
    """A connection of the driver's, which tries for `connect_timeout` seconds at each host, and not longer than its call waits. Where this
    process stood still meanwhile, it tries once more. Raises as the driver does."""
    begun = time.monotonic()
    seconds = _patience(named.get("connect_timeout"), begun)
    try:
        return dialect.connect(*arguments, **{**named, "connect_timeout": seconds})
    except Exception:  # boundary: the driver's; it is raised again, or the driver is asked again
        now = time.monotonic()
        if not slept(begun, seconds * len(str(named.get("host")).split(",")), now):
            raise
    return dialect.connect(*arguments, **{**named, "connect_timeout": _patience(named.get("connect_timeout"), now)})


def _patience(given: Any, now: float) -> int:
    """Seconds to wait for each host. The deadline of the call bounds it, because a connection that is not open yet cannot be broken off:
    a frozen server would hold the thread for as long as the URL's `connect_timeout` says."""
    seconds = (int(given) or UNBOUNDED) if str(given).isdecimal() else CONNECT_TIMEOUT
    ends = getattr(_thread, "ends", None)
    return seconds if ends is None else min(seconds, max(CONNECT_TIMEOUT, math.ceil(ends - now)))


_thread = threading.local()
"""`ends`: when the call that this thread works on stops waiting, by the monotonic clock."""


class Job:
    """One transaction and how to break it off. Thread-safe.

    ends: when its caller stops waiting, by the monotonic clock.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self._lock = threading.Lock()
        self._abort: Callable[[], None] | None = None
        self._own: socket.socket | None = None
        self.abandoned = False

    def attach(self, driver: Any) -> None:
        """The driver's connection that the job works on. The socket is duplicated, so that its number cannot mean another one later."""
        with self._lock:
            if self.abandoned:
                raise StoreUnavailable(LATE)
            if hasattr(driver, "interrupt"):
                self._abort = driver.interrupt
            else:
                self._own = socket.socket(fileno=os.dup(driver.fileno()))
                self._abort = self._shutdown

    def _shutdown(self) -> None:
        if self._own is not None:
            try:
                self._own.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed

    def detach(self) -> None:
        with self._lock:
            self._abort = None
            if self._own is not None:
                self._own.close()
                self._own = None

    def abandon(self) -> None:
        """The caller has stopped waiting."""
        with self._lock:
            self.abandoned = True
            if self._abort is not None:
                self._abort()


LATE = "The store did not answer in time."


class Database:
    """Runs functions of a connection as transactions. `available`: whether the last one reached the database; `lost`: since when not, in
    seconds since the epoch, or None."""

    def __init__(self, engine: sa.Engine, deadline: float) -> None:
        self.engine, self.deadline = engine, deadline
        self.available = True
        self.lost: float | None = None
        self._failed = 0.0
        self._unwritten = False
        self._readers = self._writers = ThreadPoolExecutor(THREADS, thread_name_prefix="gatehouse-store")
        if engine.dialect.name == "sqlite":
            # SQLite has one writer at a time anyway. Waiting in our queue costs no sleeping and retrying, and takes no thread from readers.
            self._writers = ThreadPoolExecutor(1, thread_name_prefix="gatehouse-store-write")
        self._jobs: set[Job] = set()
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls under way."""
        return len(self._jobs)

    async def run(
        self,
        work: Callable[[sa.Connection], T],
        *,
        write: bool = False,
        committed: Callable[[T], None] | None = None,
        deadline: float | None = None,
    ) -> T:
        """Runs `work` in a transaction and returns its result after the commit. Raises StoreUnavailable, and what `work` raises; then
        nothing has changed.

        committed: called on the loop after the commit, even if the caller no longer waits.
        """
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        if len(self._jobs) >= MAX_PENDING:
            raise StoreUnavailable("The store has too much to do.", retry_after=1.0)
        seconds = deadline or self.deadline
        job = Job(time.monotonic() + seconds)
        self._jobs.add(job)
        threads = self._writers if write else self._readers
        future = asyncio.get_running_loop().run_in_executor(threads, self._transaction, work, write, job)

        def ended(done: asyncio.Future[T]) -> None:
            self._jobs.discard(job)
            if not done.cancelled() and done.exception() is None and committed is not None:
                committed(done.result())

        future.add_done_callback(ended)
        try:
            async with within(seconds):
                await asyncio.wait((future,))
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            job.abandon()
            raise
        if not future.done():
            job.abandon()
            self._failing(LATE)
            raise StoreUnavailable(LATE, retry_after=1.0)
        if future.cancelled():
            raise StoreUnavailable("The store is closed.")
        try:
            result = future.result()
        except StoreUnavailable as error:
            self._failing(str(error.__cause__ or error), isinstance(error.__cause__, _NoWrites))
            raise
        self._working(write)
        return result

    async def run_in_portions(self, work: Callable[[sa.Connection], int], enough: int = 1) -> int:
        """Runs `work`, which deletes a bounded number of rows and says how many, until there were fewer than `enough`: each time in a
        transaction of its own, so that other writes come in between, and what is done stays done. Returns how many in all. Raises
        StoreUnavailable."""
        total = count = await self.run(work, write=True)
        while count >= enough:
            count = await self.run(work, write=True)
            total += count
        return total

    def _failing(self, why: str, only_writes: bool = False) -> None:
        """only_writes: it may read all the same, and is back only when it has written."""
        self._failed = time.monotonic()
        self._unwritten = self._unwritten or only_writes
        if self.available:
            self.available, self.lost = False, time.time()
            log.error("the store %s: %s", "takes no writes" if only_writes else "does not answer", why)

    def _working(self, write: bool) -> None:
        if self.available:
            return
        if write:
            self._unwritten = False
        if not self._unwritten and time.monotonic() - self._failed >= STEADY:
            self.available, self.lost = True, None
            log.info("the store answers again")

    def _transaction(self, work: Callable[[sa.Connection], T], write: bool, job: Job) -> T:
        """Runs in a thread. The first use of a pooled connection may show that it was lost; the work is then done again on a new one. So it
        is where the server has broken it off for the sake of another transaction.

        That is safe only before the commit: a server that loses a connection rolls its open transaction back.
        """
        for last in (False, False, True):
            begun = time.monotonic()
            try:
                with self._connection(write, job) as connection:
                    with connection.begin() as transaction:
                        result = work(connection)
                        last = True
                        transaction.commit()
                    return result
            except (exc.IntegrityError, exc.DataError):
                raise
            except (exc.DBAPIError, exc.TimeoutError) as error:
                stood = slept(begun, self.deadline, time.monotonic())  # and the server's own clock went on, too
                if last or not (stood or getattr(error, "connection_invalidated", False) or _given_way(error)):
                    raise StoreUnavailable("The store is not available.", retry_after=1.0) from _bare(error)
                if _given_way(error):
                    time.sleep(GIVE_WAY)  # in a thread of the store's: at once it would take what the other one waits for
        raise AssertionError("unreachable")

    @contextmanager
    def _connection(self, write: bool, job: Job) -> Iterator[sa.Connection]:
        if job.abandoned:
            raise StoreUnavailable(LATE)
        _thread.ends = job.ends
        with self.engine.connect() as connection:
            job.attach(connection.connection.driver_connection)
            try:
                yield connection.execution_options(**{WRITING: write})
            finally:
                job.detach()

    async def aclose(self) -> None:
        """Breaks off the calls under way and closes every connection."""
        for job in tuple(self._jobs):
            job.abandon()
        self._closed = True
        for threads in (self._readers, self._writers):
            threads.shutdown(wait=False, cancel_futures=True)
        while self._jobs:
            await asyncio.sleep(0.005)
        self.engine.dispose()


def _given_way(error: Exception) -> bool:
    """Whether PostgreSQL has rolled the transaction back because of another one: a deadlock, or what cannot be serialised."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in ("40P01", "40001")


class _NoWrites(RuntimeError):
    """The server is there, and takes no writes: it is a standby by now, or its disk is full."""


def _bare(error: Exception) -> Exception:
    """The driver's error without the statement and its parameters, which do not belong in a log."""
    original = getattr(error, "orig", None)
    if original is None:
        return RuntimeError(type(error).__name__)
    lines = str(original).strip().splitlines()
    full = getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    kind = _NoWrites if full or getattr(original, "sqlstate", None) in (READ_ONLY, DISK_FULL) else RuntimeError
    return kind(f"{type(original).__name__}: {lines[0] if lines else ''}")


STORES: Final = Table(StoreRow, (StoreRow(name="sqlite", build=_sqlite_engine), StoreRow(name="postgresql", build=_postgresql_engine)))
"""The databases that can hold the store. To add one: a row here, one in tests/contract/store/conftest.py, a heading in docs/store.md."""
