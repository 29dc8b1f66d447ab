"""The store's calls about usage and about webhooks; gateway.store.store has all others. gateway.core.usage_storage and
gateway.core.deliveries say what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from gateway.core.deliveries import Delivery
from gateway.core.ledger import Beside, EngineRow, Position, SessionRow, UsageRow
from gateway.store import delivery_rows, usage_beside, usage_rows
from gateway.store.database import Database


class UsageTables:
    """Implements gateway.core.usage_storage.UsageStorage."""

    _database: Database

    async def add_usage(
        self, rows: Sequence[UsageRow], before: Position | None = None, after: Position | None = None, beside: Beside | None = None
    ) -> bool:
        added = tuple(rows)
        return await self._database.run(lambda connection: usage_rows.add(connection, added, before, after, beside), write=True)

    async def usage_positions(self) -> dict[str, Position]:
        return await self._database.run(usage_rows.positions)

    async def usage_counted_from(self) -> float:
        return await self._database.run(usage_rows.counted_from)

    async def usage_of_writers(self, writers: Sequence[str]) -> tuple[dict[str, Position], Sequence[UsageRow]]:
        return await self._database.run(lambda connection: usage_rows.of_writers(connection, writers))

    async def report_usage(
        self,
        group_by: Sequence[str] = ("tenant",),
        *,
        since: str = "",
        until: str = "9999-12-31",
        tenant: str | Sequence[str] | None = None,
        limit: int = 10000,
        after: Sequence[str] | None = None,
        **wanted: str | None,
    ) -> Sequence[dict[str, Any]]:
        return await self._database.run(
            lambda connection: usage_rows.report(connection, group_by, since, until, tenant, wanted, limit, after)
        )

    async def usage_of_engines(self, since: str, until: str) -> Sequence[EngineRow]:
        return await self._database.run(lambda connection: usage_beside.engines(connection, since, until))

    async def usage_of_sessions(
        self,
        *,
        since: str = "",
        until: str = "9999-12-31",
        tenant: str | Sequence[str] | None = None,
        session: str | None = None,
        limit: int = 1000,
    ) -> Sequence[SessionRow]:
        return await self._database.run(lambda connection: usage_beside.sessions(connection, since, until, tenant, session, limit))

    async def forget_sessions(self, before: str, most: int) -> int:
        return await self._database.run(lambda connection: usage_beside.forget(connection, before, most), write=True)


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

        def forget_oldest(connection: sa.Connection) -> int:
            return delivery_rows.forget_oldest(connection, left)

        gone = await self._database.run_in_portions(forget)
        left = await self._database.run(lambda connection: delivery_rows.beyond(connection, most))
        while left > 0 and (some := await self._database.run(forget_oldest, write=True)):
            gone, left = gone + some, left - some
        return gone
