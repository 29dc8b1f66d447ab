"""Answers on this machine's disk, which outlive the process and are shared by its workers: one SQLite file in write-ahead mode.

SQLite because it is what a bounded, crash-safe index over several processes takes: a process that is killed leaves a transaction whole or
not at all, and what a power loss damages does not open (gateway.caches.sealing). Nothing is synced for each answer. One thread reads and
one writes; neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.caches.behind import CacheUnavailable, Held, Stored
from gateway.caches.memory import OVERHEAD, Eviction
from gateway.caches.place import Place, purged_marks
from gateway.core.clock import Entropy

log = logging.getLogger("gatehouse.caches")
T = TypeVar("T")
FILE: Final = "answers.sqlite3"
DAMAGED: Final = "-damaged"
"""Ends the name of an empty file beside it: it is to be made anew at the next start."""
MOST_VALUE: Final = 64 * 1024 * 1024
"""Bytes of a row: none that was kept here has as many, and no file can make the process take more."""
SLICE: Final = 500
"""Answers that one transaction of a purge forgets: others may write in between."""
BUSY_SECONDS: Final = 2.0
"""How long a write waits for another process's write."""
MOST_TOUCHED: Final = 10_000
"""Answers whose uses are noted before they are written."""
LOOK_SECONDS: Final = 1.0
"""Between two looks whether the file is still the one that was opened."""
PURGE_SECONDS: Final = 30.0
"""How long a purge waits for one of its transactions, and for those before it."""
_PAGE: Final = 4096
LEAST_FREE: Final = 32 * 1024 * 1024
MOST_FREE: Final = 1024 * 1024 * 1024
"""Bytes of the file system that are left to others: a tenth of it, within these. The audit log, without which no request is served, is
often on the same one."""
MOST_EVICTED: Final = 256
"""Answers that go for one that is kept."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB NOT NULL UNIQUE, model TEXT NOT NULL, tenant TEXT NOT NULL, expires INTEGER NOT NULL, rank INTEGER NOT NULL,
    size INTEGER NOT NULL, value BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS answers_of_tenants ON answers (tenant, model);
CREATE INDEX IF NOT EXISTS answers_of_models ON answers (model);
CREATE INDEX IF NOT EXISTS answers_by_rank ON answers (rank);
CREATE INDEX IF NOT EXISTS answers_by_end ON answers (expires);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, mark BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums (one INTEGER PRIMARY KEY CHECK (one = 1), entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO sums VALUES (1, 0, 0);
CREATE TABLE IF NOT EXISTS heard (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class DiskAnswers:
    """Implements gateway.caches.behind.Backend. directory: ours alone (0700). policy, entries, most: of all that it keeps. Life: `open`,
    `aclose`."""

    def __init__(self, directory: Path, policy: Eviction, entries: int, most: int, entropy: Entropy) -> None:
        self._path, self._policy, self._entries, self._most, self._entropy = directory / FILE, policy, entries, most, entropy
        self._damaged = self._path.with_name(FILE + DAMAGED)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="gatehouse-answers-read")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="gatehouse-answers-write")
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._touched: Counter[bytes] = Counter()
        self._file: tuple[int, int] = (0, 0)
        self._looked = 0.0
        self._was_short = False
        self.why = "it has not been opened"
        """Why nothing is kept; "" while it is."""

    # --- life

    async def open(self, *, mend: bool) -> None:
        """mend: makes it anew where the file is damaged; for the first process alone, as others may have it open. Whatever is wrong is
        logged, and nothing is kept."""
        self.why = await self._loop.run_in_executor(self._writing, self._open, mend)
        if not self.why:
            self.why = await self._loop.run_in_executor(self._reading, self._open_reader)
        if self.why:
            log.error("answers cannot be kept on disk: %s", self.why)

    async def aclose(self) -> None:
        self.why = self.why or "the process ends"
        await asyncio.gather(
            self._loop.run_in_executor(self._reading, self._close, self._reader),
            self._loop.run_in_executor(self._writing, self._close, self._writer),
        )
        self._reading.shutdown(wait=False)
        self._writing.shutdown(wait=False)

    @staticmethod
    def _close(connection: sqlite3.Connection | None) -> None:
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as error:
                log.debug("the answers on disk could not be closed: %s", error)

    def _open(self, mend: bool) -> str:
        if why := _prepared(self._path):
            return why
        try:
            if mend and self._damaged.exists():
                self._thrown_away("it was found before the last end")
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as error:
            return str(error)
        try:
            self._writer = self._connection()
        except sqlite3.DatabaseError as error:
            if not mend or isinstance(error, sqlite3.OperationalError):
                return str(error)
            try:
                self._thrown_away(str(error))
                self._writer = self._connection()
            except (sqlite3.Error, OSError) as again:
                return str(again)
        found = os.stat(self._path)
        self._file = (found.st_dev, found.st_ino)
        return ""

    def _thrown_away(self, why: str) -> None:
        log.warning("the cached answers on disk are damaged (%s) and are deleted", why)
        for path in _files(self._path):
            path.unlink(missing_ok=True)

    def _open_reader(self) -> str:
        try:
            self._reader = self._connection()
        except sqlite3.Error as error:
            return str(error)
        return ""

    def _connection(self) -> sqlite3.Connection:
        made = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=32)
        made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
        try:
            made.execute("PRAGMA auto_vacuum = INCREMENTAL")
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = NORMAL")
            made.execute("PRAGMA trusted_schema = OFF")
            made.execute("PRAGMA cell_size_check = ON")
            made.execute("PRAGMA journal_size_limit = 16777216")
            made.execute(f"PRAGMA max_page_count = {self._most * 3 // 2 // _PAGE + 1024}")
            made.executescript(_SCHEMA)
            made.execute("SELECT * FROM sums").fetchone()
        except BaseException:
            made.close()
            raise
        return made

    def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], T], done: Callable[[T | str], None]) -> None:
        """The result of `work` on the loop, or what went wrong."""

        def ended(future: Future[T]) -> None:
            error = future.exception()
            result: T | str = future.result() if error is None else str(error) or type(error).__name__
            self._judge(error)
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:
                log.debug("the loop has ended before an answer on disk was found")

        try:
            pool.submit(work).add_done_callback(ended)
        except RuntimeError:
            done("the process ends")

    def _judge(self, error: BaseException | None) -> None:
        """In the thread that found it: a file that cannot be what was written is used no more, and made anew at the next start."""
        damage = isinstance(error, (sqlite3.DatabaseError, TypeError)) and not isinstance(error, sqlite3.OperationalError)
        if not damage or self.why:
            return
        try:
            os.close(os.open(self._damaged, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as failed:
            log.warning("that the answers on disk are damaged cannot be noted beside them: %s", failed)
        self._broken(f"the file is damaged ({error}), and is made anew then")

    def shut(self, why: str) -> None:
        """Nothing is found or kept any more until the next start."""
        self._broken(why)

    def _broken(self, why: str) -> None:
        if not self.why:
            self.why = why
            log.error("answers are no longer kept on disk until the next start: %s", why)

    # --- Backend

    def ready(self) -> bool:
        return not self.why

    def find(self, place: Place, done: Callable[[tuple[bytes, bytes | None] | str], None]) -> None:
        self._in_thread(self._reading, lambda: self._find(place), done)

    def _find(self, place: Place) -> tuple[bytes, bytes | None]:
        self._same()
        connection = self._reader
        assert connection is not None
        marks = self._marks(connection, place)
        row = connection.execute("SELECT value FROM answers WHERE key = ?", (place.key,)).fetchone()
        if row is None:
            return marks, None
        if self._policy != "fifo":
            self._touched[place.key] += 1
            if len(self._touched) == MOST_TOUCHED:
                self._writing.submit(self._write_touched)
        return marks, _bytes(row[0])

    def _marks(self, connection: sqlite3.Connection, place: Place) -> bytes:
        names = place.marks()
        question = "SELECT name, mark FROM marks WHERE name IN (?, ?, ?, ?, ?)"
        found = dict(connection.execute(question, names).fetchall())
        if len(found) < len(names):
            rows = [(name, self._entropy.bytes(8)) for name in names if name not in found]
            try:
                connection.executemany("INSERT OR IGNORE INTO marks VALUES (?, ?)", rows)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    return b""  # there are no answers for this place, and none can be kept now
                raise
            found = dict(connection.execute(question, names).fetchall())
        return b"".join([_bytes(found[name]) for name in names])

    def _same(self) -> None:
        """Somebody who takes the file away separates those who have it open from each other and from purges."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            found = os.stat(self._path, follow_symlinks=False)
            same = (found.st_dev, found.st_ino) == self._file
        except OSError:
            same = False
        if not same:
            self._broken("the file was taken away or replaced")
            raise OSError("the file was taken away or replaced")

    def store(self, place: Place, sealed: bytes, marks: bytes, ttl: float, done: Callable[[Stored | str], None]) -> None:
        expires = int((time.time() + ttl) * 1000)
        self._in_thread(self._writing, lambda: self._store(place, sealed, marks, expires), done)

    def _store(self, place: Place, sealed: bytes, marks: bytes, expires: int) -> Stored:
        self._same()
        connection, size, now = self._writer, len(sealed) + OVERHEAD, int(time.time() * 1000)
        assert connection is not None
        if size > self._most:
            return Stored(False)
        short = self._short(connection)
        with _transaction(connection):
            if self._marks(connection, place) != marks:
                return Stored(False)
            self._touch(connection)
            _forget(connection, "key = ?", (place.key,), 1)
            _forget(connection, "expires <= ?", (now,), 16)
            evicted = 0
            while True:
                entries, held = connection.execute("SELECT entries, bytes FROM sums").fetchone()
                fits = entries < self._entries and held + size <= self._most
                if fits and not (short and _unused(connection) < size):
                    break
                gone = _forget(connection, "rank <= (SELECT min(rank) FROM answers)", (), 1)
                if not gone:
                    connection.execute("UPDATE sums SET entries = 0, bytes = 0")
                evicted += gone
                if short and (not gone or evicted >= MOST_EVICTED):
                    return Stored(False, evicted)
            row = (place.key, place.model, place.tenant, expires, 1 if self._policy == "lfu" else _moment(), size, sealed)
            connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("UPDATE sums SET entries = entries + 1, bytes = bytes + ?", (size,))
        return Stored(True, evicted)

    def _short(self, connection: sqlite3.Connection) -> bool:
        """Whether the file may not grow, as others need the rest of the disk: then older answers go for newer ones."""
        found = os.statvfs(self._path.parent)
        left = min(MOST_FREE, max(LEAST_FREE, found.f_blocks * found.f_frsize // 10))
        short = found.f_bavail * found.f_frsize < left
        if short and not self._was_short:
            log.warning("the disk is nearly full: the file with answers grows no further, and older answers go for newer ones")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # while there is room for what is in it
        self._was_short = short
        return short

    def _write_touched(self) -> None:
        connection = self._writer
        if connection is not None and not self.why:
            with _transaction(connection):
                self._touch(connection)

    def _touch(self, connection: sqlite3.Connection) -> None:
        """Notes what was used since the last write."""
        if self._touched:
            found, self._touched = self._touched, Counter()
            now = _moment()
            touched = list(found.items())  # at once: the thread that reads may still be counting in it
            if self._policy == "lfu":
                connection.executemany("UPDATE answers SET rank = rank + ? WHERE key = ?", [(uses, key) for key, uses in touched])
            else:
                connection.executemany("UPDATE answers SET rank = ? WHERE key = ?", [(now, key) for key, _ in touched])

    async def purge(self, model: str | None, tenant: str | None, key: bytes | None, *, dry_run: bool) -> int:
        where, values = _matching(model, tenant, key)
        if dry_run:
            question = f"SELECT count(*) FROM answers WHERE {where}"
            return int((await self._write(lambda connection: connection.execute(question, values).fetchone()))[0])
        fresh = self._entropy.bytes(8)

        def mark(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                rows = [(name, fresh) for name in purged_marks(model, tenant, key)]
                connection.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?)", rows)

        def forget(connection: sqlite3.Connection) -> int:
            for most in (SLICE, SLICE // 16):
                try:
                    with _transaction(connection):
                        return _forget(connection, where, values, most)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                        raise
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # what it holds is then free for the next one
            with _transaction(connection):
                return _forget(connection, where, values, 1)

        await self._write(mark)
        count = 0
        while gone := await self._write(forget):
            count += gone
        await self._write(lambda connection: connection.execute("PRAGMA incremental_vacuum(4096)").fetchall())
        return count

    async def held(self) -> Held:
        entries, size = await self._write(lambda connection: connection.execute("SELECT entries, bytes FROM sums").fetchone())
        return Held(entries, size)

    # --- purges that others have made

    async def unheard(self, names: list[str]) -> list[str]:
        """Which of these purges this disk has not seen. Raises CacheUnavailable."""

        def look(connection: sqlite3.Connection) -> list[str]:
            known = {name for (name,) in connection.execute("SELECT name FROM heard")}
            return [name for name in names if name not in known]

        return await self._write(look)

    async def note(self, names: list[str]) -> None:
        """These purges, and no others, are those that this disk has seen. Raises CacheUnavailable."""

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute("DELETE FROM heard")
                connection.executemany("INSERT OR IGNORE INTO heard VALUES (?)", [(name,) for name in names])

        await self._write(write)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs in the thread that writes. Raises CacheUnavailable."""
        connection = self._writer
        if self.why or connection is None:
            raise CacheUnavailable(self.why)
        found: T
        try:
            async with asyncio.timeout(PURGE_SECONDS):
                found = await self._loop.run_in_executor(self._writing, self._judged, work, connection)
        except (sqlite3.Error, OSError, TimeoutError, RuntimeError, TypeError) as error:
            raise CacheUnavailable(str(error) or "it does not answer in time") from None
        return found

    def _judged(self, work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        try:
            return work(connection)
        except (sqlite3.DatabaseError, TypeError) as error:
            self._judge(error)
            raise


class _transaction:
    """BEGIN IMMEDIATE to COMMIT, or ROLLBACK."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._connection.execute("COMMIT" if error is None else "ROLLBACK")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if error is None:
                raise


def _moment() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def _matching(model: str | None, tenant: str | None, key: bytes | None) -> tuple[str, tuple[Any, ...]]:
    given = [(name, value) for name, value in (("model", model), ("tenant", tenant), ("key", key)) if value is not None]
    return " AND ".join(f"{name} = ?" for name, _ in given) or "1", tuple(value for _, value in given)


def _forget(connection: sqlite3.Connection, where: str, values: tuple[Any, ...], most: int) -> int:
    """Forgets up to `most` answers; how many."""
    gone = connection.execute(f"SELECT rowid, size FROM answers WHERE {where} LIMIT {most}", values).fetchall()
    if gone:
        connection.executemany("DELETE FROM answers WHERE rowid = ?", [(row,) for row, _ in gone])
        connection.execute("UPDATE sums SET entries = entries - ?, bytes = bytes - ?", (len(gone), sum(size for _, size in gone)))
    return len(gone)


def _bytes(found: Any) -> bytes:
    """A value of the file, which SQLite gives with the type that it was written with. Raises TypeError."""
    if type(found) is not bytes:
        raise TypeError(f"a value is of type {type(found).__name__}")
    return found


def _unused(connection: sqlite3.Connection) -> int:
    """Bytes of the file's free pages."""
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0]) * _PAGE


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", DAMAGED)]


def _prepared(path: Path) -> str:
    """Makes the directory; what is wrong with it or the files, or ""."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(path.parent)
        if not stat.S_ISDIR(found.st_mode):
            return f"{path.parent} is no directory, or a link"
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return f"{path.parent} must belong to the gateway's user and be writable for no one else (chmod 700)"
        if found.st_mode & 0o077:
            os.chmod(path.parent, 0o700)
        for each in _files(path):
            if each.is_symlink() or (each.exists() and not each.is_file()):
                return f"{each} must be a file, and is a link or something else"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return str(error)
    return ""
