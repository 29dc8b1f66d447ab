"""The store's calls about replicas, and about the leases under which one of them works for all. gateway.core.storage says what they do."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from gateway.core.clock import Clock
from gateway.core.storage import Lease, LeaseRoll, ReplicaRecord, Roll
from gateway.store import leases, replica_rows, rows
from gateway.store.database import Database


class ReplicaTables:
    """Part of gateway.store.store.Store."""

    _database: Database
    _now: Callable[[sa.Connection], float]
    _clock: Clock

    async def beat(self, told: ReplicaRecord, *, stale: float) -> Roll:
        wall = self._clock.wall
        return await self._database.run(lambda connection: replica_rows.beat(connection, self._now, wall, told, stale), write=True)

    async def leave(self, id: str, incarnation: str) -> None:
        await self._database.run(lambda connection: replica_rows.leave(connection, id, incarnation), write=True)

    async def roll(self) -> Roll:
        return await self._database.run(lambda connection: replica_rows.roll(connection, self._now))

    async def leases(self) -> LeaseRoll:
        return await self._database.run(lambda connection: LeaseRoll(self._now(connection), leases.every(connection)))

    async def take_lease(self, name: str, holder: str, seconds: float, *, period: float = 0.0) -> Lease | None:
        return await self._database.run(
            lambda connection: leases.take(connection, self._now, rows.name(name, "lease"), rows.text(holder, "holder"), seconds, period),
            write=True,
        )

    async def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        return await self._database.run(lambda connection: leases.renew(connection, self._now, lease, seconds), write=True)

    async def finish_lease(self, lease: Lease, *, done: bool) -> None:
        await self._database.run(lambda connection: leases.finish(connection, self._now, lease, done), write=True)
