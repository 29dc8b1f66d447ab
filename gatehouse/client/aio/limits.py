"""The admin API below /limits. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.limits import (
    BucketPage,
    BucketState,
    LimitDryRun,
    LimitPage,
    LimitPatch,
    LimitsCaller,
    LimitSpec,
    LimitView,
    Reset,
    ResetDryRun,
    WasReset,
)


class AsyncLimitsApi:
    """Operations below /limits."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> LimitPage:
        """List limits. Needs the permission `limits:read`."""
        return await self._connection.json(
            Call("GET", "/limits", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[LimitView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(
        self, body: LimitSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> LimitView: ...
    @overload
    async def create(
        self, body: LimitSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> LimitDryRun: ...
    async def create(
        self, body: LimitSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> LimitView | LimitDryRun:
        """Create a limit. Needs the permission `limits:create`."""
        return await self._connection.json(
            Call(
                "POST", "/limits", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    async def get(self, name: str) -> LimitView:
        """Show a limit. Needs the permission `limits:read`."""
        return await self._connection.json(Call("GET", f"/limits/{segment(name)}"))

    @overload
    async def replace(
        self, name: str, body: LimitSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> LimitView: ...
    @overload
    async def replace(
        self, name: str, body: LimitSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> LimitDryRun: ...
    async def replace(
        self, name: str, body: LimitSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> LimitView | LimitDryRun:
        """Replace a limit. Needs the permission `limits:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/limits/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: LimitPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> LimitView: ...
    @overload
    async def update(
        self, name: str, body: LimitPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> LimitDryRun: ...
    async def update(
        self, name: str, body: LimitPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> LimitView | LimitDryRun:
        """Change a limit. Needs the permission `limits:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/limits/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> LimitView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> LimitDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> LimitView | LimitDryRun:
        """Delete a limit. Needs the permission `limits:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/limits/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    async def state(self, name: str, *, limit: int | None = None, cursor: str | None = None) -> BucketPage:
        """Show what is used of a limit. Needs the permission `limits:read`."""
        return await self._connection.json(Call("GET", f"/limits/{segment(name)}/state", query={"limit": limit, "cursor": cursor}))

    async def iterate_state(self, name: str, *, limit: int | None = None) -> AsyncIterator[BucketState]:
        """All of `state`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.state(name, limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def reset(self, name: str, body: Reset, *, wait: float | None = None, dry_run: Literal[False] = False) -> WasReset: ...
    @overload
    async def reset(self, name: str, body: Reset, *, wait: float | None = None, dry_run: Literal[True]) -> ResetDryRun: ...
    async def reset(self, name: str, body: Reset, *, wait: float | None = None, dry_run: bool = False) -> WasReset | ResetDryRun:
        """Make a limit full again. Needs the permission `limits:update`."""
        return await self._connection.json(
            Call("POST", f"/limits/{segment(name)}/reset", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    async def applying(self, body: LimitsCaller) -> BucketPage:
        """Show every limit that applies to a caller. Needs the permission `limits:read`."""
        return await self._connection.json(Call("POST", "/limits:applying", body=body))
