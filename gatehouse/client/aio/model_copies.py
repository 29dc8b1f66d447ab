"""The admin API below /model-copies. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.model_copies import ModelCopyList


class AsyncModelCopiesApi:
    """Operations below /model-copies."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> ModelCopyList:
        """List model files that replicas share. Needs the permission `files:read`."""
        return await self._connection.json(Call("GET", "/model-copies"))
