"""What a start does about the schema, and what it does not load for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from gateway.core.errors import ConfigError
from gateway.store import key_rows
from gateway.store.migrate import HEAD, migrate, revisions
from gateway.store.tables import keys
from gateway.store.upgrade import settings

AGAIN = """
import sys
import sqlalchemy as sa
from gateway.store.migrate import migrate
with sa.create_engine(sys.argv[1]).begin() as connection:
    migrate(connection)
print("alembic" in sys.modules)
"""


def test_an_empty_database_becomes_the_newest_and_stays_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        assert revisions(connection) == set()
        migrate(connection)
        assert revisions(connection) == {HEAD}
    engine.dispose()
    loaded = subprocess.run([sys.executable, "-c", AGAIN, url], capture_output=True, text=True, check=True, timeout=120)
    assert loaded.stdout.strip() == "False"


def test_a_database_of_a_newer_gatehouse_is_refused(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with engine.begin() as connection, pytest.raises(ConfigError, match=r"newer Gatehouse .*9999"):
        migrate(connection)
    engine.dispose()


def test_a_key_that_an_earlier_version_replaced_stays_as_it_was(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    with engine.begin() as connection:
        command.upgrade(settings(connection), "0002")
        lists: dict[str, list[str]] = {name: [] for name in ("models", "operations", "cidrs", "limits", "roles")}
        times = {"created": 1.0, "updated": 1.0, "overlap_until": 5.0}
        texts = {"tenant": "t", "prefix": "gh_", "priority": "standard", "description": "", "actor": "x", "version": 1}
        row = {"id": "k", "fingerprint": b"f" * 32, "rotated_to": "k2", **lists, **times, **texts}
        connection.execute(sa.insert(keys).values(row))
    with engine.begin() as connection:
        migrate(connection)
        assert revisions(connection) == {HEAD}
        found = key_rows.find(connection, [b"f" * 32]).get(b"f" * 32)
    engine.dispose()
    assert found is not None and (found.rotated_to, found.ends()) == ("k2", 5.0)
    assert (found.state(4.0), found.state(5.0)) == ("active", "rotated")
