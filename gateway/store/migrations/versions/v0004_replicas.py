"""Replicas that share the store, and leases for the jobs that one of them does for all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
    op.create_table(
        "replicas",
        sa.Column("id", name, nullable=False),
        sa.Column("incarnation", name, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("admin", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("skew", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", "incarnation", name="pk_replicas"),
    )
    op.create_table(
        "leases",
        sa.Column("name", name, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("done", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
