"""Answers that wait for a person's decision."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "approvals",
        _required("id", _text(64)),
        _required("tenant", _text(255)),
        _required("principal", sa.String(64)),
        _required("state", sa.String(16)),
        _required("form", sa.String(16)),
        *(_required(name, sa.Text) for name in ("guardrail", "model", "operation", "request_id")),
        _required("requester", sa.JSON),
        _required("request", sa.String(64)),
        _required("tools", sa.JSON),
        _required("approvers", sa.JSON),
        _required("created", sa.Double),
        _required("expires", sa.Double),
        sa.Column("decided", sa.Double),
        _required("decider", sa.Text),
        _required("reason", sa.Text),
        _required("proof", sa.String(64)),
        sa.Column("used", sa.Double),
        _required("size", sa.BigInteger),
        sa.Column("sealed", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_tenant_id", "approvals", ["tenant", "id"])
    op.create_index("ix_approvals_principal_state", "approvals", ["principal", "state"])
    op.create_index("ix_approvals_expires", "approvals", ["expires"])
