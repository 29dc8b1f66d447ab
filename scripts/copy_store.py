"""Copies the store from SQLite to PostgreSQL: `python scripts/copy_store.py gatehouse.db postgresql://USER:PASSWORD@HOST/DB`.

Stop the gateways first; the target must be an empty database. Everything is copied in one transaction, or nothing; what only says who is
running now (replicas, leases) is left out. Both sides are counted before the end. Keys go on working, because the pepper does not change:
it is in the state directory or GATEHOUSE_PEPPER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway.core.errors import GatehouseError
from gateway.store.migrate import HEAD, migrate, revisions
from gateway.store.tables import metadata

LIVE = {"replicas", "leases"}
ROWS = 1000


def copy(source: sa.Connection, target: sa.Connection) -> dict[str, int]:
    """Copies every table; returns the number of rows of each. Raises SystemExit when something is not as it must be."""
    if revisions(source) != {HEAD}:
        found = ", ".join(revisions(source)) or "of no Gatehouse"
        sys.exit(f"error: the source has the schema {found}, not {HEAD}: start this version on it once")
    if revisions(target):
        sys.exit("error: the target has a store already; it must be an empty database")
    migrate(target)
    counts = {}
    for table in metadata.sorted_tables:
        if table.name in LIVE:
            continue
        target.execute(table.delete())  # rows that the migrations made
        for rows in source.execute(sa.select(table)).mappings().partitions(ROWS):
            target.execute(table.insert(), [dict(row) for row in rows])
        counts[table.name] = source.scalar(sa.select(sa.func.count()).select_from(table)) or 0
        if target.scalar(sa.select(sa.func.count()).select_from(table)) != counts[table.name]:
            sys.exit(f"error: the copy of {table.name} is not complete; nothing was written")
    return counts


def main(source: str, target: str) -> None:
    if not Path(source).is_file():
        sys.exit(f"error: {source} is not a file")
    url = sa.make_url(target)
    if url.get_backend_name() != "postgresql":
        sys.exit("error: the target must be postgresql://USER:PASSWORD@HOST/DATABASE")
    # Read as it is, also what is still in the write-ahead log, and never written.
    old = sa.create_engine(f"sqlite:///file:{Path(source).absolute()}?mode=ro&uri=true")
    new = sa.create_engine(url.set(drivername="postgresql+psycopg"))
    try:
        with old.connect() as reading, new.begin() as writing:
            counts = copy(reading, writing)
    except (sa.exc.SQLAlchemyError, GatehouseError) as error:
        sys.exit(f"error: {getattr(error, 'orig', None) or error}; nothing was written")
    finally:
        old.dispose()
        new.dispose()
    print("\n".join(f"{name}: {count}" for name, count in counts.items() if count))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python scripts/copy_store.py SQLITE_FILE POSTGRESQL_URL")
    main(*sys.argv[1:])
