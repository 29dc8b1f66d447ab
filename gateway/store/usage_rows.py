"""Statements on the table of usage, and on the positions up to which the audit logs are counted in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.errors import RequestError
from gateway.core.ledger import Position, SessionAndEngineCounts, UsageRow
from gateway.store import rows, session_and_engine_rows
from gateway.store.tables import NAME_LENGTH, facts, usage, usage_positions

GROUPS = ("tenant", "key", "user", "agent", "model", "operation", "currency", "day")
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost", "unknown")
_KEY = ("day", "tenant", "key", "model", "user", "agent", "operation", "currency", "writer")
_PLACE = ("segment", "offset", "seq", "head")
_SHORT = ("operation", "currency", "writer")
MAX_REPORT = 100_000
COUNTED_FROM = "usage_counted_from"


def add(
    connection: sa.Connection,
    added: Sequence[UsageRow],
    before: Position | None = None,
    after: Position | None = None,
    others: SessionAndEngineCounts | None = None,
) -> bool:
    """One upsert for each key, in one order, so that two replicas do not lock each other out; first the position, whose row's lock lets
    only one of them count the same lines. False, and nothing is written, if the position is not `before`."""
    if before is not None and after is not None and not _move(connection, before, after):
        return False
    if others is not None:
        session_and_engine_rows.add(connection, others)
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in added:
        key = tuple(rows.text(getattr(row, name), name, 64 if name in _SHORT else NAME_LENGTH) for name in _KEY)
        total = sums.setdefault(key, [0] * len(COUNTS))
        for position, name in enumerate(COUNTS):
            total[position] += getattr(row, name)
    if not sums:
        return True
    statement: Any = _insert(connection)(usage)
    more = {name: usage.c[name] + statement.excluded[name] for name in COUNTS}
    statement = statement.on_conflict_do_update(index_elements=list(_KEY), set_=more)
    values = [dict(zip((*_KEY, *COUNTS), (*key, *counts), strict=True)) for key, counts in sorted(sums.items())]
    connection.execute(statement, values)
    return True


def _insert(connection: sa.Connection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _move(connection: sa.Connection, before: Position, after: Position) -> bool:
    place = {name: getattr(after, name) for name in _PLACE}
    if not before.segment:
        insert = _insert(connection)(usage_positions).values(writer=after.writer, **place)
        return (
            connection.execute(insert.on_conflict_do_nothing(index_elements=["writer"]).returning(usage_positions.c.seq)).first()
            is not None
        )
    same = [usage_positions.c[name] == getattr(before, name) for name in ("writer", *_PLACE)]
    return connection.execute(sa.update(usage_positions).where(*same).values(**place).returning(usage_positions.c.seq)).first() is not None


def positions(connection: sa.Connection) -> dict[str, Position]:
    found = connection.execute(sa.select(usage_positions))
    return {row.writer: Position(row.writer, row.segment, row.offset, row.seq, row.head) for row in found}


def counted_from(connection: sa.Connection) -> float:
    value = connection.execute(sa.select(facts.c.value).where(facts.c.name == COUNTED_FROM)).scalar()
    return float(value) if value is not None else 0.0


def of_writers(connection: sa.Connection, writers: Sequence[str]) -> tuple[dict[str, Position], list[UsageRow]]:
    """Both as they were at one moment: other replicas count meanwhile."""
    rows.at_one_moment(connection)
    known = positions(connection)
    found = connection.execute(sa.select(*(usage.c[name] for name in (*_KEY, *COUNTS))).where(usage.c.writer.in_(list(writers))))
    return {writer: known[writer] for writer in writers if writer in known}, [UsageRow(**row._mapping) for row in found]


def report(
    connection: sa.Connection,
    group_by: Sequence[str],
    since: str,
    until: str,
    tenant: str | Sequence[str] | None,
    wanted: Mapping[str, str | None],
    limit: int,
    after: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    wrong = [name for name in (*group_by, *wanted) if name not in GROUPS]
    if wrong or not group_by or len(set(group_by)) != len(group_by):
        raise RequestError(f"group_by is one or more of {', '.join(GROUPS)}.", param="group_by")
    if not 1 <= limit <= MAX_REPORT:
        raise RequestError(f"limit is between 1 and {MAX_REPORT}.", param="limit")
    for name, day in (("since", since), ("until", until)):
        rows.text(day, name, 10)
    columns = [usage.c[name] for name in group_by]
    sums = [sa.cast(sa.func.sum(usage.c[name]), sa.BigInteger).label(name) for name in COUNTS]
    currency = sa.func.nullif(usage.c.currency, "")
    money = [sa.func.min(currency).label("least"), sa.func.max(currency).label("most")]
    conditions = [usage.c.day >= since, usage.c.day <= until, rows.of_tenants(usage.c.tenant, tenant)]
    for name, value in wanted.items():
        if value is not None:
            conditions.append(usage.c[name] == value if rows.storable(value) else sa.false())
    if after is not None:
        if len(after) != len(columns):
            raise RequestError("This cursor is not one that a page with this grouping gave.", param="cursor")
        last = [sa.literal(rows.text(value, "cursor")) for value in after]
        conditions.append(sa.tuple_(*columns) > sa.tuple_(*last))
    query = sa.select(*columns, *sums, *money).where(*conditions).group_by(*columns).order_by(*columns).limit(limit)
    return [_with_currency(dict(row._mapping)) for row in connection.execute(query)]


def _with_currency(row: dict[str, Any]) -> dict[str, Any]:
    least, most = row.pop("least"), row.pop("most")
    if least != most:
        row["cost"] = None
    row.setdefault("currency", least if least == most else None)
    return row
