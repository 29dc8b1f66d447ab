"""The admin API below /apply. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.apply import AppliedPage, ApplyApplied


class AsyncApplyApi:
    """Operations below /apply."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, body: ApplyApplied, *, wait: float | None = None, dry_run: bool = False) -> AppliedPage:
        """Create or replace several resources, all or none. Needs the permission `resources:apply`."""
        return await self._connection.json(Call("POST", "/apply", query={"dry_run": dry_run or None, "wait": wait}, body=body))
