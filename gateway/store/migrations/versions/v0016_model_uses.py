"""Which models of the directory that replicas share each of them uses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_uses",
        sa.Column("replica", sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql"), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("uses", sa.JSON, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("replica", name="pk_model_uses"),
    )
