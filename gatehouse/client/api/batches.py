"""The admin API below /batches. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.batches import BatchDryRun, BatchPage, BatchView


class BatchesApi:
    """Operations below /batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        state: Literal["cancelled", "cancelling", "completed", "expired", "failed", "finalizing", "in_progress", "validating"]
        | None = None,
        tenant: str | None = None,
    ) -> BatchPage:
        """List batches. Needs the permission `batches:read`."""
        return self._connection.json(Call("GET", "/batches", query={"limit": limit, "cursor": cursor, "state": state, "tenant": tenant}))

    def iterate(
        self,
        *,
        limit: int | None = None,
        state: Literal["cancelled", "cancelling", "completed", "expired", "failed", "finalizing", "in_progress", "validating"]
        | None = None,
        tenant: str | None = None,
    ) -> Iterator[BatchView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, state=state, tenant=tenant, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def get(self, id: str) -> BatchView:
        """Get a batch. Needs the permission `batches:read`."""
        return self._connection.json(Call("GET", f"/batches/{segment(id)}"))

    @overload
    def cancel(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> BatchView: ...
    @overload
    def cancel(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> BatchDryRun: ...
    def cancel(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> BatchView | BatchDryRun:
        """Cancel a batch. Needs the permission `batches:cancel`."""
        return self._connection.json(Call("POST", f"/batches/{segment(id)}/cancel", query={"dry_run": dry_run or None, "wait": wait}))
