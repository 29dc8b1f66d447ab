"""The admin API below /endpoints. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.endpoints import EndpointList
from gatehouse.client.types.status import EndpointView


class AsyncEndpointsApi:
    """Operations below /endpoints."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> EndpointList:
        """List endpoints. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", "/endpoints"))

    async def get(self, name: str) -> EndpointView:
        """Show an endpoint. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", f"/endpoints/{segment(name)}"))
