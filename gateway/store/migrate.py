"""Brings a database to the newest schema, inside the caller's transaction. If several processes try at once, one of them does it."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.store.upgrade import upgrade

HEAD = "0016"
"""The newest revision in migrations/versions."""
LOCK = 0x67617465686F7573  # "gatehous": the PostgreSQL advisory lock that a migration holds
_VERSION = sa.table("alembic_version", sa.column("version_num"))


def migrate(connection: sa.Connection) -> None:
    """Raises ConfigError when the database was made by a newer Gatehouse."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    if revisions(connection) != {HEAD}:
        upgrade(connection)


def revisions(connection: sa.Connection) -> set[str]:
    """The revisions that the database has; empty if it has no schema."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return set()
    return set(connection.scalars(sa.select(_VERSION.c.version_num)))
