"""What a start does about the schema, and what it does not load for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.core.errors import ConfigError
from gateway.store.migrate import HEAD, migrate, revisions

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
