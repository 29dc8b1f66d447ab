"""Usage by user, agent and operation with its cost, summed from the audit logs up to a position. What was counted so far is kept."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


NAMES = ("day", "tenant", "key", "model", "user", "agent", "operation", "currency", "writer")
SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost", "unknown")


def upgrade() -> None:
    op.create_table(
        "usage",
        _required("day", sa.String(10)),
        *(_required(name, _text(255)) for name in NAMES[1:6]),
        *(_required(name, _text(64)) for name in NAMES[6:]),
        *(_required(name, sa.BigInteger) for name in SUMS),
        sa.PrimaryKeyConstraint(*NAMES, name="pk_usage"),
    )
    op.create_index("ix_usage_tenant_day", "usage", ["tenant", "day"])
    op.create_index("ix_usage_writer", "usage", ["writer"])
    op.create_table(
        "usage_positions",
        _required("writer", _text(64)),
        *(_required(name, sa.BigInteger) for name in ("segment", "offset", "seq")),
        _required("head", sa.String(64)),
        sa.PrimaryKeyConstraint("writer", name="pk_usage_positions"),
    )
    before = sa.table("usage_daily", *(sa.column(name) for name in (*NAMES[:4], *SUMS[:4])))
    after = sa.table("usage", *(sa.column(name) for name in (*NAMES, *SUMS)))
    known = [before.c[name] for name in (*NAMES[:4], *SUMS[:4])]
    columns = [*NAMES[:4], *SUMS[:4], *NAMES[4:], *SUMS[4:]]
    op.execute(
        sa.insert(after).from_select(columns, sa.select(*known, *(sa.literal("") for _ in NAMES[4:]), *(sa.literal(0) for _ in SUMS[4:])))
    )
    if op.get_bind().execute(sa.select(before.c.day).limit(1)).first() is not None:
        facts = sa.table("facts", sa.column("name"), sa.column("value"))
        op.execute(sa.insert(facts).values(name="usage_counted_from", value=repr(time.time())))
