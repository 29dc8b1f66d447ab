"""The admin API below /revocations. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.revocations import RevocationDryRun, RevocationPage, RevocationSettings, RevocationView


class RevocationsApi:
    """Operations below /revocations."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> RevocationPage:
        """List revoked tokens. Needs the permission `revocations:read`."""
        return self._connection.json(Call("GET", "/revocations", query={"limit": limit, "cursor": cursor}))

    def iterate(self, *, limit: int | None = None) -> Iterator[RevocationView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(self, body: RevocationSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> RevocationView: ...
    @overload
    def create(self, body: RevocationSettings, *, wait: float | None = None, dry_run: Literal[True]) -> RevocationDryRun: ...
    def create(self, body: RevocationSettings, *, wait: float | None = None, dry_run: bool = False) -> RevocationView | RevocationDryRun:
        """Revoke tokens. Needs the permission `revocations:create`."""
        return self._connection.json(Call("POST", "/revocations", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    def get(self, id: str) -> RevocationView:
        """Show a revocation. Needs the permission `revocations:read`."""
        return self._connection.json(Call("GET", f"/revocations/{segment(id)}"))

    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> RevocationView: ...
    @overload
    def delete(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> RevocationDryRun: ...
    def delete(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> RevocationView | RevocationDryRun:
        """Take a revocation back. Needs the permission `revocations:delete`."""
        return self._connection.json(Call("DELETE", f"/revocations/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}))
