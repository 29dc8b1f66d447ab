"""Statements on the tables that are counted with the usage: sessions, and the time of engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.ledger import EngineRow, SessionAndEngineCounts, SessionRow
from gateway.store import rows
from gateway.store.tables import NAME_LENGTH, usage_engines, usage_sessions

_SESSION_KEY = ("day", "tenant", "session", "currency")
_SESSION_LAST = ("key", "user", "agent", "last")
_SESSION_SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost", "unknown")
_ENGINE_KEY = ("day", "engine")
_ENGINE_SUMS = ("requests", "prefill_us", "decode_us")


def add(connection: sa.Connection, others: SessionAndEngineCounts) -> None:
    """One upsert for each row, always in the order of the keys, so that two transactions cannot deadlock. No key may occur twice."""
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    if others.sessions:
        statement = insert(usage_sessions)
        after = {name: usage_sessions.c[name] + statement.excluded[name] for name in _SESSION_SUMS}
        newer = statement.excluded["last"] >= usage_sessions.c["last"]
        after |= {name: sa.case((newer, statement.excluded[name]), else_=usage_sessions.c[name]) for name in _SESSION_LAST}
        names = (*_SESSION_KEY, *_SESSION_LAST, *_SESSION_SUMS)
        values = [{name: getattr(row, name) for name in names} for row in sorted(others.sessions, key=_session_key)]
        for value in values:
            for name in ("tenant", "session", "key", "user", "agent"):
                value[name] = rows.text(value[name], name, NAME_LENGTH)
        connection.execute(statement.on_conflict_do_update(index_elements=list(_SESSION_KEY), set_=after), values)
    if others.engines:
        statement = insert(usage_engines)
        sums = {name: usage_engines.c[name] + statement.excluded[name] for name in _ENGINE_SUMS}
        values = [{name: getattr(row, name) for name in (*_ENGINE_KEY, *_ENGINE_SUMS)} for row in sorted(others.engines, key=_engine_key)]
        connection.execute(statement.on_conflict_do_update(index_elements=list(_ENGINE_KEY), set_=sums), values)


def engines(connection: sa.Connection, since: str, until: str) -> list[EngineRow]:
    table = usage_engines
    chosen = sa.select(table).where(table.c.day >= since, table.c.day <= until).order_by(table.c.day, table.c.engine)
    return [EngineRow(**row._mapping) for row in connection.execute(chosen)]


def sessions(
    connection: sa.Connection, since: str, until: str, tenant: str | Sequence[str] | None, session: str | None, limit: int
) -> list[SessionRow]:
    table = usage_sessions
    grouped = (table.c.tenant, table.c.session, table.c.currency)
    latest = [sa.func.max(table.c[name]).label(name) for name in ("day", *_SESSION_LAST)]
    sums = [sa.cast(sa.func.sum(table.c[name]), sa.BigInteger).label(name) for name in _SESSION_SUMS]
    chosen = [table.c.day >= since, table.c.day <= until, rows.of_tenants(table.c.tenant, tenant)]
    if session is not None:
        chosen.append(table.c.session == session if rows.storable(session) else sa.false())
    query = sa.select(*grouped, *latest, *sums).where(*chosen).group_by(*grouped).order_by(sa.desc("last"), *grouped).limit(limit)
    return [SessionRow(**row._mapping) for row in connection.execute(query)]


def forget(connection: sa.Connection, before: str, most: int) -> int:
    table = usage_sessions
    gone = connection.execute(sa.delete(table).where(table.c.day < before)).rowcount
    count = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    if count > most:  # counted from the newest: another replica may have deleted some since, and as many again are not too many
        edge = connection.execute(sa.select(table.c.last).order_by(table.c.last.desc()).offset(most).limit(1)).scalar()
        if edge is not None:
            gone += connection.execute(sa.delete(table).where(table.c.last <= edge)).rowcount
    return gone


def _session_key(row: SessionRow) -> tuple[str, ...]:
    return row.day, row.tenant, row.session, row.currency


def _engine_key(row: EngineRow) -> tuple[str, ...]:
    return row.day, row.engine
