"""The admin API below /machines. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.machines import MachineDryRun, MachinePage, MachineView


class AsyncMachinesApi:
    """Operations below /machines."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> MachinePage:
        """List the machines that have joined. Needs the permission `machines:read`."""
        return await self._connection.json(Call("GET", "/machines"))

    async def get(self, name: str) -> MachineView:
        """Show a machine. Needs the permission `machines:read`."""
        return await self._connection.json(Call("GET", f"/machines/{segment(name)}"))

    @overload
    async def delete(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    async def delete(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    async def delete(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Remove a machine. Needs the permission `machines:delete`."""
        return await self._connection.json(Call("DELETE", f"/machines/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    async def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    async def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    async def drain(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Send a machine no new requests. Needs the permission `machines:drain`."""
        return await self._connection.json(
            Call("POST", f"/machines/{segment(name)}/drain", query={"dry_run": dry_run or None, "wait": wait})
        )

    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    async def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Send a machine requests again. Needs the permission `machines:resume`."""
        return await self._connection.json(
            Call("POST", f"/machines/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait})
        )
