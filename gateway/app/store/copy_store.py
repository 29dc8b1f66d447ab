"""`gatehouse copy-store`: the store moves from SQLite to PostgreSQL.

Everything is copied in one transaction, or nothing; what only says who is running now (replicas, leases) is left out. Both sides are
counted before the end. Keys go on working, because the pepper does not change: it is in the state directory or GATEHOUSE_PEPPER.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from gateway.app.replicas.replica import LOCK, StateLock
from gateway.core.errors import ConfigError, GatehouseError, one_line
from gateway.store.migrate import HEAD, migrate, revisions
from gateway.store.postgres_url import url_of
from gateway.store.tables import metadata

LIVE: Final = frozenset({"replicas", "leases"})
ROWS: Final = 1000
"""Rows written at a time, at most."""
BYTES: Final = 8 * 2**20
"""And no more once they are so large together: a kept answer alone may have several MiB."""


def copy(source: Path, target: str) -> dict[str, int]:
    """Copies the SQLite file into the empty database at a PostgreSQL URL; the number of rows of each table. Blocks. Raises ConfigError with
    the reason; then nothing was written."""
    if not source.is_file():
        raise ConfigError(f"{source} is not a file")
    new = _postgresql(target)
    lock = StateLock(source.parent, "stop it first") if (source.parent / LOCK).exists() else None  # so that no gateway writes meanwhile
    # Read as it is, also what is still in the write-ahead log, and never written.
    place = f"{source.absolute().as_uri()}?mode=ro"
    old = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(place, uri=True), poolclass=sa.pool.NullPool)
    try:
        with old.connect() as reading, new.begin() as writing:
            return _tables(reading, writing)
    except sa.exc.SQLAlchemyError as error:
        raise ConfigError(f"{one_line(str(getattr(error, 'orig', None) or error))}; nothing was written") from None
    except GatehouseError as error:
        raise ConfigError(f"{error}; nothing was written") from None
    finally:
        old.dispose()
        new.dispose()
        if lock is not None:
            lock.release()


def _postgresql(target: str) -> sa.Engine:
    try:
        url = url_of(target)
    except (sa.exc.ArgumentError, ValueError):
        url = sa.make_url("none://")
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise ConfigError("the target must be postgresql://USER:PASSWORD@HOST/DATABASE")
    try:
        return sa.create_engine(url.set(drivername="postgresql+psycopg"))
    except ModuleNotFoundError:
        raise ConfigError("PostgreSQL needs the package psycopg: install requirements/gateway.txt, which pins it") from None


def _tables(source: sa.Connection, target: sa.Connection) -> dict[str, int]:
    if revisions(source) != {HEAD}:
        found = ", ".join(sorted(revisions(source))) or "of no Gatehouse"
        raise ConfigError(f"the source has the schema {found}, not {HEAD}: start this version on it once, and stop it")
    if revisions(target):
        raise ConfigError("the target has a store already; it must be an empty database")
    migrate(target)
    counts: dict[str, int] = {}
    for table in metadata.sorted_tables:
        if table.name in LIVE:
            continue
        target.execute(table.delete())  # rows that the migrations made
        count = 0
        try:
            for rows in batches(dict(row) for row in source.execute(sa.select(table)).mappings()):
                target.execute(table.insert(), rows)
                count += len(rows)
        except (sa.exc.DataError, sa.exc.IntegrityError) as error:
            raise ConfigError(f"PostgreSQL refuses a row of {table.name}: {one_line(str(error.orig))}") from None
        if target.scalar(sa.select(sa.func.count()).select_from(table)) != count:
            raise ConfigError(f"the copy of {table.name} is not complete")
        counts[table.name] = count
    return counts


def batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The rows in lists of at most ROWS, and of no more than BYTES by more than one row."""
    batch: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) if isinstance(value, str | bytes) else 64 for value in row.values())
        if len(batch) >= ROWS or size >= BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
