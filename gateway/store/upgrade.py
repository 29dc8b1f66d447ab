"""Alembic's part of a migration. Alembic is imported where there is something to migrate: it takes 10 MiB and 0.1 s, and almost no start
needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gateway.core.errors import ConfigError

if TYPE_CHECKING:
    from alembic.config import Config


def settings(connection: sa.Connection | None = None) -> Config:
    """Alembic's settings; the connection reaches migrations/env.py as an attribute."""
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: sa.Connection) -> None:
    """Runs the revisions that the database lacks. Raises ConfigError when it has one that is not known here."""
    from alembic import command  # noqa: PLC0415 - see above

    refuse_newer(connection)
    command.upgrade(settings(connection), "head")


def refuse_newer(connection: sa.Connection) -> None:
    """Raises ConfigError when the database has a revision that is not known here."""
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    known = {script.revision for script in ScriptDirectory.from_config(settings(connection)).walk_revisions()}
    current = set(MigrationContext.configure(connection).get_current_heads())
    if not current <= known:
        newer = ", ".join(sorted(current - known))
        raise ConfigError(
            f"the store's schema is of a newer Gatehouse (revision {newer}); this one cannot use it: start that release, or restore a "
            "backup from before the upgrade",
            path="store.url",
        )
