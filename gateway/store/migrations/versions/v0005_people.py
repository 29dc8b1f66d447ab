"""Users: their logins, and their own keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
    op.create_table(
        "logins",
        sa.Column("id", name, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("roles", sa.JSON, nullable=False),
        sa.Column("first", sa.Double, nullable=False),
        sa.Column("last", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_logins"),
    )
    op.add_column("keys", sa.Column("user", sa.Text, nullable=False, server_default=""))
    op.add_column("keys", sa.Column("issued", sa.Double))
    op.create_index("ix_keys_tenant_user", "keys", ["tenant", "user"])
