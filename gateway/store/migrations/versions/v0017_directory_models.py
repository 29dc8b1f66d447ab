"""What the models in the directory that replicas share consist of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "directory_models",
        sa.Column("path", sa.String(512).with_variant(sa.String(512, collation="C"), "postgresql"), nullable=False),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("earlier", sa.JSON),
        sa.Column("replica", sa.String(255), nullable=False),
        sa.Column("noted", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_directory_models"),
    )
