"""Former secrets: a rotated key keeps its id, and its old secrets are accepted for a while beside the new one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
    op.create_table(
        "former_secrets",
        sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
        sa.Column("key", name, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_former_secrets"),
    )
    op.create_index("ix_former_secrets_key", "former_secrets", ["key"])
    op.create_index("ix_former_secrets_until", "former_secrets", ["until"])
