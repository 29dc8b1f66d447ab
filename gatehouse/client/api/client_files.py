"""The admin API below /client-files. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.client_files import ClientFileDryRun, ClientFilePage, ClientFileView


class ClientFilesApi:
    """Operations below /client-files."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None, tenant: str | None = None) -> ClientFilePage:
        """List files of clients. Needs the permission `client-files:read`."""
        return self._connection.json(Call("GET", "/client-files", query={"limit": limit, "cursor": cursor, "tenant": tenant}))

    def iterate(self, *, limit: int | None = None, tenant: str | None = None) -> Iterator[ClientFileView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, tenant=tenant, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def get(self, id: str) -> ClientFileView:
        """Get a file of a client. Needs the permission `client-files:read`."""
        return self._connection.json(Call("GET", f"/client-files/{segment(id)}"))

    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ClientFileView: ...
    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> ClientFileDryRun: ...
    def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> ClientFileView | ClientFileDryRun:
        """Delete a file of a client. Needs the permission `client-files:delete`."""
        return self._connection.json(Call("DELETE", f"/client-files/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
