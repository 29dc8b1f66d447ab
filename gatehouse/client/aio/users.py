"""The admin API below /users. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.tenants import Suspension
from gatehouse.client.types.users import UserDryRun, UserPage, UserPatch, UserSettings, UserView


class AsyncUsersApi:
    """Operations below /users."""

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
    ) -> UserPage:
        """List users. Needs the permission `users:read`."""
        return await self._connection.json(
            Call("GET", "/users", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[UserView]:
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
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    async def create(
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    async def create(
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Create a user. Needs the permission `users:create`."""
        return await self._connection.json(
            Call(
                "POST", "/users", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    async def get(self, name: str) -> UserView:
        """Show a user. Needs the permission `users:read`."""
        return await self._connection.json(Call("GET", f"/users/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: UserSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> UserView: ...
    @overload
    async def replace(
        self, name: str, body: UserSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    async def replace(
        self, name: str, body: UserSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Replace a user. Needs the permission `users:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/users/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    async def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    async def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Change a user. Needs the permission `users:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/users/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Delete a user. Needs the permission `users:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/users/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    async def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Suspend a user. Needs the permission `users:suspend`."""
        return await self._connection.json(
            Call("POST", f"/users/{segment(name)}/suspend", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    async def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Resume a user. Needs the permission `users:suspend`."""
        return await self._connection.json(Call("POST", f"/users/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))
