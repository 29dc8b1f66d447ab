"""What is left of a tenant, a user or a key that is deleted. A name may be given again, and whoever gets it must find nothing of others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from gateway.core.batches import OVER
from gateway.core.conversations import owner
from gateway.core.errors import VersionMismatch
from gateway.core.jobs import OVER as JOB_OVER
from gateway.store import gone, kept_answers, rows
from gateway.store.approvals import OPEN
from gateway.store.batches import cancel_all
from gateway.store.rows import Transaction
from gateway.store.tables import approvals, batches, files, job_schedules, jobs, resources

CAPTURES: Final = "captures"
"""The kind of resources that are debug captures, each named by its key."""

_MANY: Final = 500
"""Names in one statement."""
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
    """Erases the responses that are kept for a user or a credential (gateway.core.conversations.owner); approvals that are open expire, and
    the batches of a user's logins are cancelled. Those of a key end with it (gateway.app.batches.creators)."""
    gone.note(tx.connection, tx.now, tenant, owner(kind, id))
    kept_answers.erased(tx.connection, tenant, owner(kind, id))
    found = tx.connection.execute(sa.select(approvals.c.id, approvals.c.requester).where(*_of(approvals, OPEN, tenant, id))).all()
    theirs = [row.id for row in found if _is(row.requester, kind, id)]
    for start in range(0, len(theirs), _MANY):
        here = approvals.c.id.in_(theirs[start : start + _MANY])
        tx.connection.execute(sa.update(approvals).where(here, approvals.c.expires > tx.now).values(expires=tx.now))
    if kind == "user":
        cancel_all(tx.connection, tx.now, tenant, lambda creator: creator.kind != "api_key" and creator.user == id)


def _of(table: sa.Table, states: Sequence[str], tenant: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Rows of approvals in these states that may be of a caller with this name."""
    quoted = sa.cast(table.c.requester, sa.Text).contains(json.dumps(name), autoescape=True)
    return table.c.tenant == tenant, table.c.state.in_(states), quoted


def _is(requester: Mapping[str, Any], kind: str, id: str) -> bool:
    user = requester.get("user", "")
    return bool(user == id) if kind == "user" else (requester.get("kind"), requester.get("id"), user) == (kind, id, "")


def end_capture(tx: Transaction, key: str) -> None:
    """Ends the debug capture of a key that is deleted: the next key of its id may be another tenant's."""
    if tx.connection.execute(sa.delete(resources).where(resources.c.kind == CAPTURES, resources.c.name == key)).rowcount:
        tx.changed(CAPTURES, key, "deleted")
