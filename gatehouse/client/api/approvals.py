"""The admin API below /approvals. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.approvals import ApprovalDryRun, ApprovalPage, ApprovalView, Decision


class ApprovalsApi:
    """Operations below /approvals."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        state: Literal["approved", "denied", "expired", "pending", "used"] | None = None,
        tenant: str | None = None,
    ) -> ApprovalPage:
        """List approvals. Needs the permission `approvals:read`."""
        return self._connection.json(Call("GET", "/approvals", query={"limit": limit, "cursor": cursor, "state": state, "tenant": tenant}))

    def iterate(
        self,
        *,
        limit: int | None = None,
        state: Literal["approved", "denied", "expired", "pending", "used"] | None = None,
        tenant: str | None = None,
    ) -> Iterator[ApprovalView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, state=state, tenant=tenant, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def get(self, id: str) -> ApprovalView:
        """Get an approval with its calls. Needs the permission `approvals:read`."""
        return self._connection.json(Call("GET", f"/approvals/{segment(id)}"))

    @overload
    def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[False] = False) -> ApprovalView: ...
    @overload
    def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[True]) -> ApprovalDryRun: ...
    def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: bool = False) -> ApprovalView | ApprovalDryRun:
        """Approve. Needs the permission `approvals:decide`."""
        return self._connection.json(
            Call("POST", f"/approvals/{segment(id)}/approve", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[False] = False) -> ApprovalView: ...
    @overload
    def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[True]) -> ApprovalDryRun: ...
    def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: bool = False) -> ApprovalView | ApprovalDryRun:
        """Deny. Needs the permission `approvals:decide`."""
        return self._connection.json(
            Call("POST", f"/approvals/{segment(id)}/deny", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )
