"""The admin API below /endpoints. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.endpoints import EndpointList
from gatehouse.client.types.status import EndpointView


class AsyncEndpointsApi:
    """Operations below /endpoints."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int | None = None, cursor: str | None = None) -> EndpointList:
        """List endpoints. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", "/endpoints", query={"limit": limit, "cursor": cursor}))

    async def iterate(self, *, limit: int | None = None) -> AsyncIterator[EndpointView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def get(self, name: str) -> EndpointView:
        """Show an endpoint. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", f"/endpoints/{segment(name)}"))
