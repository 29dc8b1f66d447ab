"""The first tables: resources, keys, usage, changes with their counter, idempotency keys."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _name() -> sa.types.TypeEngine[str]:
    return sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "resources",
        _required("kind", _name()),
        _required("name", _name()),
        _required("tenant", _name()),
        _required("version", sa.BigInteger),
        _required("body", sa.JSON),
        _required("created", sa.Double),
        _required("updated", sa.Double),
        _required("actor", sa.Text),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_resources"),
    )
    op.create_index("ix_resources_kind_tenant_name", "resources", ["kind", "tenant", "name"])
    _keys()
    op.create_table(
        "usage_daily",
        _required("day", sa.String(10)),
        _required("tenant", _name()),
        _required("key", _name()),
        _required("model", _name()),
        *(_required(name, sa.BigInteger) for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")),
        sa.PrimaryKeyConstraint("day", "tenant", "key", "model", name="pk_usage_daily"),
    )
    op.create_index("ix_usage_daily_tenant_day", "usage_daily", ["tenant", "day"])
    op.create_table(
        "changes",
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        _required("kind", sa.Text),
        _required("name", sa.Text),
        _required("action", sa.String(16)),
        _required("time", sa.Double),
        sa.PrimaryKeyConstraint("seq", name="pk_changes"),
    )
    counters = op.create_table(
        "counters",
        _required("name", sa.String(32)),
        _required("value", sa.BigInteger),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    op.bulk_insert(counters, [{"name": "changes", "value": 0}])
    op.create_table(
        "idempotency",
        _required("key", _name()),
        _required("actor", _name()),
        _required("route", _name()),
        _required("fingerprint", sa.Text),
        _required("status", sa.Integer),
        _required("body", sa.Text),
        _required("expires", sa.Double),
        sa.PrimaryKeyConstraint("key", "actor", "route", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_expires", "idempotency", ["expires"])


def _keys() -> None:
    op.create_table(
        "keys",
        _required("id", _name()),
        _required("tenant", _name()),
        _required("prefix", sa.String(16)),
        _required("fingerprint", sa.LargeBinary(32)),
        *(_required(name, sa.JSON) for name in ("models", "operations", "cidrs", "limits", "roles")),
        _required("priority", sa.String(16)),
        _required("description", sa.Text),
        sa.Column("expires", sa.Double),
        sa.Column("rotated_to", _name()),
        sa.Column("overlap_until", sa.Double),
        sa.Column("revoked", sa.Double),
        _required("version", sa.BigInteger),
        _required("created", sa.Double),
        _required("updated", sa.Double),
        _required("actor", sa.Text),
        sa.Column("last_used", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("fingerprint", name="uq_keys_fingerprint"),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant", "id"])
