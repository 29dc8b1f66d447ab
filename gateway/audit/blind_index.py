"""The index of records that are encrypted as a whole: keyed tokens in place of their texts, so that searches need not open them all.

A token is 63 bits of HMAC-SHA256, under a key derived from the data key that the record was encrypted with, of the field's name and its
text. Whoever has the index without the keys sees which records of a tenant have the same text in a field, and no text. Tokens of a key that
was destroyed are erased. An entry has tokens when both of its lines could be opened with one key (`sealed` is 2); any other that is
encrypted is opened by each search (1, and 3 where that was tried).

A thread of the gateway that has the keys writes them, beside the process that keeps the index, which has none. Everything here blocks.
"""

from __future__ import annotations

import hmac
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from gateway.audit.entries import completed
from gateway.audit.index import BLIND, VERSION, conditions_of, reading, shown, too_long
from gateway.audit.keyring import SYSTEM, DataKey
from gateway.audit.lines import LinesAt
from gateway.audit.opening import SHREDDED, Opener
from gateway.audit.outcome_figures import storable
from gateway.core.audit_questions import AuditSearch, is_pattern
from gateway.core.errors import AuditSearchTooLong, Shredded

BATCH: Final = 512
"""Entries of one transaction."""
TURN: Final = 32
"""Entries between which other threads get their turn."""
KEYS: Final = 512
"""Data keys that one search tries."""
BUSY_SECONDS: Final = 5.0
"""How long a write waits for that of the other process."""
_PAGE: Final = "SELECT * FROM entries WHERE sealed = 1 AND (end_segment <> 0 OR request = 0) ORDER BY id LIMIT ?"
_COLUMNS: Final = ",".join(f"b_{name}" for name in BLIND)
_ADD: Final = f"INSERT OR REPLACE INTO blind (at, moment, key, {_COLUMNS}) VALUES (?, ?, ?, {','.join('?' * len(BLIND))})"
_SEALED: Final = b',"sealed":'


class KnownKey(NamedTuple):
    """A data key that the index has entries of. gone: it was destroyed."""

    number: int
    name: str
    tenant: str
    gone: bool


def token(key: bytes, name: str, text: str) -> int:
    """The token of a field's text; never 0."""
    return int.from_bytes(hmac.digest(key, f"{name}\0{storable(text)}".encode(), "sha256")[:8], "big") >> 1 or 1


class Blinder:
    """Gives tokens to what the index has of encrypted records. For any thread, one at a time."""

    def __init__(self, path: Path, directory: Path, opener: Opener) -> None:
        self._path, self._directory, self._opener = path, directory, opener
        self._turn = threading.Lock()
        self._looked = -1
        self._numbers: dict[str, int] = {}

    def update(self, seconds: float) -> bool:
        """Goes on for so long at most; whether nothing is left. Raises sqlite3.Error, OSError; GatehouseError where keys cannot be had."""
        if self._opener.fetch is None or not self._path.exists():
            return True
        end = time.monotonic() + seconds
        with self._turn, closing(self._writing()) as db:
            db.row_factory = sqlite3.Row
            self._numbers.clear()  # the index may be another by now
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                return True  # the process that keeps it makes it anew
            self._forget_destroyed(db)
            while rows := db.execute(_PAGE, (BATCH,)).fetchall():
                self._add(db, rows)
                if time.monotonic() > end:
                    return False
        return True

    def _writing(self) -> sqlite3.Connection:
        """Makes no file where there is none any more."""
        db = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS)
        for pragma in ("synchronous = NORMAL", "cache_size = -65536"):  # tokens are spread over their indexes
            db.execute(f"PRAGMA {pragma}")
        return db

    def _forget_destroyed(self, db: sqlite3.Connection) -> None:
        """Erases the tokens of keys that were destroyed, if any may have been since the last look."""
        drops = self._opener.drops
        if drops == self._looked:
            return
        for known in known_keys(db):
            if not known.gone and self._opener.key(known.name) == SHREDDED:
                db.execute("PRAGMA secure_delete = ON")
                erased = ",".join(f"b_{name} = 0" for name in BLIND)
                db.execute("BEGIN IMMEDIATE")
                db.execute(f"UPDATE blind SET {erased} WHERE key = ?", (known.number,))
                db.execute("UPDATE data_keys SET gone = 1 WHERE id = ?", (known.number,))
                db.execute("COMMIT")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._looked = drops

    def _add(self, db: sqlite3.Connection, rows: list[sqlite3.Row]) -> None:
        made, kept, open_still = [], [], []
        with closing(LinesAt(self._directory, self._opener)) as lines:
            for place, row in enumerate(rows):
                if place % TURN == 0:
                    time.sleep(0)
                tokens = self._tokens(db, row, lines)
                if tokens is None:
                    open_still.append((row["id"],))
                else:
                    made.append((row["id"], row["time"], *tokens))
                    kept.append((row["id"], row["end_segment"], row["end_offset"]))
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany(_ADD, made)
            # the other process may have removed or completed some meanwhile
            db.executemany("UPDATE entries SET sealed = 2 WHERE id = ? AND sealed = 1 AND end_segment = ? AND end_offset = ?", kept)
            db.executemany(
                "DELETE FROM blind WHERE at = ? AND NOT EXISTS (SELECT 1 FROM entries WHERE id = at AND sealed = 2)",
                [(id,) for id, _, _ in kept],
            )
            db.executemany("UPDATE entries SET sealed = 3 WHERE id = ? AND sealed = 1", open_still)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def _tokens(self, db: sqlite3.Connection, row: sqlite3.Row, lines: LinesAt) -> list[int] | None:
        """The key's number and the tokens of an entry; None where it must be opened each time."""
        entry = shown(db, row)
        raw = lines(entry["writer"], entry["place"])
        names = {_key_of(line) for line in raw}
        if len(names) != 1 or "" in names:
            return None
        (name,) = names
        key, told = self._opener.key(name), completed(entry, raw)
        if key == SHREDDED:
            return [self._number(db, name, entry.get("tenant", "") or SYSTEM, True), *[0] * len(BLIND)]
        if isinstance(key, str) or told.get("unopened") or told["-withheld"]:
            return None
        try:
            secret = key.blind()
        except Shredded:
            return None
        number = self._number(db, name, key.tenant, False)
        return [number, *[token(secret, field, str(text)) if (text := told.get(field)) else 0 for field in BLIND]]

    def _number(self, db: sqlite3.Connection, name: str, tenant: str, gone: bool) -> int:
        number = self._numbers.get(name)
        if number is None:
            db.execute("INSERT OR IGNORE INTO data_keys (name, tenant, gone) VALUES (?, ?, ?)", (name, tenant, gone))
            number = self._numbers[name] = int(db.execute("SELECT id FROM data_keys WHERE name = ?", (name,)).fetchone()[0])
        return number


def _key_of(line: bytes) -> str:
    """The id of the key of a line that is encrypted, opened or not; "" for any other."""
    at = line.rfind(_SEALED)
    if at < 0:
        return ""
    rest = line[at + len(_SEALED) :].removeprefix(b'{"v":1,"key":')
    return rest[1 : rest.find(b'"', 1)].decode("ascii", "replace") if rest[:1] == b'"' else ""


def known_keys(db: sqlite3.Connection) -> list[KnownKey]:
    return [KnownKey(row[0], row[1], row[2], bool(row[3])) for row in db.execute("SELECT id, name, tenant, gone FROM data_keys")]


class Tokened:
    """What a search finds by tokens. asked: without its hidden conditions; exact: those of them that are whole texts. `close` ends it.
    Raises AuditSearchTooLong, sqlite3.Error; GatehouseError where keys cannot be had."""

    def __init__(self, path: Path, asked: AuditSearch, exact: dict[str, str], opener: Opener, seconds: float) -> None:
        self._asked, self._exact, self._db = asked, exact, reading(path, seconds)
        try:
            self._gone, self._held = self._keys(opener)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def _keys(self, opener: Opener) -> tuple[list[tuple[int, str]], list[tuple[int, DataKey]]]:
        """The numbers of the keys that are gone, with why, and of the others."""
        keys = [key for key in known_keys(self._db) if self._concerns(key.tenant)]
        if len(keys) > KEYS:
            raise AuditSearchTooLong(f"the search would need more than {KEYS} data keys: narrow it by tenant")
        found = [(key.number, SHREDDED if key.gone else opener.key(key.name)) for key in keys]
        return [one for one in found if isinstance(one[1], str)], [one for one in found if isinstance(one[1], DataKey)]  # type: ignore[misc]

    def _concerns(self, tenant: str) -> bool:
        asked = self._asked
        if tenant == SYSTEM:
            return asked.tenants is None
        if asked.tenants is not None and tenant not in asked.tenants:
            return False
        return asked.tenant is None or is_pattern(asked.tenant) or asked.tenant == tenant

    def by_key(self, size: int) -> Iterator[Iterator[dict[str, Any]]]:
        """The entries of each key, the newest first, read as they are needed, `size` at once."""
        for number, key in self._held:
            try:
                secret = key.blind()
            except Shredded:
                self._gone.append((number, SHREDDED))
                continue
            values: list[float] = [token(secret, name, text) for name, text in self._exact.items()]
            where = "".join(f" AND b_{name} = ? AND b_{name} <> 0" for name in self._exact)
            for sign, moment in ((">=", self._asked.since), ("<", self._asked.until)):
                if moment is not None:
                    where, values = f"{where} AND moment {sign} ?", [*values, moment]
            yield self._pages(number, where, values, size)

    def _pages(self, number: int, where: str, values: list[float], size: int) -> Iterator[dict[str, Any]]:
        asked = self._asked
        while page := self._page(asked, number, where, values, size):
            yield from page
            if len(page) < size:
                return
            asked = replace(asked, before=(page[-1]["time"], page[-1]["id"]))

    def _page(self, asked: AuditSearch, number: int, also: str, values_of: list[float], size: int) -> list[dict[str, Any]]:
        with too_long():
            rows: list[sqlite3.Row] = []
            for source, where, values in conditions_of(self._db, asked):
                found = (
                    f"blind CROSS JOIN {source} ON entries.id = at"
                    if source == "entries"
                    else f"{source} CROSS JOIN blind ON at = entries.id"
                )
                sql = f"SELECT entries.* FROM {found} WHERE {where} AND key = ?{also} AND sealed = 2 ORDER BY moment DESC, at DESC LIMIT ?"
                rows += self._db.execute(sql, (*values, number, *values_of, size)).fetchall()
            rows.sort(key=lambda row: (row["time"], row["id"]), reverse=True)
            return [shown(self._db, row) for row in rows[:size]]

    def unopened(self, last: dict[str, Any] | None) -> dict[str, int]:
        """How many may be wanted, too, whose keys are gone, by the reason; last: see gateway.audit.opened_index."""
        told: dict[str, int] = {}
        after = (0.0, -1) if last is None else (last["time"], last["id"])
        with too_long():
            for source, where, values in conditions_of(self._db, self._asked):
                for number, why in self._gone:
                    sql = f"SELECT count(*) FROM {source} CROSS JOIN blind ON at = entries.id WHERE {where} AND key = ? AND sealed = 2"
                    sql += " AND (entries.time, entries.id) > (?, ?)"
                    count = self._db.execute(sql, (*values, number, *after)).fetchone()[0]
                    if count:
                        told[why] = told.get(why, 0) + count
        return told
