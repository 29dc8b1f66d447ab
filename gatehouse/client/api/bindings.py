"""The admin API below /bindings. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.bindings import BindingPatch, BindingSettings, BindingViewDryRun, BindingViewPage, BindingViewView


class BindingsApi:
    """Operations below /bindings."""

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
    ) -> BindingViewPage:
        """List bindings. Needs the permission `bindings:read`."""
        return self._connection.json(
            Call("GET", "/bindings", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[BindingViewView]:
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
        self, body: BindingSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> BindingViewView: ...
    @overload
    def create(
        self, body: BindingSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> BindingViewDryRun: ...
    def create(
        self, body: BindingSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> BindingViewView | BindingViewDryRun:
        """Create a binding. Needs the permission `bindings:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/bindings",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    def get(self, name: str) -> BindingViewView:
        """Show a binding. Needs the permission `bindings:read`."""
        return self._connection.json(Call("GET", f"/bindings/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: BindingSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> BindingViewView: ...
    @overload
    def replace(
        self, name: str, body: BindingSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> BindingViewDryRun: ...
    def replace(
        self, name: str, body: BindingSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> BindingViewView | BindingViewDryRun:
        """Replace a binding. Needs the permission `bindings:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/bindings/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self,
        name: str,
        body: BindingPatch,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> BindingViewView: ...
    @overload
    def update(
        self, name: str, body: BindingPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> BindingViewDryRun: ...
    def update(
        self, name: str, body: BindingPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> BindingViewView | BindingViewDryRun:
        """Change a binding. Needs the permission `bindings:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/bindings/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> BindingViewView: ...
    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> BindingViewDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> BindingViewView | BindingViewDryRun:
        """Delete a binding. Needs the permission `bindings:delete`."""
        return self._connection.json(
            Call("DELETE", f"/bindings/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )
