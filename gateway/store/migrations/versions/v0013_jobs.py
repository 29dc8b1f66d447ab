"""Jobs of operators, and their schedules."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "jobs",
        _required("id", _text(64)),
        _required("tenant", _text(255)),
        _required("kind", sa.String(32)),
        _required("state", sa.String(16)),
        _required("replica", sa.Text),
        _required("schedule", _text(255)),
        *(_required(name, sa.Double) for name in ("created", "due")),
        _required("attempts", sa.Integer),
        _required("cancels", sa.Boolean),
        _required("holder", sa.Text),
        _required("fence", sa.BigInteger),
        _required("leased", sa.Double),
        _required("told", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "job_schedules",
        _required("tenant", _text(255)),
        _required("name", _text(255)),
        _required("next", sa.Double),
        _required("created", sa.Double),
        _required("told", sa.JSON),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_job_schedules"),
    )
    op.create_index("ix_job_schedules_next", "job_schedules", ["next"])
