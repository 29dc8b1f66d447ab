"""Alembic's environment: runs on the connection that the store hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from gateway.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
