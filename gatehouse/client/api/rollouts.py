"""The admin API below /rollouts. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.rollouts import Resumed, RolloutPage, RolloutView


class RolloutsApi:
    """Operations below /rollouts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> RolloutPage:
        """List the candidates that are tried on real traffic. Needs the permission `rollouts:read`."""
        return self._connection.json(Call("GET", "/rollouts"))

    def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> Resumed:
        """Put a withdrawn engine back. Needs the permission `rollouts:resume`."""
        return self._connection.json(Call("POST", f"/rollouts/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))

    def get(self, name: str) -> RolloutView:
        """Show what is tried on a model's traffic. Needs the permission `rollouts:read`."""
        return self._connection.json(Call("GET", f"/rollouts/{segment(name)}"))
