"""The admin API below /status. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.status import Status


class StatusApi:
    """Operations below /status."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> Status:
        """Show the installation at a glance. Needs the permission `status:read`."""
        return self._connection.json(Call("GET", "/status"))
