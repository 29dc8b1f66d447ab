"""The admin API below /tenants. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.tenants import Suspension, TenantDryRun, TenantPage, TenantPatch, TenantSettings, TenantView


class TenantsApi:
    """Operations below /tenants."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> TenantPage:
        """List tenants. Needs the permission `tenants:read`."""
        return self._connection.json(
            Call("GET", "/tenants", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[TenantView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create(
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    def create(
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    def create(
        self, body: TenantSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Create a tenant. Needs the permission `tenants:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/tenants",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    def get(self, name: str) -> TenantView:
        """Show a tenant. Needs the permission `tenants:read`."""
        return self._connection.json(Call("GET", f"/tenants/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: TenantSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> TenantView: ...
    @overload
    def replace(
        self, name: str, body: TenantSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    def replace(
        self, name: str, body: TenantSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Replace a tenant. Needs the permission `tenants:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/tenants/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    def update(
        self, name: str, body: TenantPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Change a tenant. Needs the permission `tenants:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/tenants/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> TenantView: ...
    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> TenantDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> TenantView | TenantDryRun:
        """Delete a tenant. Needs the permission `tenants:delete`."""
        return self._connection.json(
            Call("DELETE", f"/tenants/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[False] = False) -> TenantView: ...
    @overload
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[True]) -> TenantDryRun: ...
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: bool = False) -> TenantView | TenantDryRun:
        """Suspend a tenant. Needs the permission `tenants:suspend`."""
        return self._connection.json(
            Call("POST", f"/tenants/{segment(name)}/suspend", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> TenantView: ...
    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> TenantDryRun: ...
    def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> TenantView | TenantDryRun:
        """Resume a tenant. Needs the permission `tenants:suspend`."""
        return self._connection.json(Call("POST", f"/tenants/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))
