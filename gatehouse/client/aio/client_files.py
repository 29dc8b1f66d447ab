"""The admin API below /client-files. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.client_files import ClientFileDryRun, ClientFilePage, ClientFileView


class AsyncClientFilesApi:
    """Operations below /client-files."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int | None = None, cursor: str | None = None, tenant: str | None = None) -> ClientFilePage:
        """List files of clients. Needs the permission `client-files:read`."""
        return await self._connection.json(Call("GET", "/client-files", query={"limit": limit, "cursor": cursor, "tenant": tenant}))

    async def iterate(self, *, limit: int | None = None, tenant: str | None = None) -> AsyncIterator[ClientFileView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, tenant=tenant, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def get(self, id: str) -> ClientFileView:
        """Get a file of a client. Needs the permission `client-files:read`."""
        return await self._connection.json(Call("GET", f"/client-files/{segment(id)}"))

    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ClientFileView: ...
    @overload
    async def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> ClientFileDryRun: ...
    async def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> ClientFileView | ClientFileDryRun:
        """Delete a file of a client. Needs the permission `client-files:delete`."""
        return await self._connection.json(Call("DELETE", f"/client-files/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
