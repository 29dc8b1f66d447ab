"""The store's calls about usage. gateway.core.usage_storage says what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.ledger import EngineRow, Position, SessionAndEngineCounts, SessionRow, UsageRow
from gateway.store import session_and_engine_rows, usage_rows
from gateway.store.database import Database


class UsageTables:
    """Implements gateway.core.usage_storage.UsageStorage."""

    _database: Database

    async def add_usage(
        self,
        rows: Sequence[UsageRow],
        before: Position | None = None,
        after: Position | None = None,
        others: SessionAndEngineCounts | None = None,
    ) -> bool:
        added = tuple(rows)
        return await self._database.run(lambda connection: usage_rows.add(connection, added, before, after, others), write=True)

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
        return await self._database.run(lambda connection: session_and_engine_rows.engines(connection, since, until))

    async def usage_of_sessions(
        self,
        *,
        since: str = "",
        until: str = "9999-12-31",
        tenant: str | Sequence[str] | None = None,
        session: str | None = None,
        limit: int = 1000,
    ) -> Sequence[SessionRow]:
        return await self._database.run(
            lambda connection: session_and_engine_rows.sessions(connection, since, until, tenant, session, limit)
        )

    async def forget_sessions(self, before: str, most: int) -> int:
        return await self._database.run(lambda connection: session_and_engine_rows.forget(connection, before, most), write=True)
