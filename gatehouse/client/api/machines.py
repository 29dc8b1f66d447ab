"""The admin API below /machines. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.machines import MachineDryRun, MachinePage, MachineView


class MachinesApi:
    """Operations below /machines."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> MachinePage:
        """List the machines that have joined. Needs the permission `machines:read`."""
        return self._connection.json(Call("GET", "/machines"))

    def get(self, name: str) -> MachineView:
        """Show a machine. Needs the permission `machines:read`."""
        return self._connection.json(Call("GET", f"/machines/{segment(name)}"))

    @overload
    def delete(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    def delete(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    def delete(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Remove a machine. Needs the permission `machines:delete`."""
        return self._connection.json(Call("DELETE", f"/machines/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    def drain(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Send a machine no new requests. Needs the permission `machines:drain`."""
        return self._connection.json(Call("POST", f"/machines/{segment(name)}/drain", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> MachineView: ...
    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> MachineDryRun: ...
    def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> MachineView | MachineDryRun:
        """Send a machine requests again. Needs the permission `machines:resume`."""
        return self._connection.json(Call("POST", f"/machines/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))
