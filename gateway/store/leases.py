"""Leases for jobs that one replica does for all: a name, its holder until a moment, and a number that fences off earlier holders.

Moments are the database's, never a replica's: clocks of replicas may differ by hours. The clock is read after the row is locked, because
waiting for a lock takes time too. A lease that expired can be taken by anyone and gets the next number (`fence`). A holder that was paused
in the meantime still believes that it holds it; `guard`, in the same transaction as what it writes, refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.errors import LeaseLost
from gateway.core.storage import Lease
from gateway.store.tables import leases

Clock = Callable[[sa.Connection], float]
_HERE = leases.c.name == sa.bindparam("the_name")
_LOCK = sa.select(leases).where(_HERE).with_for_update()
_UPDATE = sa.update(leases).where(_HERE)


def every(connection: sa.Connection) -> tuple[Lease, ...]:
    """All leases that were ever taken, by name."""
    return tuple(
        Lease(row.name, row.holder, row.fence, row.expires, row.done) for row in connection.execute(sa.select(leases).order_by("name"))
    )


def take(connection: sa.Connection, clock: Clock, name: str, holder: str, seconds: float, period: float = 0.0) -> Lease | None:
    """The lease for `seconds` from now on, or None: somebody else has it, or the job was finished less than `period` seconds ago.

    Whoever already holds it gets it again under a new number, as after a restart under the same name.
    """
    found = connection.execute(_LOCK, {"the_name": name}).first()
    if found is None:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        statement: Any = insert(leases).values(name=name, holder="", fence=0, expires=0.0, done=0.0)
        connection.execute(statement.on_conflict_do_nothing())  # another replica may insert it at the same moment
        found = connection.execute(_LOCK, {"the_name": name}).one()
    now = clock(connection)
    if (found.holder not in ("", holder) and found.expires > now) or now < found.done + period:
        return None
    taken = Lease(name, holder, found.fence + 1, now + seconds, found.done)
    connection.execute(_UPDATE, {"the_name": name, "holder": holder, "fence": taken.fence, "expires": taken.expires})
    return taken


def guard(connection: sa.Connection, lease: Lease) -> None:
    """Locks the lease until this transaction ends. Raises LeaseLost if it is not held any more.

    A lease that expired but that nobody else took is still good: nobody can take it before this transaction ends.
    """
    found = connection.execute(_LOCK, {"the_name": lease.name}).first()
    if found is None or (found.holder, found.fence) != (lease.holder, lease.fence):
        by = "nobody" if found is None or not found.holder else found.holder
        raise LeaseLost(f"The lease {lease.name!r} was taken over; {by} holds it now.")


def renew(connection: sa.Connection, clock: Clock, lease: Lease, seconds: float) -> Lease:
    """Extends it to `seconds` from now on. Raises LeaseLost."""
    guard(connection, lease)
    expires = clock(connection) + seconds
    connection.execute(_UPDATE, {"the_name": lease.name, "expires": expires})
    return Lease(lease.name, lease.holder, lease.fence, expires, lease.done)


def finish(connection: sa.Connection, clock: Clock, lease: Lease, done: bool) -> None:
    """Gives it back. done: the job was done, so it is not due again for its period. Raises LeaseLost."""
    guard(connection, lease)
    values: dict[str, Any] = {"holder": "", "expires": 0.0}
    if done:
        values["done"] = clock(connection)
    connection.execute(_UPDATE, {"the_name": lease.name, **values})
