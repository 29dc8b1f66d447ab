"""When a replica last said that it has a model file."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("model_copies", sa.Column("seen", sa.Double, nullable=False, server_default="0"))
    copies = sa.table("model_copies", sa.column("seen"))
    op.execute(copies.update().values(seen=time.time()))
