"""The admin API below /status. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.status import Status


class AsyncStatusApi:
    """Operations below /status."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> Status:
        """Show the installation at a glance. Needs the permission `status:read`."""
        return await self._connection.json(Call("GET", "/status"))
