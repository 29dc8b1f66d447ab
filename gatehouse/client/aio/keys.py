"""The admin API below /keys. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.keys import (
    KeyChange,
    KeyChangePatch,
    KeyCreation,
    KeyPage,
    KeysRotation,
    KeyView,
    NewKeyDryRun,
    NewKeyView,
    ResourceKeyDryRun,
)
from gatehouse.client.types.tenants import Suspension


class AsyncKeysApi:
    """Operations below /keys."""

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
        state: Literal["active", "expired", "revoked", "rotated"] | None = None,
        user: str | None = None,
    ) -> KeyPage:
        """List keys. Needs the permission `keys:read`."""
        return await self._connection.json(
            Call(
                "GET",
                "/keys",
                query={
                    "limit": limit,
                    "cursor": cursor,
                    "prefix": prefix,
                    "tenant": tenant,
                    "source": source,
                    "state": state,
                    "user": user,
                },
            )
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
        state: Literal["active", "expired", "revoked", "rotated"] | None = None,
        user: str | None = None,
    ) -> AsyncIterator[KeyView]:
        """All of `list`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=limit, prefix=prefix, tenant=tenant, source=source, state=state, user=user, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create(
        self, body: KeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> NewKeyView: ...
    @overload
    async def create(
        self, body: KeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> NewKeyDryRun: ...
    async def create(
        self, body: KeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> NewKeyView | NewKeyDryRun:
        """Create a key. Needs the permission `keys:create`."""
        return await self._connection.json(
            Call("POST", "/keys", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key})
        )

    async def get(self, id: str) -> KeyView:
        """Show a key. Needs the permission `keys:read`."""
        return await self._connection.json(Call("GET", f"/keys/{segment(id)}"))

    @overload
    async def replace(
        self, id: str, body: KeyChange, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> KeyView: ...
    @overload
    async def replace(
        self, id: str, body: KeyChange, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceKeyDryRun: ...
    async def replace(
        self, id: str, body: KeyChange, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> KeyView | ResourceKeyDryRun:
        """Replace what was decided about a key. Needs the permission `keys:update`."""
        return await self._connection.json(
            Call("PUT", f"/keys/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"If-Match": if_match})
        )

    @overload
    async def update(
        self,
        id: str,
        body: KeyChangePatch,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> KeyView: ...
    @overload
    async def update(
        self, id: str, body: KeyChangePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceKeyDryRun: ...
    async def update(
        self, id: str, body: KeyChangePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> KeyView | ResourceKeyDryRun:
        """Change what was decided about a key. Needs the permission `keys:update`."""
        return await self._connection.json(
            Call(
                "PATCH", f"/keys/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"If-Match": if_match}
            )
        )

    @overload
    async def delete(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> KeyView: ...
    @overload
    async def delete(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceKeyDryRun: ...
    async def delete(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> KeyView | ResourceKeyDryRun:
        """Delete a key and its record. Needs the permission `keys:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/keys/{segment(id)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def rotate(
        self,
        id: str,
        body: KeysRotation,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        idempotency_key: str | None = None,
        dry_run: Literal[False] = False,
    ) -> NewKeyView: ...
    @overload
    async def rotate(
        self,
        id: str,
        body: KeysRotation,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        idempotency_key: str | None = None,
        dry_run: Literal[True],
    ) -> NewKeyDryRun: ...
    async def rotate(
        self,
        id: str,
        body: KeysRotation,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> NewKeyView | NewKeyDryRun:
        """Give a key a new secret. Needs the permission `keys:rotate`."""
        return await self._connection.json(
            Call(
                "POST",
                f"/keys/{segment(id)}/rotate",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match, "Idempotency-Key": idempotency_key},
            )
        )

    @overload
    async def revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> KeyView: ...
    @overload
    async def revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceKeyDryRun: ...
    async def revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> KeyView | ResourceKeyDryRun:
        """Refuse a key from now on. Needs the permission `keys:revoke`."""
        return await self._connection.json(
            Call("POST", f"/keys/{segment(id)}/revoke", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def suspend(self, id: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[False] = False) -> KeyView: ...
    @overload
    async def suspend(self, id: str, body: Suspension, *, wait: float | None = None, dry_run: Literal[True]) -> ResourceKeyDryRun: ...
    async def suspend(self, id: str, body: Suspension, *, wait: float | None = None, dry_run: bool = False) -> KeyView | ResourceKeyDryRun:
        """Suspend a key. Needs the permission `keys:suspend`."""
        return await self._connection.json(
            Call("POST", f"/keys/{segment(id)}/suspend", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def resume(self, id: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> KeyView: ...
    @overload
    async def resume(self, id: str, *, wait: float | None = None, dry_run: Literal[True]) -> ResourceKeyDryRun: ...
    async def resume(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> KeyView | ResourceKeyDryRun:
        """Resume a key. Needs the permission `keys:suspend`."""
        return await self._connection.json(Call("POST", f"/keys/{segment(id)}/resume", query={"dry_run": dry_run or None, "wait": wait}))
