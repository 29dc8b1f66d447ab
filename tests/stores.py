"""Stores that are migrated already. To migrate an empty database takes longer than most tests of a store, and always makes the same.

What an empty database becomes is tested in tests/unit/gateway/store/test_migrate.py and tests/contract/store/test_life.py.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from gateway.store.database import FILE, STORES, make_engine
from gateway.store.migrate import migrate


def migrated(directory: Path) -> Path:
    """Puts a migrated SQLite store with nothing in it into a state directory, unless that has one already. Returns the directory."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / FILE
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_file())
    return directory


@cache
def _file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        migrate_to_newest("sqlite", Path(name))
        assert not (Path(name) / f"{FILE}-wal").exists(), "all of it is in the file"
        return (Path(name) / FILE).read_bytes()


def migrate_to_newest(url: str, directory: Path) -> None:
    engine = make_engine(url, directory, 60.0, STORES)
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT 1"))
        migrate(connection)
    engine.dispose()
