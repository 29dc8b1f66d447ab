"""Counters of limits that last. What is counted, and how, is the caller's matter: here a row is locked, changed and written.

Rows are locked in one order, so that two replicas never wait for each other, and the clock is the database's, read once they are locked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.slices import portions
from gateway.core.storage import CounterChange, CounterName, CounterRow
from gateway.store import rows
from gateway.store.tables import PLACE_LENGTH
from gateway.store.tables import limit_windows as table

PORTION: Final = 1000
"""Counters that are deleted in one transaction."""
_PLACE: Final = sa.collate(sa.func.left(table.c.scope, sa.literal_column(str(PLACE_LENGTH))), "C")
"""What the index of PostgreSQL has of a scope."""


def change(connection: sa.Connection, clock: Callable[[sa.Connection], float], names: Sequence[CounterName], change: CounterChange) -> None:
    """Replaces the body of each counter by what `change(now, bodies)` returns for it, with the moment at which it expires; names must
    differ. None stands for a counter that is not there."""
    postgres = connection.dialect.name == "postgresql"
    insert: Any = postgresql.insert if postgres else sqlite.insert
    ids = [_id(name) for name in names]
    found = _locked(connection, ids)
    if postgres and (missing := [index for index, id in enumerate(ids) if id not in found]):
        values = [_values(ids[index], names[index], "", 0.0) for index in sorted(missing, key=ids.__getitem__)]
        connection.execute(insert(table).on_conflict_do_nothing(), values)  # another replica may insert it at the same moment
        found = _locked(connection, ids)
    after = change(clock(connection), [found.get(id) or None for id in ids])
    written = [_values(id, name, body, expires) for id, name, (body, expires) in zip(ids, names, after, strict=True)]
    statement = insert(table)
    fresh = {"body": statement.excluded.body, "expires": statement.excluded.expires}
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=fresh), written)


def _locked(connection: sa.Connection, ids: Sequence[str]) -> dict[str, str]:
    query = sa.select(table.c.id, table.c.body).where(table.c.id.in_(ids)).order_by(table.c.id).with_for_update()
    return {row.id: row.body for row in connection.execute(query)}


def _values(id: str, name: CounterName, body: str, expires: float) -> dict[str, Any]:
    limit, amount, key = name
    return {"id": id, "limit_name": limit, "amount": amount, "scope": json.dumps(key), "body": body, "expires": expires}


def of_limit(connection: sa.Connection, limit: str, most: int, after: str, keys: Sequence[Sequence[str]]) -> tuple[CounterRow, ...]:
    """The counters of one limit, at most so many, in the order of their keys as JSON: those after such a key, and of `keys`, if given."""
    chosen = [*_chosen(connection, limit, keys), table.c.body != ""]
    order: list[sa.ColumnElement[Any]] = [table.c.scope, table.c.amount]
    if connection.dialect.name == "postgresql":
        order = [_PLACE, sa.collate(table.c.scope, "C"), table.c.amount]
        if after:
            chosen += [after[:PLACE_LENGTH] <= _PLACE, order[1] > after]
    elif after:
        chosen.append(table.c.scope > after)
    query = sa.select(table).where(*chosen).order_by(*order).limit(most)
    return tuple(CounterRow((row.limit_name, row.amount, tuple(json.loads(row.scope))), row.body) for row in connection.execute(query))


def of_limits(connection: sa.Connection, limits: Sequence[str], each: int, most: int) -> list[CounterRow]:
    """At most `each` counters of each limit, and `most` of all together: then of every limit some, in one query for MANY limits."""
    place = sa.func.row_number().over(partition_by=table.c.limit_name, order_by=table.c.id).label("place")
    found: list[CounterRow] = []
    for some in portions(limits, rows.MANY):
        ranked = sa.select(table, place).where(table.c.limit_name.in_(some), table.c.body != "").subquery()
        query = sa.select(ranked).where(ranked.c.place <= each).order_by(ranked.c.place, ranked.c.id).limit(max(0, most - len(found)))
        read = connection.execute(query)
        found += [CounterRow((row.limit_name, row.amount, tuple(json.loads(row.scope))), row.body) for row in read]
    return found


def forget(connection: sa.Connection, limit: str, key: tuple[str, ...] | None) -> int:
    """Deletes the counters of a limit, those of one key or all, PORTION at most; returns how many."""
    return _deleted(connection, *_chosen(connection, limit, () if key is None else (key,)))


def sweep(connection: sa.Connection, now: float) -> int:
    """Deletes counters that say nothing any more, PORTION at most; returns how many."""
    return _deleted(connection, table.c.expires < now)


def _chosen(connection: sa.Connection, limit: str, keys: Sequence[Sequence[str]]) -> list[sa.ColumnElement[bool]]:
    """The counters of one limit, of these keys or all, in words that the index knows."""
    chosen: list[sa.ColumnElement[bool]] = [table.c.limit_name == limit]
    if keys:
        scopes = [json.dumps(key) for key in keys]
        chosen.append(table.c.scope.in_(scopes))
        if connection.dialect.name == "postgresql":
            chosen.append(_PLACE.in_([scope[:PLACE_LENGTH] for scope in scopes]))
    return chosen


def _deleted(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> int:
    return rows.delete_some(connection, table.c.id, PORTION, *which)


def _id(name: CounterName) -> str:
    return blake2b(json.dumps(name).encode(), digest_size=24).hexdigest()
