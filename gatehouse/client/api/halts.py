"""The admin API below /halts. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.halts import HaltDryRun, HaltPage, HaltSettings, HaltView


class HaltsApi:
    """Operations below /halts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> HaltPage:
        """List what is halted. Needs the permission `halts:read`."""
        return self._connection.json(Call("GET", "/halts", query={"limit": limit, "cursor": cursor}))

    def iterate(self, *, limit: int | None = None) -> Iterator[HaltView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    def create(self, body: HaltSettings, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Halt. Needs the permission `halts:create`."""
        return self._connection.json(Call("POST", "/halts", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    def delete(self, *, target: str, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    def delete(self, *, target: str, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    def delete(self, *, target: str, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back, by its target. Needs the permission `halts:delete`."""
        return self._connection.json(Call("DELETE", "/halts", query={"dry_run": dry_run or None, "target": target, "wait": wait}))

    @overload
    def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    def delete_by_target(self, target: str, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back. Needs the permission `halts:delete`."""
        return self._connection.json(Call("DELETE", f"/halts/{segment(target)}", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def delete_by_kind_name(self, kind: str, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> HaltPage: ...
    @overload
    def delete_by_kind_name(self, kind: str, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> HaltDryRun: ...
    def delete_by_kind_name(self, kind: str, name: str, *, wait: float | None = None, dry_run: bool = False) -> HaltPage | HaltDryRun:
        """Take a halt back, by its two parts. Needs the permission `halts:delete`."""
        return self._connection.json(
            Call("DELETE", f"/halts/{segment(kind)}/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait})
        )
