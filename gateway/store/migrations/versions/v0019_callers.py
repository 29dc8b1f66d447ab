"""Whom files and batches belong to within their tenant. Nobody, for those that are there already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("files", "batches"):
        # The default stays: a gateway of the version before that still serves does not name the column.
        op.add_column(table, sa.Column("caller", sa.Text, nullable=False, server_default=""))
