"""Statements on the table of daily usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.errors import RequestError
from gateway.core.storage import UsageRow
from gateway.store import rows
from gateway.store.tables import usage_daily

GROUPS = ("tenant", "key", "model", "day")
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
_KEY = ("day", "tenant", "key", "model")
MAX_REPORT = 100_000


def add(connection: sa.Connection, added: Sequence[UsageRow]) -> None:
    """One upsert for each (day, tenant, key, model), in one order, so that two replicas do not lock each other out."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in added:
        total = sums.setdefault(tuple(rows.text(getattr(row, name), name) for name in _KEY), [0] * len(COUNTS))
        for position, name in enumerate(COUNTS):
            total[position] += getattr(row, name)
    if not sums:
        return
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(usage_daily)
    more = {name: usage_daily.c[name] + statement.excluded[name] for name in COUNTS}
    statement = statement.on_conflict_do_update(index_elements=list(_KEY), set_=more)
    values = [dict(zip((*_KEY, *COUNTS), (*key, *counts), strict=True)) for key, counts in sorted(sums.items())]
    connection.execute(statement, values)


def report(
    connection: sa.Connection,
    group_by: Sequence[str],
    since: str,
    until: str,
    tenant: str | Sequence[str] | None,
    key: str | None,
    model: str | None,
    limit: int,
    after: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    wrong = [name for name in group_by if name not in GROUPS]
    if wrong or not group_by or len(set(group_by)) != len(group_by):
        raise RequestError(f"group_by is one or more of {', '.join(GROUPS)}.", param="group_by")
    if not 1 <= limit <= MAX_REPORT:
        raise RequestError(f"limit is between 1 and {MAX_REPORT}.", param="limit")
    for name, day in (("since", since), ("until", until)):
        rows.text(day, name, 10)
    columns = [usage_daily.c[name] for name in group_by]
    sums = [sa.cast(sa.func.sum(usage_daily.c[name]), sa.BigInteger).label(name) for name in COUNTS]
    conditions = [usage_daily.c.day >= since, usage_daily.c.day <= until, rows.of_tenants(usage_daily.c.tenant, tenant)]
    for column, wanted in ((usage_daily.c.key, key), (usage_daily.c.model, model)):
        if wanted is not None:
            conditions.append(column == wanted if rows.storable(wanted) else sa.false())
    if after is not None:
        if len(after) != len(columns):
            raise RequestError("This cursor is not one that a page with this grouping gave.", param="cursor")
        last = [sa.literal(rows.text(value, "cursor")) for value in after]
        conditions.append(sa.tuple_(*columns) > sa.tuple_(*last))
    query = sa.select(*columns, *sums).where(*conditions).group_by(*columns).order_by(*columns).limit(limit)
    return [dict(row._mapping) for row in connection.execute(query)]
