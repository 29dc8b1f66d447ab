"""Model files that replicas share, and who has them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _required(name: str, type_: Any) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "shared_models",
        _required("name", _text(255)),
        _required("revision", sa.BigInteger),
        _required("digest", sa.String(64)),
        _required("files", sa.JSON),
        _required("removed", sa.Boolean),
        _required("changed", sa.Double),
        sa.PrimaryKeyConstraint("name", name="pk_shared_models"),
    )
    op.create_table(
        "model_copies",
        _required("name", _text(255)),
        _required("replica", _text(255)),
        _required("digest", sa.String(64)),
        _required("address", sa.Text),
        sa.PrimaryKeyConstraint("name", "replica", name="pk_model_copies"),
    )
