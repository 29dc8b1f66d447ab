"""The admin API below /model-copies. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.model_copies import ForgottenDryRun, ForgottenView, ModelCopyList


class AsyncModelCopiesApi:
    """Operations below /model-copies."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> ModelCopyList:
        """List model files that replicas share. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", "/model-copies"))

    @overload
    async def delete(self, replica: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ForgottenView: ...
    @overload
    async def delete(self, replica: str, *, wait: float | None = None, dry_run: Literal[True]) -> ForgottenDryRun: ...
    async def delete(self, replica: str, *, wait: float | None = None, dry_run: bool = False) -> ForgottenView | ForgottenDryRun:
        """Forget the copies of a replica that is away. Needs the permission `files:write`."""
        return await self._connection.json(
            Call("DELETE", f"/model-copies/{segment(replica)}", query={"dry_run": dry_run or None, "wait": wait})
        )
