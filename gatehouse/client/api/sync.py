"""The admin API below /sync. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.sync import Synced, SyncWanted


class SyncApi:
    """Operations below /sync."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def diff(self, body: SyncWanted) -> Synced:
        """Compare the store with a file. Needs the permission `resources:dump`."""
        return self._connection.json(Call("POST", "/sync:diff", body=body))

    def create(
        self,
        body: SyncWanted,
        *,
        delete: bool | None = None,
        revive: bool | None = None,
        plan: str | None = None,
        wait: float | None = None,
        dry_run: bool = False,
    ) -> Synced:
        """Make the store equal to a file, all or nothing. Needs the permission `resources:sync`."""
        return self._connection.json(
            Call(
                "POST",
                "/sync",
                query={"dry_run": dry_run or None, "delete": delete, "revive": revive, "plan": plan, "wait": wait},
                body=body,
            )
        )
