"""Brings a database to the newest schema, inside the caller's transaction. If several processes try at once, one of them does it."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.core.errors import ConfigError
from gateway.store.tables import metadata
from gateway.store.upgrade import upgrade

HEAD = "0020"
"""The newest revision in migrations/versions."""
LOCK = 0x67617465686F7573  # "gatehous": the PostgreSQL advisory lock that a migration holds
DEADLINE = 60.0
"""Seconds that a migration may take, the wait for another process's included."""
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_VERSION = sa.table("alembic_version", sa.column("version_num"))
_PRIMARY = sa.text(
    "SELECT t.relname FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
    "WHERE i.indisprimary AND n.nspname = ANY (current_schemas(false))"
)


def migrate(connection: sa.Connection) -> None:
    """Raises ConfigError when the database was made by a newer Gatehouse, or was not restored to its end."""
    if connection.dialect.name != "postgresql":
        _upgrade(connection)
        return
    # Those of the connection are made for single calls: they would end the wait for a replica that migrates, and this process with it.
    for name in _TIMEOUTS:
        connection.execute(sa.text(f"SET LOCAL {name} = {int(DEADLINE * 1000)}"))
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    _upgrade(connection)
    _whole(connection)
    for name in _TIMEOUTS:
        connection.execute(sa.text(f"SET LOCAL {name} TO DEFAULT"))


def _upgrade(connection: sa.Connection) -> None:
    if revisions(connection) != {HEAD}:
        upgrade(connection)


def _whole(connection: sa.Connection) -> None:
    """Raises ConfigError where a table has no primary key. A backup (pg_dump) adds these once it has brought all rows back: one that was
    broken off midway may have keys and no limits, guardrails or bindings, and would serve."""
    lacking = sorted({table.name for table in metadata.tables.values() if table.primary_key.columns} - set(connection.scalars(_PRIMARY)))
    if lacking:
        raise ConfigError(
            f"the store was not restored to its end (no primary key: {', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}): "
            "restore the backup again, into an empty database, with psql -1 -v ON_ERROR_STOP=1",
            path="store.url",
        )


def revisions(connection: sa.Connection) -> set[str]:
    """The revisions that the database has; empty if it has no schema."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return set()
    return set(connection.scalars(sa.select(_VERSION.c.version_num)))
