"""The admin API below /groups. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.groups import GroupDryRun, GroupPage, GroupPatch, GroupSettings, GroupView, Member
from gatehouse.client.types.users import UserDryRun, UserPage, UserView


class AsyncGroupsApi:
    """Operations below /groups."""

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
    ) -> GroupPage:
        """List groups. Needs the permission `groups:read`."""
        return await self._connection.json(
            Call("GET", "/groups", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[GroupView]:
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
        self, body: GroupSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> GroupView: ...
    @overload
    async def create(
        self, body: GroupSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> GroupDryRun: ...
    async def create(
        self, body: GroupSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> GroupView | GroupDryRun:
        """Create a group. Needs the permission `groups:create`."""
        return await self._connection.json(
            Call(
                "POST", "/groups", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    async def get(self, name: str) -> GroupView:
        """Show a group. Needs the permission `groups:read`."""
        return await self._connection.json(Call("GET", f"/groups/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: GroupSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> GroupView: ...
    @overload
    async def replace(
        self, name: str, body: GroupSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GroupDryRun: ...
    async def replace(
        self, name: str, body: GroupSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GroupView | GroupDryRun:
        """Replace a group. Needs the permission `groups:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/groups/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: GroupPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> GroupView: ...
    @overload
    async def update(
        self, name: str, body: GroupPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GroupDryRun: ...
    async def update(
        self, name: str, body: GroupPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GroupView | GroupDryRun:
        """Change a group. Needs the permission `groups:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/groups/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> GroupView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GroupDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GroupView | GroupDryRun:
        """Delete a group. Needs the permission `groups:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/groups/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    async def members(
        self,
        name: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> UserPage:
        """List the users to whom a group is assigned. Needs the permission `groups:read`."""
        return await self._connection.json(
            Call(
                "GET",
                f"/groups/{segment(name)}/members",
                query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source},
            )
        )

    async def iterate_members(
        self,
        name: str,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[UserView]:
        """All of `members`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.members(name, limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def add_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    async def add_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    async def add_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Give a group to a user. Needs the permission `groups:members`."""
        return await self._connection.json(
            Call("POST", f"/groups/{segment(name)}/add-member", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def remove_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: Literal[False] = False) -> UserView: ...
    @overload
    async def remove_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: Literal[True]) -> UserDryRun: ...
    async def remove_member(self, name: str, body: Member, *, wait: float | None = None, dry_run: bool = False) -> UserView | UserDryRun:
        """Take a group from a user. Needs the permission `groups:members`."""
        return await self._connection.json(
            Call("POST", f"/groups/{segment(name)}/remove-member", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )
