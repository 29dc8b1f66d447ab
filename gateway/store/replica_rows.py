"""Statements on the table of replicas. Moments are the database's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from gateway.core.storage import ReplicaRecord, Roll
from gateway.store.tables import replicas

GONE_SECONDS = 86400.0
"""A replica that was not seen for so long is forgotten."""
MEASUREMENTS = 3
QUICK_SECONDS = 1.0
"""An answer within so long tells the difference of the clocks well enough."""
_TOLD = ("host", "data", "admin", "version", "workers", "skew")
_HERE = sa.and_(replicas.c.id == sa.bindparam("the_id"), replicas.c.incarnation == sa.bindparam("the_incarnation"))
_SELECT = sa.select(replicas).order_by(replicas.c.id, replicas.c.started, replicas.c.incarnation)
_UPDATE = sa.update(replicas).where(_HERE)
_INSERT = sa.insert(replicas)
_DELETE = sa.delete(replicas).where(_HERE)


def beat(
    connection: sa.Connection, clock: Callable[[sa.Connection], float], wall: Callable[[], float], told: ReplicaRecord, stale: float
) -> Roll:
    """Notes that this process serves, with the difference of its clock `wall` to the database's, and returns who serves.

    Earlier processes of the same id that were not seen for `stale` seconds are forgotten: this one took their place.
    """
    now, skew = _measured(connection, clock, wall)
    told = replace(told, skew=skew)
    values: dict[str, Any] = {name: getattr(told, name) for name in _TOLD}
    here = {"the_id": told.id, "the_incarnation": told.incarnation}
    if connection.execute(_UPDATE, {**here, **values, "seen": now}).rowcount == 0:
        connection.execute(_INSERT, {"id": told.id, "incarnation": told.incarnation, **values, "started": now, "seen": now})
    others = replicas.c.incarnation != told.incarnation
    connection.execute(sa.delete(replicas).where(replicas.c.id == told.id, others, replicas.c.seen < now - stale))
    return Roll(now, _all(connection))


def _measured(connection: sa.Connection, clock: Callable[[sa.Connection], float], wall: Callable[[], float]) -> tuple[float, float]:
    """The database's time, and by how many seconds `wall` is ahead of it.

    The difference is off by up to half of the time that the answer took, so it is that of the quickest of a few answers where one was slow:
    a process that stood still meanwhile has no wrong clock.
    """
    skew, shortest = 0.0, math.inf
    for _ in range(MEASUREMENTS):
        before = wall()
        now = clock(connection)
        after = wall()
        if (took := abs(after - before)) < shortest:
            skew, shortest = (before + after) / 2 - now, took
        if shortest <= QUICK_SECONDS:
            break
    return now, skew


def _all(connection: sa.Connection) -> tuple[ReplicaRecord, ...]:
    return tuple(ReplicaRecord(**row._mapping) for row in connection.execute(_SELECT))


def roll(connection: sa.Connection, clock: Callable[[sa.Connection], float]) -> Roll:
    return Roll(clock(connection), _all(connection))


def leave(connection: sa.Connection, id: str, incarnation: str) -> None:
    """The process has ended in order."""
    connection.execute(_DELETE, {"the_id": id, "the_incarnation": incarnation})


def prune(connection: sa.Connection, now: float) -> None:
    """Forgets replicas that were not seen for GONE_SECONDS."""
    connection.execute(sa.delete(replicas).where(replicas.c.seen < now - GONE_SECONDS))
