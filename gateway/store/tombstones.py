"""Tombstones: rows that say that a tenant, a user or a key was deleted, kept for as long as a request of theirs may still be under way.
What such a request would store (an answer, a file, a batch) would have no owner, and the next owner of the name must not find it.

A tombstone is a row in the table of resources, of a kind that no list shows. A deletion writes the tombstone and then erases; a transaction
that stores something for a caller looks for tombstones first. On PostgreSQL a lock per tenant makes one of the two wait for the other's
commit, so either the deletion sees what was stored, or the other one sees the tombstone. SQLite has one writer at a time.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Final

import msgspec
import sqlalchemy as sa

from gateway.core.errors import PermissionDenied
from gateway.core.slices import portions
from gateway.store import rows
from gateway.store.tables import resources

KIND: Final = "gone"
KEPT_SECONDS: Final = 7 * 86400.0
"""Longer than any request lasts."""
MARGIN_SECONDS: Final = 2.0
"""Another replica may know a deleted credential for so long: changes reach it within a second."""
_INSERT: Final = sa.insert(resources)
_THESE: Final = sa.and_(resources.c.kind == KIND, resources.c.name.in_(sa.bindparam("names", expanding=True)))
_DELETE: Final = sa.delete(resources).where(_THESE)
_LATER: Final = sa.select(resources.c.name).where(_THESE, resources.c.created > sa.bindparam("since")).limit(1)
_OLD: Final = sa.delete(resources).where(resources.c.kind == KIND, resources.c.created < sa.bindparam("before"))
_EACH_ALONE: Final = sa.text(
    "SELECT pg_advisory_xact_lock(hashtextextended(what, 1)) FROM unnest(CAST(:whats AS text[])) WITH ORDINALITY AS one (what, place)"
)
_BESIDE: Final = sa.text("SELECT pg_advisory_xact_lock_shared(hashtextextended(:what, 1))")


def note(connection: sa.Connection, now: float, *whom: tuple[str, str]) -> None:
    """Writes tombstones; to be called before the data is erased. whom: tenant and owner (gateway.core.conversations.owner) of each, without
    repetitions; the owner is "" for the tenant as a whole."""
    if connection.dialect.name == "postgresql":
        whats = [_what(tenant) for tenant in sorted({tenant for tenant, _ in whom})]  # in one order, so that nobody waits in a circle
        connection.execute(_EACH_ALONE, {"whats": whats})
    fixed = {"kind": KIND, "version": 1, "body": {}, "created": now, "updated": now, "actor": ""}
    noted = [{**fixed, "name": _name(tenant, owner), "tenant": tenant} for tenant, owner in whom]
    for some in portions(noted, rows.MANY):
        connection.execute(_DELETE, {"names": [row["name"] for row in some]})
        connection.execute(_INSERT, some)


def check(connection: sa.Connection, now: float, began: float, tenant: str, owner: str = "") -> None:
    """To be called before a request stores something. began: when the request began, by time.perf_counter of this machine. Raises
    PermissionDenied if the tenant or the owner was deleted since then, or up to MARGIN_SECONDS before."""
    if connection.dialect.name == "postgresql":
        connection.execute(_BESIDE, {"what": _what(tenant)})
    names = [_name(tenant, ""), _name(tenant, owner)] if owner else [_name(tenant, "")]
    since = now - max(0.0, time.perf_counter() - began) - MARGIN_SECONDS
    if connection.execute(_LATER, {"names": names, "since": since}).first() is not None:
        raise PermissionDenied(
            "Nothing is kept for this request: whoever sent it, or the tenant, was deleted while it was under way or just before.",
            code="caller_deleted",
        )


def later(connection: sa.Connection, tenant: str, owner: str, since: float) -> bool:
    """Whether the owner, or the tenant, was deleted after this moment, at most KEPT_SECONDS ago."""
    names = [_name(tenant, ""), _name(tenant, owner)]
    return connection.execute(_LATER, {"names": names, "since": since}).first() is not None


def prune(connection: sa.Connection, now: float) -> None:
    connection.execute(_OLD, {"before": now - KEPT_SECONDS})


def _what(tenant: str) -> str:
    return f"what is kept for {tenant}"


def _name(tenant: str, owner: str) -> str:
    return sha256(msgspec.json.encode([tenant, owner])).hexdigest()
