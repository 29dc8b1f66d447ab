"""Counters of limits that last: budgets, and rates over more than a minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limit_windows",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("limit_name", sa.Text, nullable=False),
        sa.Column("amount", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_limit_windows"),
    )
    op.create_index("ix_limit_windows_limit_name", "limit_windows", ["limit_name"])
    op.create_index("ix_limit_windows_expires", "limit_windows", ["expires"])
