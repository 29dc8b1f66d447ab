"""The admin API below /replicas. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.types.replicas import ReplicaList


class AsyncReplicasApi:
    """Operations below /replicas."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> ReplicaList:
        """List the replicas that share the store. Needs the permission `replicas:read`."""
        return await self._connection.json(Call("GET", "/replicas"))
