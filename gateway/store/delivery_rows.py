"""Statements on the queue of webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.deliveries import Delivery
from gateway.store import rows
from gateway.store.tables import deliveries as table

PENDING = "pending"
SETTLED = ("delivered", "failed")
PORTION = 500
"""Deliveries that are forgotten in one transaction."""
_SETTLED = sa.func.coalesce(table.c.status, "").in_(SETTLED)
"""Read in the order of `created`, by its index: by that of `status`, a hundred thousand would be sorted for each portion."""


def add(connection: sa.Connection, now: float, wanted: Sequence[Delivery], most: int) -> int:
    """Replicas may ask at the same moment: then a few more than `most` may wait."""
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    known = set(connection.scalars(sa.select(table.c.id).where(table.c.id.in_([one.id for one in wanted]))))
    waiting = connection.execute(sa.select(sa.func.count()).where(table.c.status == PENDING)).scalar_one()
    fresh = [one for one in wanted if one.id not in known][: max(0, most - waiting)]
    if fresh:
        moments = {"created": now, "due": now}
        values = [{name: getattr(one, name) for name in Delivery.__struct_fields__} | moments for one in fresh]
        connection.execute(insert(table).on_conflict_do_nothing(index_elements=["id"]), values)
    return len({one.id for one in wanted} & known) + len(fresh)


def take(connection: sa.Connection, now: float, hold: float, farthest: float, most: int) -> list[Delivery]:
    """Two replicas that look at the same time do not wait for each other's rows: each gets others."""
    is_due = sa.and_(table.c.status == PENDING, sa.or_(table.c.due <= now, table.c.due > now + farthest))
    due = sa.select(table.c.id).where(is_due).order_by(table.c.due).limit(most)
    if connection.dialect.name == "postgresql":
        due = due.with_for_update(skip_locked=True)
    chosen = list(connection.scalars(due))
    if not chosen:
        return []
    taken = sa.update(table).where(table.c.id.in_(chosen), is_due).values(due=now + hold, attempts=table.c.attempts + 1).returning(table)
    return [Delivery(**row._mapping) for row in connection.execute(taken)]


def settle(connection: sa.Connection, id: str, status: str, due: float, code: int, error: str) -> None:
    change = sa.update(table).where(table.c.id == id, table.c.status == PENDING)
    connection.execute(change.values(status=status, due=due, code=code, error=error[:500]))


def newest(connection: sa.Connection, webhook: str | None, limit: int) -> list[Delivery]:
    query = sa.select(table).order_by(table.c.created.desc(), table.c.id).limit(limit)
    if webhook is not None:
        query = query.where(table.c.webhook == webhook)
    return [Delivery(**row._mapping) for row in connection.execute(query)]


def forget(connection: sa.Connection, before: float) -> int:
    """Deletes PORTION at most of those that are settled and old; how many."""
    return rows.delete_some(connection, table.c.id, PORTION, _SETTLED, table.c.created < before, table.c.keep < before)


def beyond(connection: sa.Connection, most: int) -> tuple[float, str] | None:
    """When the newest settled one was made, and its id, that is more than so many; None if there is none. Not how many there are: two
    replicas that look at the same moment would both forget as many."""
    count = sa.select(sa.func.count()).where(table.c.status.in_(SETTLED))
    if connection.execute(count).scalar_one() <= most:
        return None
    newest = sa.select(table.c.created, table.c.id).where(_SETTLED).order_by(table.c.created.desc(), table.c.id.desc())
    found = connection.execute(newest.offset(most).limit(1)).first()
    return None if found is None else (found.created, found.id)


def forget_up_to(connection: sa.Connection, created: float, id: str) -> int:
    """Deletes PORTION at most of the settled ones up to this one; how many."""
    older = sa.or_(table.c.created < created, table.c.id <= id)
    return rows.delete_some(connection, table.c.id, PORTION, _SETTLED, table.c.created <= created, older)
