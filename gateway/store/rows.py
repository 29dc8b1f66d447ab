"""What all tables share: checked texts, pages by name, numbered changes, the expected version of a write."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from gateway.core.errors import NotFound, RequestError, VersionMismatch
from gateway.core.storage import StoreChange
from gateway.store.hints import CHANNEL, Hint, encode
from gateway.store.postgres_hints import NOTIFY
from gateway.store.tables import NAME_LENGTH, changes, counters

MAX_PAGE = 1000
MANY = 500
"""Names in one statement."""
_STEP = (
    sa.update(counters)
    .where(counters.c.name == "changes")
    .values(value=counters.c.value + sa.bindparam("step"))
    .returning(counters.c.value)
)
_INSERT = sa.insert(changes)
_ONE_BY_ONE = sa.text(
    "SELECT pg_advisory_xact_lock(hashtextextended(what, 0)) FROM unnest(CAST(:whats AS text[])) WITH ORDINALITY AS one (what, place)"
)
_SNAPSHOT = sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
# Here and in the modules beside this one, statements are built once: building one takes longer than running it, and holds the interpreter
# while it does.
_NAME = re.compile(r"[A-Za-z0-9%][A-Za-z0-9._:/@%-]{0,254}", re.ASCII)


_CLOCKS = {
    "postgresql": sa.text("SELECT extract(epoch FROM clock_timestamp())::double precision"),
    "sqlite": sa.text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
}


def database_time(connection: sa.Connection) -> float:
    """Seconds since the epoch by the database's clock, which all replicas share. A database that is not known here: this machine's."""
    statement = _CLOCKS.get(connection.dialect.name)
    return time.time() if statement is None else float(connection.execute(statement).scalar_one())


class Unit(Struct, frozen=True):
    """A resource before and after a write; None: it was, or is, not there."""

    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Transaction:
    """A connection in a transaction, the time of the write, and its changes, which get their numbers at the end (`number`).

    units, note: what the history of the configuration is told of it (gateway.store.config_rows), and actor: by whom. restores: the entry
    that it goes back to."""

    def __init__(self, connection: sa.Connection, now: float) -> None:
        self.connection, self.now = connection, now
        self._made: list[tuple[str, str, str]] = []
        self.units: list[Unit] = []
        self.note: tuple[dict[str, Any], str | None] | None = None
        self.actor = ""
        self.restores: int | None = None

    def changed(self, kind: str, name: str, action: str) -> None:
        self._made.append((kind, name, action))

    def number(self) -> tuple[StoreChange, ...]:
        """The last statements of a write. The counter's row stays locked until the commit, so numbers are committed in order and without
        gaps: a reader that has seen one has seen all before it."""
        if not self._made:
            return ()
        head = int(self.connection.execute(_STEP, {"step": len(self._made)}).scalar_one())
        first = head - len(self._made) + 1
        numbered = tuple(StoreChange(first + i, kind, name, action, self.now) for i, (kind, name, action) in enumerate(self._made))
        self.connection.execute(
            _INSERT,
            [{"seq": c.seq, "kind": c.kind, "name": c.name, "action": c.action, "time": c.time} for c in numbered],
        )
        if self.connection.dialect.name == "postgresql":
            self.connection.execute(NOTIFY, {"channel": CHANNEL, "payload": encode(Hint(seq=head))})
        return numbered


def one_by_one(connection: sa.Connection, what: str) -> None:
    """What is counted and then added stays within its bound: transactions with the same text here follow each other. SQLite has one writer
    anyway."""
    all_one_by_one(connection, [what])


def all_one_by_one(connection: sa.Connection, whats: Sequence[str]) -> None:
    """The same for several texts, in one order, so that nobody waits in a circle."""
    if connection.dialect.name == "postgresql":
        connection.execute(_ONE_BY_ONE, {"whats": sorted(whats)})


def delete_some(connection: sa.Connection, column: sa.Column[Any], most: int, *which: sa.ColumnElement[bool]) -> int:
    """Deletes `most` of the rows that are meant, and fewer only where there are no more; how many. column: their primary key.

    They are held before they are counted: of those that somebody else deletes meanwhile, none may be missing in the number by which the
    caller knows that nothing is left."""
    chosen = list(connection.scalars(sa.select(column).where(*which).limit(most).with_for_update()))
    return connection.execute(sa.delete(column.table).where(column.in_(chosen))).rowcount if chosen else 0


def at_one_moment(connection: sa.Connection) -> None:
    """All that the transaction reads from its beginning on is of one moment, and it writes nothing. In SQLite that is always so."""
    if connection.dialect.name == "postgresql":
        connection.execute(_SNAPSHOT)


def name(value: str, what: str) -> str:
    """A name that can be stored: 1 to 255 of letters, digits and `._:/@%-`. Raises RequestError."""
    if not _NAME.fullmatch(value):
        raise RequestError(f"This is not a valid name: {what} has 1 to {NAME_LENGTH} letters, digits and any of ._:/@%-.", param=what)
    return value


def text(value: str, what: str, length: int = NAME_LENGTH) -> str:
    """A text that both databases can store: no NUL, no lone surrogate, not too long. Raises RequestError."""
    if len(value) > length or "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise RequestError(f"{what} cannot be stored: at most {length} characters, none of them NUL or half of a pair.", param=what)
    return value


def tenant_name(value: str) -> str:
    return value if value == "" else name(value, "tenant")


def storable(value: str) -> bool:
    """Whether a database can hold the text at all; a filter by any other text matches nothing."""
    return len(value) <= NAME_LENGTH and "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def placed(id: str, prefix: str, what: str) -> str:
    """An identifier as a place in a list in their order: whatever has it may have been deleted since. Raises NotFound for what is none."""
    if not id.startswith(prefix) or not storable(id):
        raise NotFound(f"There is no {what} {id[:64]!r}.", param="after")
    return id


def of_tenants(column: sa.Column[Any], tenant: str | Sequence[str] | None) -> sa.ColumnElement[bool]:
    """The condition for one tenant, several, or all (None)."""
    if tenant is None:
        return sa.true()
    wanted = [tenant] if isinstance(tenant, str) else list(tenant)
    return column.in_([one for one in wanted if storable(one)])


def of_caller(column: sa.Column[Any], caller: str | None) -> sa.ColumnElement[bool]:
    """The condition for what belongs to one caller within its tenant, or for all (None). What is nobody's is no caller's."""
    if caller is None:
        return sa.true()
    return column == caller if caller and storable(caller) else sa.false()


def begins(column: sa.Column[Any], prefix: str) -> sa.ColumnElement[bool]:
    """Compares bytewise; SQLite's LIKE does not."""
    if not prefix:
        return sa.true()
    return sa.func.substr(column, 1, len(prefix)) == prefix if storable(prefix) else sa.false()


def page_size(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise RequestError(f"limit is between 1 and {MAX_PAGE}.", param="limit")
    return limit


def cursor_after(last: str) -> str:
    """An opaque cursor for the page after this name."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def after(column: sa.Column[Any], cursor: str | None) -> sa.ColumnElement[bool]:
    """The condition for the page after a cursor. Raises RequestError for a cursor that was not made here."""
    if cursor is None:
        return sa.true()
    try:
        last = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        last = ""
    if not _NAME.fullmatch(last):
        raise RequestError("This cursor did not come from a page.", param="cursor")
    return column > last


def check_version(current: int, expected: int | None) -> None:
    """Raises VersionMismatch if the current version is not the expected one."""
    if expected is not None and expected != current:
        error = VersionMismatch("Somebody else has changed it since it was read; read it again.")
        error.current = current
        raise error


def missing(kind: str, which: str) -> NotFound:
    return NotFound(f"There is no {one_of(kind)} {which!r}.")


def one_of(kind: str) -> str:
    """`tenants` in the singular."""
    return kind.removesuffix("s")
