"""What an audit log says about a period: accesses, denials, logins, changes, and how the log itself fared. Read from its index."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from gateway.audit.index import reading, too_long

SECONDS: Final = 30.0
MOST: Final = 500
"""Rows of each table."""
CHANGES: Final = ("admin.", "config_", "halt", "left_out", "upgrade", "bootstrap", "token_key", "suspen", "revo")
LOG_ITSELF: Final = ("audit.",)
LOGINS: Final = ("admin.login", "login", "denials", "token_issued", "connections_refused")
"""Beginnings of the events' names."""

_REQUESTS: Final = "request = 1 AND time >= ? AND time < ?"
_SUMS: Final = "count(*) AS requests, sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens"


def summary(path: Path, since: float, until: float, tenants: frozenset[str] | None) -> dict[str, Any]:
    """The tables of a report. tenants: only theirs (then without what belongs to no tenant); None: everything. Blocks.

    Raises FileNotFoundError without an index, AuditSearchTooLong, sqlite3.Error."""
    with closing(reading(path, SECONDS)) as db, too_long():
        return summary_of(db, since, until, tenants)


def summary_of(db: sqlite3.Connection, since: float, until: float, tenants: frozenset[str] | None) -> dict[str, Any]:
    """The same of an index that is open."""
    names = _Names(db)
    seen = _Period(db, names, since, until, tenants)
    found = {
        "accesses": seen.grouped(("tenant", "model", "operation", "outcome"), _SUMS),
        "callers": seen.grouped(("tenant", "principal", "user", "method"), _SUMS + ", sum(outcome <> 1) AS not_ok"),
        "denials": seen.grouped(("tenant", "code", "rule", "guardrail"), "count(*) AS requests", "outcome = ?", [names.number("denied")]),
        "logins": seen.events(LOGINS),
        "changes": seen.listed(CHANGES),
    }
    if tenants is None:
        found["log"] = seen.listed(LOG_ITSELF)
    return found


class _Names:
    """Texts and their numbers."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._known: dict[int, str] = {}

    def number(self, text: str) -> int:
        found = self._db.execute("SELECT id FROM names WHERE text = ?", (text,)).fetchone()
        return -1 if found is None else int(found[0])

    def text(self, number: int) -> str:
        if number not in self._known:
            self._known[number] = str(self._db.execute("SELECT text FROM names WHERE id = ?", (number,)).fetchone()[0])
        return self._known[number]

    def beginning(self, beginnings: Sequence[str]) -> list[int]:
        """The numbers of all texts that begin with one of these."""
        found: list[int] = []
        for start in beginnings:
            found += [
                row[0] for row in self._db.execute("SELECT id FROM names WHERE text >= ? AND text < ? || char(1114111)", (start, start))
            ]
        return found


class _Period:
    """One period of an index."""

    def __init__(self, db: sqlite3.Connection, names: _Names, since: float, until: float, tenants: frozenset[str] | None) -> None:
        self._db, self._names, self._times = db, names, [since, until]
        self._scope, self._of = "", list[Any]()
        if tenants is not None:
            self._of = [names.number(tenant) for tenant in sorted(tenants)]
            self._scope = f" AND tenant IN ({','.join('?' * len(self._of))})"

    def grouped(self, columns: tuple[str, ...], sums: str, where: str = "1", values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Requests by these texts, the most first."""
        by = ",".join(f'"{name}"' for name in columns)
        sql = (
            f"SELECT {by}, {sums} FROM entries WHERE {_REQUESTS} AND {where}{self._scope} GROUP BY {by} ORDER BY requests DESC LIMIT {MOST}"
        )
        rows = self._db.execute(sql, (*self._times, *values, *self._of)).fetchall()
        return [{name: self._names.text(row[name]) if name in columns else row[name] for name in row.keys()} for row in rows]  # noqa: SIM118

    def events(self, beginnings: Sequence[str]) -> list[dict[str, Any]]:
        """How often each event came, with which outcome."""
        numbers = self._names.beginning(beginnings)
        sql = (
            "SELECT event, outcome, count(*) AS times FROM entries WHERE request = 0 AND time >= ? AND time < ?"
            f" AND event IN ({','.join('?' * len(numbers))}){self._scope} GROUP BY event, outcome ORDER BY times DESC LIMIT {MOST}"
        )
        rows = self._db.execute(sql, (*self._times, *numbers, *self._of)).fetchall()
        return [{"event": self._names.text(row[0]), "outcome": self._names.text(row[1]), "times": row[2]} for row in rows]

    def listed(self, beginnings: Sequence[str]) -> list[dict[str, Any]]:
        """The newest of these events, one by one."""
        numbers = self._names.beginning(beginnings)
        sql = (
            "SELECT time, event, actor, target, outcome, writer FROM entries WHERE request = 0 AND time >= ? AND time < ?"
            f" AND event IN ({','.join('?' * len(numbers))}){self._scope} ORDER BY time DESC LIMIT {MOST}"
        )
        rows = self._db.execute(sql, (*self._times, *numbers, *self._of)).fetchall()
        texts = ("event", "actor", "target", "outcome", "writer")
        return [{"time": row["time"], **{name: self._names.text(row[name]) for name in texts}} for row in rows]
