"""Data keys of the audit log's encryption."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit_keys",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("tenant", _text(255), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("master", sa.String(64), nullable=False),
        sa.Column("wrapped", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_audit_keys"),
        sa.UniqueConstraint("tenant", "version", name="uq_audit_keys_tenant_version"),
    )
