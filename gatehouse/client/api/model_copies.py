"""The admin API below /model-copies. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.model_copies import ForgottenView, ModelCopyList


class ModelCopiesApi:
    """Operations below /model-copies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> ModelCopyList:
        """List model files that replicas share. Needs the permission `files:read`."""
        return self._connection.json(Call("GET", "/model-copies"))

    def delete(self, replica: str, *, wait: float | None = None) -> ForgottenView:
        """Forget the copies of a replica that is away. Needs the permission `files:write`."""
        return self._connection.json(Call("DELETE", f"/model-copies/{segment(replica)}", query={"wait": wait}))
