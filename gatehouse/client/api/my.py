"""The admin API below /my. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.keys import KeyPage, KeysRotation, KeyView, NewKeyDryRun, NewKeyView, ResourceKeyDryRun
from gatehouse.client.types.my import OwnKeyCreation, OwnKeysAllowed


class MyApi:
    """Operations below /my."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def keys(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> KeyPage:
        """List your own keys. Needs the permission `own-keys:read`."""
        return self._connection.json(
            Call("GET", "/my/keys", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate_keys(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[KeyView]:
        """All of `keys`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = self.keys(limit=limit, prefix=prefix, tenant=tenant, source=source, cursor=cursor)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    def create_keys(
        self, body: OwnKeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> NewKeyView: ...
    @overload
    def create_keys(
        self, body: OwnKeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> NewKeyDryRun: ...
    def create_keys(
        self, body: OwnKeyCreation, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> NewKeyView | NewKeyDryRun:
        """Make a key of your own. Needs the permission `own-keys:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/my/keys",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    def key_rules(self) -> OwnKeysAllowed:
        """What your groups allow. Needs the permission `own-keys:read`."""
        return self._connection.json(Call("GET", "/my/key-rules"))

    def get_keys(self, id: str) -> KeyView:
        """Show a key of your own. Needs the permission `own-keys:read`."""
        return self._connection.json(Call("GET", f"/my/keys/{segment(id)}"))

    @overload
    def keys_rotate(
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
    def keys_rotate(
        self,
        id: str,
        body: KeysRotation,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        idempotency_key: str | None = None,
        dry_run: Literal[True],
    ) -> NewKeyDryRun: ...
    def keys_rotate(
        self,
        id: str,
        body: KeysRotation,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> NewKeyView | NewKeyDryRun:
        """Give a key of your own a new secret. Needs the permission `own-keys:rotate`."""
        return self._connection.json(
            Call(
                "POST",
                f"/my/keys/{segment(id)}/rotate",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match, "Idempotency-Key": idempotency_key},
            )
        )

    @overload
    def keys_revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> KeyView: ...
    @overload
    def keys_revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceKeyDryRun: ...
    def keys_revoke(
        self, id: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> KeyView | ResourceKeyDryRun:
        """Refuse a key of your own. Needs the permission `own-keys:revoke`."""
        return self._connection.json(
            Call("POST", f"/my/keys/{segment(id)}/revoke", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )
