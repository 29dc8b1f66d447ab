"""The store's calls about deliveries of webhooks. gateway.core.deliveries says what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from gateway.core.deliveries import Delivery
from gateway.store import delivery_rows
from gateway.store.database import Database


class DeliveryTables:
    """Implements gateway.core.deliveries.DeliveryStorage."""

    _database: Database
    _now: Callable[[sa.Connection], float]

    async def add_deliveries(self, wanted: Sequence[Delivery], most: int) -> int:
        return await self._database.run(lambda connection: delivery_rows.add(connection, self._now(connection), wanted, most), write=True)

    async def take_deliveries(self, hold: float, farthest: float, most: int = 16) -> Sequence[Delivery]:
        def take(connection: sa.Connection) -> list[Delivery]:
            return delivery_rows.take(connection, self._now(connection), hold, farthest, most)

        return await self._database.run(take, write=True)

    async def settle_delivery(self, id: str, *, status: str, pause: float, code: int, error: str) -> None:
        def settle(connection: sa.Connection) -> None:
            delivery_rows.settle(connection, id, status, self._now(connection) + pause, code, error)

        await self._database.run(settle, write=True)

    async def deliveries(self, webhook: str | None = None, *, limit: int = 100) -> Sequence[Delivery]:
        return await self._database.run(lambda connection: delivery_rows.newest(connection, webhook, limit))

    async def forget_deliveries(self, age: float, most: int) -> int:
        def forget(connection: sa.Connection) -> int:
            return delivery_rows.forget(connection, self._now(connection) - age)

        gone = await self._database.run_in_portions(forget)
        last = await self._database.run(lambda connection: delivery_rows.beyond(connection, most))
        if last is None:
            return gone
        return gone + await self._database.run_in_portions(lambda connection: delivery_rows.forget_up_to(connection, *last))
