"""The admin API below /workers. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.workers import WorkerDryRun, WorkerList


class WorkersApi:
    """Operations below /workers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> WorkerList:
        """List the processes that serve requests. Needs the permission `workers:read`."""
        return self._connection.json(Call("GET", "/workers"))

    @overload
    def replace(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> WorkerList: ...
    @overload
    def replace(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> WorkerDryRun: ...
    def replace(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> WorkerList | WorkerDryRun:
        """Replace a worker. Needs the permission `workers:replace`."""
        return self._connection.json(Call("POST", f"/workers/{segment(id)}/replace", query={"dry_run": dry_run or None, "wait": wait}))
