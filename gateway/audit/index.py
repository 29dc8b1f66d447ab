"""The index of an audit log: one row for each request and each event, in a SQLite file beside the state. Everything here blocks.

It holds nothing that the log does not have, so it can be deleted at any time and is made anew. Texts are numbered (`names`), because
they repeat: a row is then some eighty bytes. One process writes (it holds the lock), any number read.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from gateway.audit.entries import COUNTS, NUMBERS, OF_OUTCOMES, Entry
from gateway.audit.event_tenants import EVERY
from gateway.audit.outcome_figures import storable
from gateway.core.audit_questions import TEXTS, AuditSearch, as_glob, is_pattern
from gateway.core.errors import AuditSearchTooLong
from gateway.core.ledger import Position

VERSION: Final = 4
"""The version of the file's format. A file of another version is made anew."""
FILE: Final = "audit-index.sqlite"
SECONDS: Final = 5.0
"""The deadline of one search."""
_STEP: Final = 20_000
"""Instructions of SQLite between two looks at the clock."""
_KNOWN: Final = 200_000
"""Names that are remembered while rows are added."""
_ALIKE: Final = 1000
"""Names that a pattern stands for, up to which they are looked up beforehand."""
_COLUMNS: Final = (*TEXTS, *NUMBERS)
_INDEXED: Final = (
    "tenant",
    "principal",
    "user",
    "model",
    "rule",
    "code",
    "session",
    "agent",
    "event",
    "actor",
    "target",
    "endpoint",
    "peer",
)
CLEAR: Final = frozenset({"tenant", "outcome", "event", "writer"})
"""Texts of an entry that are in the clear where its record is encrypted as a whole."""
BLIND: Final = tuple(name for name in TEXTS if name not in CLEAR)
"""Those for which it has tokens then (gateway.audit.blind_index)."""
_SCHEMA: Final = (
    "CREATE TABLE names (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE places (writer TEXT PRIMARY KEY, segment INTEGER, offset INTEGER, seq INTEGER, head TEXT)",
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, time REAL, request INTEGER, request_id TEXT, segment INTEGER, offset INTEGER,"
    " end_segment INTEGER, end_offset INTEGER," + ",".join(f'"{name}" INTEGER' for name in _COLUMNS) + ")",
    "CREATE INDEX by_time ON entries (time)",
    "CREATE INDEX by_request ON entries (request_id) WHERE request_id <> ''",
    *(f'CREATE INDEX by_{name} ON entries ("{name}", time) WHERE "{name}" <> 0' for name in _INDEXED),
    "CREATE INDEX by_outcome ON entries (outcome, time) WHERE outcome > 1",  # `ok` is 1: most are
    "CREATE INDEX by_sealed ON entries (time) WHERE sealed & 1",
    "CREATE INDEX without_tokens ON entries (sealed) WHERE sealed = 1",
    "CREATE TABLE data_keys (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT, gone INTEGER)",
    "CREATE TABLE blind (at INTEGER PRIMARY KEY, moment REAL, key INTEGER," + ",".join(f"b_{name} INTEGER" for name in BLIND) + ")",
    "CREATE INDEX blind_key ON blind (key, moment)",
    *(f"CREATE INDEX blind_{name} ON blind (b_{name}, moment) WHERE b_{name} <> 0" for name in BLIND if name in _INDEXED),
    "CREATE TRIGGER gone AFTER DELETE ON entries WHEN old.sealed = 2 BEGIN DELETE FROM blind WHERE at = old.id; END",
    "CREATE TRIGGER ended AFTER UPDATE OF end_segment ON entries WHEN old.sealed = 2 BEGIN DELETE FROM blind WHERE at = old.id; END",
    "CREATE TABLE about (tenant INTEGER, entry INTEGER, PRIMARY KEY (tenant, entry)) WITHOUT ROWID",  # the tenants of an event
    "CREATE INDEX about_entry ON about (entry)",
    "INSERT INTO names VALUES (0, ''), (1, 'ok')",
    f"PRAGMA user_version = {VERSION}",
)
_ADD: Final = (
    "INSERT INTO entries (time, request, request_id, segment, offset, end_segment, end_offset,"
    + ",".join(f'"{name}"' for name in _COLUMNS)
    + ") VALUES ("
    + ",".join("?" * (7 + len(_COLUMNS)))
    + ")"
)
_END: Final = (
    "UPDATE entries SET end_segment = ?, end_offset = ?, sealed = min(sealed + ?, 1),"
    + ",".join(f'"{name}" = ?' for name in (*OF_OUTCOMES, *COUNTS))
    + " WHERE id = ?"
)


_OPEN: Final = (
    "SELECT id FROM entries WHERE request_id = ?1 AND request_id <> '' AND writer = ?2 AND end_segment = 0"
    " AND (tenant = ?3 OR ?3 = 0) AND (principal = ?4 OR principal = 0 OR ?4 = 0) ORDER BY id DESC LIMIT 1"
)
"""The intent that an outcome is of (gateway.audit.entries.may_end)."""


class IndexBusy(Exception):
    """Another process writes this index."""


class Index:
    """Writes. Raises sqlite3.Error, OSError; IndexBusy when another process does."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise IndexBusy from None
        try:
            self._db = _opened(path)
        except BaseException:
            os.close(self._lock)
            raise
        self._names: dict[str, int] = {}
        self._next = self._db.execute("SELECT max(id) + 1 FROM names").fetchone()[0]

    @classmethod
    def in_memory(cls) -> Index:
        """One that is gone with the process, and can only be read through `db`."""
        made = cls.__new__(cls)
        made._lock, made._names = -1, {}
        made._db = _made(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        made._db.row_factory = sqlite3.Row
        made._next = made._db.execute("SELECT max(id) + 1 FROM names").fetchone()[0]
        return made

    @property
    def db(self) -> sqlite3.Connection:
        return self._db

    def close(self) -> None:
        self._db.close()
        if self._lock >= 0:
            os.close(self._lock)

    def positions(self) -> dict[str, Position]:
        """How far each writer's log is in the index."""
        return {row[0]: Position(*row) for row in self._db.execute("SELECT writer, segment, offset, seq, head FROM places")}

    def add(self, entries: Sequence[Entry], outcomes: Sequence[Entry], after: Position) -> None:
        """Adds a stretch of one writer's log, up to `after`: all of it or nothing. outcomes: those whose intents came earlier, or never."""
        with self._transaction():
            first = self._db.execute("SELECT coalesce(max(id), 0) + 1 FROM entries").fetchone()[0]
            self._db.executemany(_ADD, [self._row(entry) for entry in entries])
            told = [(self._number(name), id) for id, entry in enumerate(entries, first) for name in entry.tenants]
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", told)
            for outcome in outcomes:
                self._close(outcome)
            self._db.execute(
                "INSERT INTO places VALUES (?, ?, ?, ?, ?) ON CONFLICT (writer) DO UPDATE SET"
                " segment = excluded.segment, offset = excluded.offset, seq = excluded.seq, head = excluded.head",
                (after.writer, after.segment, after.offset, after.seq, after.head),
            )

    def forget(self, writer: str, *, before: int | None = None, since: int | None = None) -> None:
        """Removes what is in segments before this one (they are gone), or since this one (they were changed): None of both: everything."""
        name = self._number(writer)
        with self._transaction():
            bound, number = ("segment < ?", before) if before is not None else ("segment >= ?", since or 0)
            gone = f"SELECT id FROM entries WHERE writer = ? AND {bound}"
            self._db.execute(f"DELETE FROM about WHERE entry IN ({gone})", (name, number))
            self._db.execute(f"DELETE FROM entries WHERE id IN ({gone})", (name, number))
            if before is None:
                self._db.execute("DELETE FROM places WHERE writer = ?", (writer,))

    def settle(self) -> None:
        """Lets the planner know how the rows are spread."""
        self._db.execute("PRAGMA optimize")
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            self._names.clear()
            self._next = self._db.execute("SELECT max(id) + 1 FROM names").fetchone()[0]
            raise
        self._db.execute("COMMIT")

    def _row(self, entry: Entry) -> tuple[Any, ...]:
        known = self._names.get
        texts = [known(text) or self._number(text) if (text := getattr(entry, name)) else 0 for name in TEXTS]
        numbers = [getattr(entry, name) for name in NUMBERS]
        place = (
            entry.time,
            int(not entry.event),
            storable(entry.request_id),
            entry.segment,
            entry.offset,
            entry.end_segment,
            entry.end_offset,
        )
        return (*place, *texts, *numbers)

    def _close(self, outcome: Entry) -> None:
        """Writes an outcome beside its intent; without one it is an entry of its own (a request that nobody could be found for)."""
        found = None
        if not (outcome.early or outcome.peer):
            asked = storable(outcome.request_id), *map(self._number, (outcome.writer, outcome.tenant, outcome.principal))
            found = self._db.execute(_OPEN, asked).fetchone()
        if found is None:
            outcome.end_segment, outcome.end_offset = outcome.segment, outcome.offset
            self._db.execute(_ADD, self._row(outcome))
            return
        values = [self._number(getattr(outcome, name)) for name in OF_OUTCOMES] + [getattr(outcome, name) for name in COUNTS]
        self._db.execute(_END, (outcome.segment, outcome.offset, outcome.sealed, *values, found[0]))

    def _number(self, text: str) -> int:
        if not text:
            return 0
        number = self._names.get(text)
        if number is not None:
            return number
        name = storable(text)
        found = self._db.execute("SELECT id FROM names WHERE text = ?", (name,)).fetchone()
        if found is None:
            number, self._next = self._next, self._next + 1
            self._db.execute("INSERT INTO names VALUES (?, ?)", (number, name))
        else:
            number = int(found[0])
        if len(self._names) >= _KNOWN:
            self._names.clear()
        self._names[text] = number
        return number


def search(path: Path, asked: AuditSearch, seconds: float = SECONDS, *, sealed: bool = False) -> list[dict[str, Any]]:
    """The entries that are wanted, the newest first. sealed: only those that are encrypted as a whole and have no tokens. Raises
    FileNotFoundError without an index, AuditSearchTooLong, sqlite3.Error."""
    with closing(reading(path, seconds)) as db, too_long():
        rows: list[sqlite3.Row] = []
        for source, where, values in conditions_of(db, asked):
            also = " AND sealed & 1" if sealed else ""
            sql = f"SELECT entries.* FROM {source} WHERE {where}{also} ORDER BY time DESC, id DESC LIMIT ?"
            rows += db.execute(sql, (*values, asked.limit)).fetchall()
        rows.sort(key=lambda row: (row["time"], row["id"]), reverse=True)
        return [shown(db, row) for row in rows[: asked.limit]]


def count_sealed(path: Path, asked: AuditSearch, seconds: float = SECONDS) -> int:
    """How many entries that are encrypted as a whole would be wanted. Raises as `search`."""
    with closing(reading(path, seconds)) as db, too_long():
        counts = (
            db.execute(f"SELECT count(*) FROM {source} WHERE {where} AND sealed <> 0", values).fetchone()[0]
            for source, where, values in conditions_of(db, asked)
        )
        return sum(counts)


def tenants_of(path: Path, request_id: str, seconds: float = SECONDS) -> list[str]:
    """The tenants that have requests with this id. Raises as `search`."""
    with closing(reading(path, seconds)) as db, too_long():
        sql = "SELECT DISTINCT text FROM entries JOIN names ON names.id = tenant WHERE request_id = ? AND request_id <> ''"
        return [row[0] for row in db.execute(sql, (storable(request_id),))]


@contextmanager
def too_long() -> Iterator[None]:
    """Raises AuditSearchTooLong for a question that was ended because its time is over."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise AuditSearchTooLong("the search takes too long: narrow it, by since and until for instance") from None
        raise


def reading(path: Path, seconds: float = SECONDS) -> sqlite3.Connection:
    """A connection that can only read, whose questions end after so many seconds. Raises FileNotFoundError."""
    if not path.exists():
        raise FileNotFoundError(path)
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)
    db.row_factory = sqlite3.Row
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > end, _STEP)
    return db


def conditions_of(db: sqlite3.Connection, asked: AuditSearch) -> Iterator[tuple[str, str, list[Any]]]:
    """Where what is asked is looked for: a table, a condition and its values. Of a tenant: its requests, and the events about it, which
    only those see who may see everything."""
    where, values = _conditions(db, asked)
    if where is not None:
        yield "entries", where, values
    if asked.tenant is None or asked.tenants is not None or asked.kind == "request":
        return
    chosen = [names for names in (_names(db, asked.tenant), _names(db, EVERY, exact=True)) if names is not None]
    where, values = _conditions(db, replace(asked, tenant=None))
    if where is not None:
        about = " OR ".join(f"tenant IN ({names})" for names, _ in chosen) or "0"
        tenants = [value for _, found in chosen for value in found]
        source = f"(SELECT DISTINCT entry FROM about WHERE {about}) CROSS JOIN entries ON entries.id = entry"
        yield source, where, [*tenants, *values]


def _conditions(db: sqlite3.Connection, asked: AuditSearch) -> tuple[str | None, list[Any]]:
    """The condition and its values; None when nothing can match."""
    parts: list[str] = []
    values: list[Any] = []
    for name in TEXTS:
        text = getattr(asked, name)
        if text is None:
            continue
        if (names := _names(db, text)) is None:
            return None, []
        parts.append(f'"{name}" = ?' if names[0] == "?" else f'"{name}" IN ({names[0]})')
        parts += [f'"{name}" <> 0'] if name in _INDEXED else []  # the partial index is only taken for what it says
        values += names[1]
    if asked.tenants is not None:
        held = [number for tenant in sorted(asked.tenants) for number in _numbers(db, "text = ?", [storable(tenant)])]
        parts.append(f'"tenant" IN ({",".join("?" * len(held))}) AND "tenant" <> 0')
        values += held
    if asked.request_id is not None:
        parts.append("request_id = ? AND request_id <> ''")
        values.append(asked.request_id)
    if asked.kind is not None:
        parts.append("request = ?")
        values.append(int(asked.kind == "request"))
    for name, sign in (("since", ">="), ("until", "<")):
        if (moment := getattr(asked, name)) is not None:
            parts.append(f"time {sign} ?")
            values.append(moment)
    if asked.before is not None:
        parts.append("(time, id) < (?, ?)")
        values += asked.before
    return " AND ".join(parts) or "1", values


def _names(db: sqlite3.Connection, text: str, *, exact: bool = False) -> tuple[str, list[Any]] | None:
    """What stands in SQL for the numbers of the names that a text stands for, and its values. None when there are none."""
    if exact or not is_pattern(text):
        where, values = "text = ?", [storable(text)]
    elif text.index("*") == len(text) - 1:
        where, values = "text >= ? AND text < ? || char(1114111)", [storable(text[:-1])] * 2
    else:
        where, values = "text GLOB ?", [as_glob(storable(text))]
    numbers = _numbers(db, where, values)
    if len(numbers) > _ALIKE:
        return f"SELECT id FROM names WHERE {where} AND id <> 0", list(values)
    return (",".join("?" * len(numbers)), list(numbers)) if numbers else None


def _numbers(db: sqlite3.Connection, where: str, values: list[str]) -> list[int]:
    """The numbers of the names to which a condition applies, _ALIKE + 1 at most."""
    return [row[0] for row in db.execute(f"SELECT id FROM names WHERE {where} AND id <> 0 LIMIT ?", (*values, _ALIKE + 1))]


def shown(db: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
    """A row with its texts; what is empty is left out."""
    found: dict[str, Any] = {"id": row["id"], "time": row["time"], "kind": "request" if row["request"] else "event"}
    if row["request_id"]:
        found["request_id"] = row["request_id"]
    for name in TEXTS:
        if row[name]:
            found[name] = db.execute("SELECT text FROM names WHERE id = ?", (row[name],)).fetchone()[0]
    if not row["request"]:
        told = db.execute("SELECT text FROM about JOIN names ON names.id = about.tenant WHERE entry = ? ORDER BY text", (row["id"],))
        found |= {"tenants": names} if (names := [one[0] for one in told]) else {}
    found |= {name: row[name] for name in NUMBERS if row[name]}
    found["place"] = [[row["segment"], row["offset"]]] if row["segment"] else []
    if row["end_segment"]:
        found["place"].append([row["end_segment"], row["end_offset"]])
    return found


def _opened(path: Path) -> sqlite3.Connection:
    """The file, made anew where it cannot be used."""
    try:
        db = _connect(path)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            db.execute("SELECT count(*) FROM places").fetchone()
            return db
        db.close()
    except sqlite3.DatabaseError:
        pass
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _made(_connect(path))


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("BEGIN")
    for statement in _SCHEMA:
        db.execute(statement)
    db.execute("COMMIT")
    return db


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "cache_size = -65536", "temp_store = MEMORY"):
        db.execute(f"PRAGMA {pragma}")
    return db
