"""The admin API below /whoami. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.whoami import StatusCaller


class AsyncWhoamiApi:
    """Operations below /whoami."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> StatusCaller:
        """Show what the credential may do. Needs the permission `roles:read`."""
        return await self._connection.json(Call("GET", "/whoami"))
