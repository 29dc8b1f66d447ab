"""The admin API below /dump. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.dump import Dump


class DumpApi:
    """Operations below /dump."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, *, kinds: str | None = None) -> Dump:
        """Show everything that is decided in the store. Needs the permission `resources:dump`."""
        return self._connection.json(Call("GET", "/dump", query={"kinds": kinds}))
