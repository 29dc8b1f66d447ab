"""The admin API below /config. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.config import ConfigApplied, ConfigView, HistoryEntry, HistoryList, HistoryView, RolledBack


class AsyncConfigApi:
    """Operations below /config."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> ConfigView:
        """Show the configuration in force. Needs the permission `config:read`."""
        return await self._connection.json(Call("GET", "/config"))

    async def replace(
        self, content: str | bytes, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> ConfigApplied:
        """Put another configuration into force. Needs the permission `config:apply`."""
        return await self._connection.json(
            Call(
                "PUT",
                "/config",
                query={"dry_run": dry_run or None, "wait": wait},
                content=content,
                media="application/yaml",
                headers={"If-Match": if_match},
            )
        )

    async def reload(self, *, wait: float | None = None) -> ConfigApplied:
        """Read the configuration file again. Needs the permission `config:reload`."""
        return await self._connection.json(Call("POST", "/config/reload", query={"wait": wait}))

    async def history(self, *, limit: int | None = None, cursor: str | None = None) -> HistoryList:
        """List the configurations that were in force. Needs the permission `config:read`."""
        return await self._connection.json(Call("GET", "/config/history", query={"limit": limit, "cursor": cursor}))

    async def iterate_history(self, *, limit: int | None = None) -> AsyncIterator[HistoryView]:
        """All of `history`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.history(limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def get_history(self, number: str) -> HistoryEntry:
        """Show one of them, and what it changed. Needs the permission `config:read`."""
        return await self._connection.json(Call("GET", f"/config/history/{segment(number)}"))

    async def history_rollback(
        self, number: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> RolledBack:
        """Go back to one of them. Needs the permission `config:apply`."""
        return await self._connection.json(
            Call(
                "POST",
                f"/config/history/{segment(number)}/rollback",
                query={"dry_run": dry_run or None, "wait": wait},
                headers={"If-Match": if_match},
            )
        )
