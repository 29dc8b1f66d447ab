"""The admin API below /captures. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.captures import CaptureDryRun, CapturePage, CaptureSettings, CaptureView


class CapturesApi:
    """Operations below /captures."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None, tenant: str | None = None) -> CapturePage:
        """List debug captures. Needs the permission `audit:capture`."""
        return self._connection.json(Call("GET", "/captures", query={"limit": limit, "cursor": cursor, "tenant": tenant}))

    def iterate(self, *, limit: int | None = None, tenant: str | None = None) -> Iterator[CaptureView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, tenant=tenant, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> CaptureView: ...
    @overload
    def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: Literal[True]) -> CaptureDryRun: ...
    def create(self, body: CaptureSettings, *, wait: float | None = None, dry_run: bool = False) -> CaptureView | CaptureDryRun:
        """Capture a key's texts. Needs the permission `audit:capture`."""
        return self._connection.json(Call("POST", "/captures", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    def delete(self, key: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> CaptureView: ...
    @overload
    def delete(self, key: str, *, wait: float | None = None, dry_run: Literal[True]) -> CaptureDryRun: ...
    def delete(self, key: str, *, wait: float | None = None, dry_run: bool = False) -> CaptureView | CaptureDryRun:
        """End a debug capture. Needs the permission `audit:capture`."""
        return self._connection.json(Call("DELETE", f"/captures/{segment(key)}", query={"dry_run": dry_run or None, "wait": wait}))
