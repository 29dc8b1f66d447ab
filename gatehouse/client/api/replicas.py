"""The admin API below /replicas. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.types.replicas import ReplicaList


class ReplicasApi:
    """Operations below /replicas."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> ReplicaList:
        """List the replicas that share the store. Needs the permission `replicas:read`."""
        return self._connection.json(Call("GET", "/replicas"))
