"""Indexes that say by themselves how much is kept, so that no table is read for it every few seconds, and approvals by their state."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_approvals_state_id", "approvals", ["state", "id"])
    op.create_index("ix_approvals_expires_size", "approvals", ["expires", "size"])
    op.drop_index("ix_approvals_expires", "approvals")
    op.create_index("ix_kept_answers_tenant_expires_size", "kept_answers", ["tenant", "expires", "size"])
    op.drop_index("ix_kept_answers_tenant_expires", "kept_answers")
