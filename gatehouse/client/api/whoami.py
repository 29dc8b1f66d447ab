"""The admin API below /whoami. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.whoami import StatusCaller


class WhoamiApi:
    """Operations below /whoami."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> StatusCaller:
        """Show what the credential may do. Needs the permission `roles:read`."""
        return self._connection.json(Call("GET", "/whoami"))
