"""Usage of sessions and of engines, and the queue of webhooks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _columns(type_: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False) for name in names]


def upgrade() -> None:
    op.create_table(
        "usage_sessions",
        *_columns(sa.String(10), "day"),
        *_columns(_text(255), "tenant", "session"),
        *_columns(_text(64), "currency"),
        *_columns(sa.Text, "key", "user", "agent"),
        *_columns(sa.Double, "last"),
        *_columns(sa.BigInteger, "requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost", "unknown"),
        sa.PrimaryKeyConstraint("day", "tenant", "session", "currency", name="pk_usage_sessions"),
    )
    op.create_index("ix_usage_sessions_last", "usage_sessions", ["last"])
    op.create_table(
        "usage_engines",
        *_columns(sa.String(10), "day"),
        *_columns(_text(255), "engine"),
        *_columns(sa.BigInteger, "requests", "prefill_us", "decode_us"),
        sa.PrimaryKeyConstraint("day", "engine", name="pk_usage_engines"),
    )
    op.create_table(
        "deliveries",
        *_columns(sa.String(64), "id"),
        *_columns(sa.Text, "webhook", "event", "body"),
        *_columns(sa.Double, "created", "due", "keep"),
        *_columns(sa.Integer, "attempts"),
        *_columns(sa.String(16), "status"),
        *_columns(sa.Integer, "code"),
        *_columns(sa.Text, "error"),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_created", "deliveries", ["created"])
    op.create_index("ix_deliveries_status_due", "deliveries", ["status", "due"])
