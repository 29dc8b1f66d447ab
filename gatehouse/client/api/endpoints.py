"""The admin API below /endpoints. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.endpoints import EndpointList
from gatehouse.client.types.status import EndpointView


class EndpointsApi:
    """Operations below /endpoints."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> EndpointList:
        """List endpoints. Needs the permission `endpoints:read`."""
        return self._connection.json(Call("GET", "/endpoints", query={"limit": limit, "cursor": cursor}))

    def iterate(self, *, limit: int | None = None) -> Iterator[EndpointView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def get(self, name: str) -> EndpointView:
        """Show an endpoint. Needs the permission `endpoints:read`."""
        return self._connection.json(Call("GET", f"/endpoints/{segment(name)}"))
