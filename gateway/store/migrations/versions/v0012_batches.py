"""Files of clients, and batches."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "files",
        _required("id", _text(64)),
        _required("tenant", _text(255)),
        *(_required(name, sa.Text) for name in ("owner", "name")),
        _required("purpose", sa.String(32)),
        _required("size", sa.BigInteger),
        _required("key", sa.String(64)),
        _required("created", sa.Double),
        _required("expires", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_id", "files", ["tenant", "id"])
    op.create_index("ix_files_expires", "files", ["expires"])
    op.create_table(
        "batches",
        _required("id", _text(64)),
        _required("tenant", _text(255)),
        _required("state", sa.String(16)),
        _required("input", sa.String(64)),
        _required("created", sa.Double),
        _required("expires", sa.Double),
        _required("cancels", sa.Boolean),
        _required("holder", sa.Text),
        _required("fence", sa.BigInteger),
        _required("leased", sa.Double),
        *(_required(name, sa.BigInteger) for name in ("total", "completed", "failed", "repeated", "unknown")),
        _required("told", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_tenant_id", "batches", ["tenant", "id"])
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_table(
        "batch_lines",
        _required("batch", _text(64)),
        _required("number", sa.Integer),
        _required("attempt", sa.Integer),
        _required("state", sa.String(16)),
        sa.Column("sealed", sa.LargeBinary),
        sa.PrimaryKeyConstraint("batch", "number", name="pk_batch_lines"),
    )
