"""The admin API below /log-levels. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.log_levels import LogLevelDryRun, LogLevelSettings, LogLevelView


class AsyncLogLevelsApi:
    """Operations below /log-levels."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> LogLevelView:
        """Show the levels of the log. Needs the permission `logs:read`."""
        return await self._connection.json(Call("GET", "/log-levels"))

    @overload
    async def replace(self, body: LogLevelSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> LogLevelView: ...
    @overload
    async def replace(self, body: LogLevelSettings, *, wait: float | None = None, dry_run: Literal[True]) -> LogLevelDryRun: ...
    async def replace(self, body: LogLevelSettings, *, wait: float | None = None, dry_run: bool = False) -> LogLevelView | LogLevelDryRun:
        """Change the levels of the log for a while. Needs the permission `logs:update`."""
        return await self._connection.json(Call("PUT", "/log-levels", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    async def delete(self, *, wait: float | None = None, dry_run: Literal[False] = False) -> LogLevelView: ...
    @overload
    async def delete(self, *, wait: float | None = None, dry_run: Literal[True]) -> LogLevelDryRun: ...
    async def delete(self, *, wait: float | None = None, dry_run: bool = False) -> LogLevelView | LogLevelDryRun:
        """Restore the configured levels of the log. Needs the permission `logs:update`."""
        return await self._connection.json(Call("DELETE", "/log-levels", query={"dry_run": dry_run or None, "wait": wait}))
