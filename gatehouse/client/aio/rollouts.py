"""The admin API below /rollouts. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.rollouts import Resumed, RolloutPage, RolloutView


class AsyncRolloutsApi:
    """Operations below /rollouts."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> RolloutPage:
        """List the candidates that are tried on real traffic. Needs the permission `rollouts:read`."""
        return await self._connection.json(Call("GET", "/rollouts"))

    async def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> Resumed:
        """Put a withdrawn engine back. Needs the permission `rollouts:resume`."""
        return await self._connection.json(
            Call("POST", f"/rollouts/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait})
        )

    async def get(self, name: str) -> RolloutView:
        """Show what is tried on a model's traffic. Needs the permission `rollouts:read`."""
        return await self._connection.json(Call("GET", f"/rollouts/{segment(name)}"))
