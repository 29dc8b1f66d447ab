"""Statements on the tables of changes and idempotency keys."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from gateway.core.errors import VersionMismatch
from gateway.core.idempotency import Idempotent
from gateway.core.storage import ChangePage, StoreChange
from gateway.store import rows
from gateway.store.tables import changes, counters, idempotency

KEPT = 100_000
"""How many changes are kept. A replica that missed more fetches the whole state."""
MAX_CHANGES = 10_000
_HEAD = sa.select(counters.c.value).where(counters.c.name == "changes")
_MOST = sa.bindparam("most", type_=sa.Integer)
_SINCE = sa.select(changes).where(changes.c.seq > sa.bindparam("after")).order_by(changes.c.seq).limit(_MOST)


def since(connection: sa.Connection, seq: int, limit: int) -> ChangePage:
    """Reads the head first, so that a change committed in between is in this page or in the next one."""
    head = int(connection.execute(_HEAD).scalar_one())
    if seq == head:
        return ChangePage((), head)
    if seq > head:
        return ChangePage((), head, gap=True)
    page = connection.execute(_SINCE, {"after": seq, "most": max(1, min(limit, MAX_CHANGES))})
    found = tuple(StoreChange(row.seq, row.kind, row.name, row.action, row.time) for row in page)
    gap = not found or found[0].seq != seq + 1
    return ChangePage(found, max(head, found[-1].seq if found else 0), gap)


def unchanged(connection: sa.Connection, since: tuple[int, Collection[str]]) -> None:
    """Whoever looks here and then writes does so alone. since: a sequence number, and kinds. Raises VersionMismatch where one of these
    kinds was changed after it, also by what was not there when it was read."""
    seq, kinds = since
    rows.one_by_one(connection, "compared and written")
    later = sa.select(changes.c.seq).where(changes.c.seq > seq, changes.c.kind.in_(list(kinds))).limit(1)
    if connection.execute(later).first() is not None:
        raise VersionMismatch("Somebody else has changed the store since it was read; read it again.")


def prune(connection: sa.Connection, now: float, kept: int = KEPT) -> None:
    """Deletes old changes and expired idempotency keys."""
    newest = sa.select(counters.c.value - kept).where(counters.c.name == "changes").scalar_subquery()
    connection.execute(sa.delete(changes).where(changes.c.seq <= newest))
    connection.execute(sa.delete(idempotency).where(idempotency.c.expires <= now))


def _here(key: str, actor: str, route: str) -> sa.ColumnElement[bool]:
    return sa.and_(idempotency.c.key == key, idempotency.c.actor == actor, idempotency.c.route == route)


def _held(key: str, actor: str, route: str, holder: str) -> sa.ColumnElement[bool]:
    """While a request is under way, there is no body: its column has the holder. An earlier version's is ""."""
    return sa.and_(_here(key, actor, route), idempotency.c.status == 0, idempotency.c.body == holder)


def begin(
    connection: sa.Connection, key: str, actor: str, route: str, fingerprint: str, holder: str, now: float, ttl: float
) -> Idempotent | None:
    """Raises IntegrityError if another process begins with the same key at the same moment; the caller tries again."""
    told = {"idempotency-key": key, "actor": actor, "route": route, "fingerprint": fingerprint, "holder": holder}
    for what, value in told.items():
        rows.text(value, what)
    row = connection.execute(sa.select(idempotency).where(_here(key, actor, route))).first()
    if row is not None and row.expires > now:
        return Idempotent(row.status, row.body if row.status else "", row.fingerprint)
    if row is not None:
        connection.execute(sa.delete(idempotency).where(_here(key, actor, route), idempotency.c.expires <= now))  # not who began since
    values = {"key": key, "actor": actor, "route": route, "fingerprint": fingerprint, "status": 0, "body": holder, "expires": now + ttl}
    connection.execute(sa.insert(idempotency).values(**values))
    return None


def renew(connection: sa.Connection, key: str, actor: str, route: str, holder: str, until: float) -> bool:
    return connection.execute(sa.update(idempotency).where(_held(key, actor, route, holder)).values(expires=until)).rowcount > 0


def finish(connection: sa.Connection, key: str, actor: str, route: str, holder: str, status: int, body: str, until: float) -> bool:
    values = {"status": status, "body": body, "expires": until}
    return connection.execute(sa.update(idempotency).where(_held(key, actor, route, holder)).values(**values)).rowcount > 0


def abandon(connection: sa.Connection, key: str, actor: str, route: str, holder: str) -> None:
    connection.execute(sa.delete(idempotency).where(_held(key, actor, route, holder)))
