"""What is left of a tenant, a user or a key that is deleted. A name may be given again, and whoever gets it must find nothing of others."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from gateway.core.batches import OVER
from gateway.core.conversations import owner
from gateway.core.errors import VersionMismatch
from gateway.core.jobs import OVER as JOB_OVER
from gateway.store import gone, kept_answers, rows
from gateway.store.rows import Transaction
from gateway.store.tables import approvals, batches, files, job_schedules, jobs, resources

CAPTURES: Final = "captures"
"""The kind of resources that are debug captures, each named by its key."""

_LEFT: Final[tuple[tuple[str, sa.Column[str], sa.ColumnElement[bool], str], ...]] = (
    ("files", files.c.id, sa.true(), "delete them"),
    ("schedules", job_schedules.c.name, sa.true(), "delete them"),
    ("jobs", jobs.c.id, jobs.c.state.not_in(JOB_OVER), "cancel them, or wait for their end,"),
)
"""What, its name, which of it, and what is to be done, each with a permission of its own. The input of a batch that is not over is a file
that cannot be deleted."""


def unused(connection: sa.Connection, tenant: str) -> None:
    """Raises VersionMismatch (409 `in_use`) for a tenant that still has something of this."""
    for what, name, which, do in _LEFT:
        rows.one_by_one(connection, f"{what} of {tenant}")
        found = connection.execute(sa.select(name).where(name.table.c.tenant == tenant, which).limit(1)).scalar()
        if found is not None:
            message = f"The tenant {tenant!r} still has {what}, {found!r} for one: {do} first."
            raise VersionMismatch(message, code="in_use", status=409, param="name")


def forget(tx: Transaction, tenant: str) -> None:
    """Erases what nobody but the tenant's callers could: kept responses, batches and jobs that are over, approvals."""
    connection = tx.connection
    gone.note(connection, tx.now, tenant)
    kept_answers.erased(connection, tenant)
    connection.execute(sa.delete(batches).where(batches.c.tenant == tenant, batches.c.state.in_(OVER)))
    connection.execute(sa.delete(jobs).where(jobs.c.tenant == tenant, jobs.c.state.in_(JOB_OVER)))
    connection.execute(sa.delete(approvals).where(approvals.c.tenant == tenant))


def forget_caller(tx: Transaction, tenant: str, kind: str, id: str) -> None:
    """Erases the responses that are kept for a user or a credential (gateway.core.conversations.owner)."""
    gone.note(tx.connection, tx.now, tenant, owner(kind, id))
    kept_answers.erased(tx.connection, tenant, owner(kind, id))


def end_capture(tx: Transaction, key: str) -> None:
    """Ends the debug capture of a key that is deleted: the next key of its id may be another tenant's."""
    if tx.connection.execute(sa.delete(resources).where(resources.c.kind == CAPTURES, resources.c.name == key)).rowcount:
        tx.changed(CAPTURES, key, "deleted")
