"""The admin API below /upgrade. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.upgrade import UpgradeView


class UpgradeApi:
    """Operations below /upgrade."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> UpgradeView:
        """Show how the upgrade of the program stands. Needs the permission `upgrade:read`."""
        return self._connection.json(Call("GET", "/upgrade"))

    def create(self, *, wait: float | None = None, dry_run: bool = False) -> UpgradeView:
        """Replace the running program, and its workers one by one. Needs the permission `upgrade:begin`."""
        return self._connection.json(Call("POST", "/upgrade", query={"dry_run": dry_run or None, "wait": wait}))
