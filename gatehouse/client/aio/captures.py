"""The admin API below /captures. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.captures import CaptureDryRun, CapturePage, CaptureSettings, CaptureView


class AsyncCapturesApi:
    """Operations below /captures."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int | None = None, cursor: str | None = None, tenant: str | None = None) -> CapturePage:
        """List debug captures. Needs the permission `audit:capture`."""
        return await self._connection.json(Call("GET", "/captures", query={"limit": limit, "cursor": cursor, "tenant": tenant}))

    async def iterate(self, *, limit: int | None = None, tenant: str | None = None) -> AsyncIterator[CaptureView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, tenant=tenant, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> CaptureView: ...
    @overload
    async def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: Literal[True]) -> CaptureDryRun: ...
    async def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: bool = False) -> CaptureView | CaptureDryRun:
        """Capture a key's texts. Needs the permission `audit:capture`."""
        return await self._connection.json(Call("POST", "/captures", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    async def delete(self, key: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> CaptureView: ...
    @overload
    async def delete(self, key: str, *, wait: float | None = None, dry_run: Literal[True]) -> CaptureDryRun: ...
    async def delete(self, key: str, *, wait: float | None = None, dry_run: bool = False) -> CaptureView | CaptureDryRun:
        """End a debug capture. Needs the permission `audit:capture`."""
        return await self._connection.json(Call("DELETE", f"/captures/{segment(key)}", query={"dry_run": dry_run or None, "wait": wait}))
