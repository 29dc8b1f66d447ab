"""The admin API below /tenants. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.tenants import Suspension, TenantDryRun, TenantPage, TenantPatch, TenantSettings, TenantView


class AsyncTenantsApi:
    """Operations below /tenants."""

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
    ) -> TenantPage:
        """List tenants. Needs the permission `tenants:read`."""
        return await self._connection.json(
            Call("GET", "/tenants", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[TenantView]:
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
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    async def create(
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    async def create(
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Create a tenant. Needs the permission `tenants:create`."""
        return await self._connection.json(
            Call(
                "POST",
                "/tenants",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    async def get(self, name: str) -> TenantView:
        """Show a tenant. Needs the permission `tenants:read`."""
        return await self._connection.json(Call("GET", f"/tenants/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: TenantSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> TenantView: ...
    @overload
    async def replace(
        self, name: str, body: TenantSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    async def replace(
        self, name: str, body: TenantSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Replace a tenant. Needs the permission `tenants:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/tenants/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    async def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    async def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Change a tenant. Needs the permission `tenants:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/tenants/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Delete a tenant. Needs the permission `tenants:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/tenants/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[False] = False) -> TenantView: ...
    @overload
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[True]) -> TenantDryRun: ...
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: bool = False) -> TenantView | TenantDryRun:
        """Suspend a tenant. Needs the permission `tenants:suspend`."""
        return await self._connection.json(
            Call("POST", f"/tenants/{segment(name)}/suspend", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> TenantView: ...
    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> TenantDryRun: ...
    async def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> TenantView | TenantDryRun:
        """Resume a tenant. Needs the permission `tenants:suspend`."""
        return await self._connection.json(
            Call("POST", f"/tenants/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait})
        )
