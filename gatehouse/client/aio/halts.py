"""The admin API below /halts. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.halts import HaltDryRun, HaltPage, HaltSettings, HaltView


class AsyncHaltsApi:
    """Operations below /halts."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int | None = None, cursor: str | None = None) -> HaltPage:
        """List what is halted. Needs the permission `halts:read`."""
        return await self._connection.json(Call("GET", "/halts", query={"limit": limit, "cursor": cursor}))

    async def iterate(self, *, limit: int | None = None) -> AsyncIterator[HaltView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    async def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    async def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Halt. Needs the permission `halts:create`."""
        return await self._connection.json(Call("POST", "/halts", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    async def delete(self, *, target: str, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    async def delete(self, *, target: str, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    async def delete(self, *, target: str, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back, by its target. Needs the permission `halts:delete`."""
        return await self._connection.json(Call("DELETE", "/halts", query={"dry_run": dry_run or None, "target": target, "wait": wait}))

    @overload
    async def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    async def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    async def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back. Needs the permission `halts:delete`."""
        return await self._connection.json(Call("DELETE", f"/halts/{segment(target)}", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    async def delete_by_kind_name(
        self, kind: str, name: str, *, wait: float | None = None, dry_run: Literal[False] = False
    ) -> HaltPage: ...
    @overload
    async def delete_by_kind_name(self, kind: str, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    async def delete_by_kind_name(self, kind: str, name: str, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back, by its two parts. Needs the permission `halts:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/halts/{segment(kind)}/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait})
        )
