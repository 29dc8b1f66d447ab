"""The admin API below /scaling. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.scaling import HintView, ScalingView


class AsyncScalingApi:
    """Operations below /scaling."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self) -> ScalingView:
        """Show how many replicas there should be. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", "/scaling"))

    async def pools(self, name: str) -> HintView:
        """Show how many replicas a pool should have. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", f"/scaling/pools/{segment(name)}"))

    async def engines(self, name: str) -> HintView:
        """Show how many replicas an engine should have. Needs the permission `endpoints:read`."""
        return await self._connection.json(Call("GET", f"/scaling/engines/{segment(name)}"))
