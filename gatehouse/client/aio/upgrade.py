"""The admin API below /upgrade. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.upgrade import UpgradeView


class AsyncUpgradeApi:
    """Operations below /upgrade."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> UpgradeView:
        """Show how the upgrade of the program stands. Needs the permission `upgrade:read`."""
        return await self._connection.json(Call("GET", "/upgrade"))

    async def create(self, *, wait: float | None = None, dry_run: bool = False) -> UpgradeView:
        """Replace the running program, and its workers one by one. Needs the permission `upgrade:begin`."""
        return await self._connection.json(Call("POST", "/upgrade", query={"dry_run": dry_run or None, "wait": wait}))
