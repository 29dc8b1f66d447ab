"""Alembic's part of a migration: imported only where there is something to migrate."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from gateway.core.errors import ConfigError


def settings(connection: sa.Connection | None = None) -> Config:
    """Alembic's settings; the connection reaches migrations/env.py as an attribute."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: sa.Connection) -> None:
    """Runs the revisions that the database lacks. Raises ConfigError when it has one that is not known here."""
    config = settings(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = set(MigrationContext.configure(connection).get_current_heads())
    if not current <= known:
        raise ConfigError(
            f"the store's schema is of a newer Gatehouse (revision {', '.join(sorted(current - known))}); this one cannot use it",
            path="store.url",
        )
    command.upgrade(config, "head")
