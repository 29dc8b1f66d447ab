"""The admin API below /endpoints. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.endpoints import EndpointList
from gatehouse.client.types.status import EndpointView


class EndpointsApi:
    """Operations below /endpoints."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> EndpointList:
        """List endpoints. Needs the permission `endpoints:read`."""
        return self._connection.json(Call("GET", "/endpoints"))

    def get(self, name: str) -> EndpointView:
        """Show an endpoint. Needs the permission `endpoints:read`."""
        return self._connection.json(Call("GET", f"/endpoints/{segment(name)}"))
