"""The admin API below /approvals. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.approvals import ApprovalDryRun, ApprovalPage, ApprovalView, Decision


class AsyncApprovalsApi:
    """Operations below /approvals."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        state: Literal["approved", "denied", "expired", "pending", "used"] | None = None,
        tenant: str | None = None,
    ) -> ApprovalPage:
        """List approvals. Needs the permission `approvals:read`."""
        return await self._connection.json(
            Call("GET", "/approvals", query={"limit": limit, "cursor": cursor, "state": state, "tenant": tenant})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        state: Literal["approved", "denied", "expired", "pending", "used"] | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[ApprovalView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, state=state, tenant=tenant, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def get(self, id: str) -> ApprovalView:
        """Get an approval with its calls. Needs the permission `approvals:read`."""
        return await self._connection.json(Call("GET", f"/approvals/{segment(id)}"))

    @overload
    async def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[False] = False) -> ApprovalView: ...
    @overload
    async def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[True]) -> ApprovalDryRun: ...
    async def approve(self, id: str, body: Decision, *, wait: float | None = None, dry_run: bool = False) -> ApprovalView | ApprovalDryRun:
        """Approve. Needs the permission `approvals:decide`."""
        return await self._connection.json(
            Call("POST", f"/approvals/{segment(id)}/approve", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[False] = False) -> ApprovalView: ...
    @overload
    async def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: Literal[True]) -> ApprovalDryRun: ...
    async def deny(self, id: str, body: Decision, *, wait: float | None = None, dry_run: bool = False) -> ApprovalView | ApprovalDryRun:
        """Deny. Needs the permission `approvals:decide`."""
        return await self._connection.json(
            Call("POST", f"/approvals/{segment(id)}/deny", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )
