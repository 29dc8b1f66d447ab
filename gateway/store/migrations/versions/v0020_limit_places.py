"""An index for the pages of a limit's counters, in their order: each page sorted all of them. PostgreSQL has the beginning of a scope in it
as the entries of its indexes are bounded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_limit_windows_prefix", "limit_windows", ["limit_name", sa.text('"left"(scope, 200) COLLATE "C"')])
    else:
        op.create_index("ix_limit_windows_place", "limit_windows", ["limit_name", "scope", "amount"])
    op.drop_index("ix_limit_windows_limit_name", "limit_windows")
