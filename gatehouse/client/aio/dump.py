"""The admin API below /dump. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.dump import Dump


class AsyncDumpApi:
    """Operations below /dump."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, *, kinds: str | None = None) -> Dump:
        """Show everything that is decided in the store. Needs the permission `resources:dump`."""
        return await self._connection.json(Call("GET", "/dump", query={"kinds": kinds}))
