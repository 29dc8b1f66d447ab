"""The admin API below /revocations. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.revocations import RevocationDryRun, RevocationPage, RevocationSettings, RevocationView


class AsyncRevocationsApi:
    """Operations below /revocations."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int | None = None, cursor: str | None = None) -> RevocationPage:
        """List revoked tokens. Needs the permission `revocations:read`."""
        return await self._connection.json(Call("GET", "/revocations", query={"limit": limit, "cursor": cursor}))

    async def iterate(self, *, limit: int | None = None) -> AsyncIterator[RevocationView]:
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
    async def create(self, body: RevocationSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> RevocationView: ...
    @overload
    async def create(self, body: RevocationSettings, *, wait: float | None = None, dry_run: Literal[True]) -> RevocationDryRun: ...
    async def create(
        self, body: RevocationSettings, *, wait: float | None = None, dry_run: bool = False
    ) -> RevocationView | RevocationDryRun:
        """Revoke tokens. Needs the permission `revocations:create`."""
        return await self._connection.json(Call("POST", "/revocations", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    async def get(self, id: str) -> RevocationView:
        """Show a revocation. Needs the permission `revocations:read`."""
        return await self._connection.json(Call("GET", f"/revocations/{segment(id)}"))

    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> RevocationView: ...
    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> RevocationDryRun: ...
    async def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> RevocationView | RevocationDryRun:
        """Take a revocation back. Needs the permission `revocations:delete`."""
        return await self._connection.json(Call("DELETE", f"/revocations/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
