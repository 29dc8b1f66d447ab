"""The admin API below /users. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.tenants import Suspension
from gatehouse.client.types.users import UserDryRun, UserPage, UserPatch, UserSettings, UserView


class UsersApi:
    """Operations below /users."""

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
    ) -> UserPage:
        """List users. Needs the permission `users:read`."""
        return self._connection.json(
            Call("GET", "/users", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[UserView]:
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
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    def create(
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    def create(
        self, body: UserSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Create a user. Needs the permission `users:create`."""
        return self._connection.json(
            Call(
                "POST", "/users", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    def get(self, name: str) -> UserView:
        """Show a user. Needs the permission `users:read`."""
        return self._connection.json(Call("GET", f"/users/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: UserSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> UserView: ...
    @overload
    def replace(
        self, name: str, body: UserSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    def replace(
        self, name: str, body: UserSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Replace a user. Needs the permission `users:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/users/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> UserDryRun: ...
    def update(
        self, name: str, body: UserPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Change a user. Needs the permission `users:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/users/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> UserView: ...
    @overload
    def delete(self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> UserView | UserDryRun:
        """Delete a user. Needs the permission `users:delete`."""
        return self._connection.json(
            Call("DELETE", f"/users/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    def suspend(self, name: str, body: Suspension, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Suspend a user. Needs the permission `users:suspend`."""
        return self._connection.json(
            Call("POST", f"/users/{segment(name)}/suspend", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Resume a user. Needs the permission `users:suspend`."""
        return self._connection.json(Call("POST", f"/users/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))
