"""The admin API below /roles. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.roles import RoleDryRun, RolePage, RolePatch, RoleSettings, RoleView


class RolesApi:
    """Operations below /roles."""

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
    ) -> RolePage:
        """List roles. Needs the permission `roles:read`."""
        return self._connection.json(
            Call("GET", "/roles", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[RoleView]:
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
        self, body: RoleSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> RoleView: ...
    @overload
    def create(
        self, body: RoleSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> RoleDryRun: ...
    def create(
        self, body: RoleSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> RoleView | RoleDryRun:
        """Create a role. Needs the permission `roles:create`."""
        return self._connection.json(
            Call(
                "POST", "/roles", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    def get(self, name: str) -> RoleView:
        """Show a role. Needs the permission `roles:read`."""
        return self._connection.json(Call("GET", f"/roles/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: RoleSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> RoleView: ...
    @overload
    def replace(
        self, name: str, body: RoleSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> RoleDryRun: ...
    def replace(
        self, name: str, body: RoleSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> RoleView | RoleDryRun:
        """Replace a role. Needs the permission `roles:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/roles/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: RolePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> RoleView: ...
    @overload
    def update(
        self, name: str, body: RolePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> RoleDryRun: ...
    def update(
        self, name: str, body: RolePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> RoleView | RoleDryRun:
        """Change a role. Needs the permission `roles:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/roles/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> RoleView: ...
    @overload
    def delete(self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]) -> RoleDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> RoleView | RoleDryRun:
        """Delete a role. Needs the permission `roles:delete`."""
        return self._connection.json(
            Call("DELETE", f"/roles/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )
