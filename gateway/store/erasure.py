"""Erases what deleted tenants, users and keys leave behind: their names may be used again, and the next owner must find nothing of theirs.

One transaction may delete thousands, so each statement covers many of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from gateway.core.batches import OVER, Creator
from gateway.core.conversations import owner
from gateway.core.errors import VersionMismatch
from gateway.core.jobs import OVER as JOB_OVER
from gateway.core.slices import portions
from gateway.store import kept_answers, rows, tombstones
from gateway.store.approvals import OPEN
from gateway.store.batches import cancel_all
from gateway.store.files import disowned
from gateway.store.rows import Transaction
from gateway.store.tables import approvals, batches, files, job_schedules, jobs, resources

CAPTURES: Final = "captures"
"""The kind of resources that are debug captures, each named by its key."""

NAMED: Final = 20
"""Up to so many callers, the database looks for their names."""
_LEFT: Final[tuple[tuple[str, sa.Column[str], sa.ColumnElement[bool], str], ...]] = (
    ("files", files.c.id, sa.true(), "delete them"),
    ("schedules", job_schedules.c.name, sa.true(), "delete them"),
    ("jobs", jobs.c.id, jobs.c.state.not_in(JOB_OVER), "cancel them, or wait for their end,"),
)
"""What keeps a tenant from being deleted: its name, the column to show, which rows, and what the operator should do (each needs a
permission of its own). Batches need no row here: the input of one that is not over is a file that cannot be deleted."""


def unused(connection: sa.Connection, tenants: Sequence[str]) -> None:
    """Raises VersionMismatch (409 `in_use`) if one of these tenants still has files, schedules, or jobs that are not over."""
    for what, name, which, do in _LEFT:
        rows.all_one_by_one(connection, [f"{what} of {tenant}" for tenant in tenants])
        owner = name.table.c.tenant
        for some in portions(tenants, rows.MANY):
            found = connection.execute(sa.select(owner, name).where(owner.in_(some), which).limit(1)).first()
            if found is not None:
                message = f"The tenant {found[0]!r} still has {what}, {found[1]!r} for one: {do} first."
                raise VersionMismatch(message, code="in_use", status=409, param="name")


def forget(tx: Transaction, tenants: Sequence[str]) -> None:
    """Erases what only the tenants' own callers could delete: kept responses, batches and jobs that are over, approvals."""
    connection = tx.connection
    tombstones.note(connection, tx.now, *((tenant, "") for tenant in tenants))
    kept_answers.erased(connection, tenants)
    for some in portions(tenants, rows.MANY):
        connection.execute(sa.delete(batches).where(batches.c.tenant.in_(some), batches.c.state.in_(OVER)))
        connection.execute(sa.delete(jobs).where(jobs.c.tenant.in_(some), jobs.c.state.in_(JOB_OVER)))
        connection.execute(sa.delete(approvals).where(approvals.c.tenant.in_(some)))


def forget_callers(tx: Transaction, kind: str, callers: Sequence[tuple[str, str]]) -> None:
    """Erases the responses that are kept for users or credentials (gateway.core.conversations.owner) of a kind, given as tenant and name;
    approvals that are open expire, and the batches of users' logins are cancelled. Those of a key end with it
    (gateway.app.batches.creators). Their files and batches stay in the tenant, as nobody's."""
    of: dict[str, set[str]] = {}
    for tenant, id in callers:
        of.setdefault(tenant, set()).add(id)
    tombstones.note(tx.connection, tx.now, *((tenant, owner(kind, id)) for tenant, id in callers))
    owners = {tenant: [owner(kind, id) for id in ids] for tenant, ids in of.items()}
    kept_answers.erased_of(tx.connection, owners)
    disowned(tx.connection, owners)
    _expire_open(tx, kind, of)
    if kind == "user":
        for tenant, ids in of.items():
            cancel_all(tx.connection, tx.now, tenant, partial(_by_login, ids))


def _by_login(users: Collection[str], creator: Creator) -> bool:
    return creator.kind != "api_key" and creator.user in users


def _expire_open(tx: Transaction, kind: str, of: Mapping[str, Collection[str]]) -> None:
    """Approvals that wait for a decision about these callers, by tenant."""
    for some in portions(tuple(of), rows.MANY):
        waiting = sa.select(approvals.c.id, approvals.c.tenant, approvals.c.requester).where(
            approvals.c.tenant.in_(some), approvals.c.state.in_(OPEN)
        )
        names = [id for tenant in some for id in of[tenant]]
        if len(names) <= NAMED:
            requester = sa.cast(approvals.c.requester, sa.Text)
            waiting = waiting.where(sa.or_(*(requester.contains(json.dumps(name), autoescape=True) for name in names)))
        found = [row.id for row in tx.connection.execute(waiting) if _is_one(row.requester, kind, of[row.tenant])]
        for theirs in portions(found, rows.MANY):
            here = sa.and_(approvals.c.id.in_(theirs), approvals.c.expires > tx.now)
            tx.connection.execute(sa.update(approvals).where(here).values(expires=tx.now))


def _is_one(requester: Mapping[str, Any], kind: str, ids: Collection[str]) -> bool:
    user = requester.get("user", "")
    return user in ids if kind == "user" else requester.get("kind") == kind and requester.get("id") in ids and user == ""


def end_captures(tx: Transaction, keys: Sequence[str]) -> None:
    """Ends the debug captures of keys that are deleted: the next key of such an id may be another tenant's."""
    for some in portions(keys, rows.MANY):
        here = sa.and_(resources.c.kind == CAPTURES, resources.c.name.in_(some))
        for name in tx.connection.execute(sa.select(resources.c.name).where(here)).scalars().all():
            tx.connection.execute(sa.delete(resources).where(resources.c.kind == CAPTURES, resources.c.name == name))
            tx.changed(CAPTURES, name, "deleted")
