"""The admin API below /apply. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.apply import AppliedPage, ApplyApplied


class ApplyApi:
    """Operations below /apply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, body: ApplyApplied, *, wait: float | None = None, dry_run: bool = False) -> AppliedPage:
        """Create or replace several resources, all or none. Needs the permission `resources:apply`."""
        return self._connection.json(Call("POST", "/apply", query={"dry_run": dry_run or None, "wait": wait}, body=body))
