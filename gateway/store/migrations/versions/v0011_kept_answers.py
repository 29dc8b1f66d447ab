"""Answers of the Responses API that are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "kept_answers",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("tenant", _text(255), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kept_answers"),
    )
    op.create_index("ix_kept_answers_expires", "kept_answers", ["expires"])
    op.create_index("ix_kept_answers_tenant_expires", "kept_answers", ["tenant", "expires"])
