"""The admin API below /models. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.models import (
    ModelAction,
    ModelPage,
    ModelPatch,
    ModelsModelDryRun,
    ModelSpec,
    ResourceModelDryRun,
    StoredModelView,
)


class ModelsApi:
    """Operations below /models."""

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
    ) -> ModelPage:
        """List models. Needs the permission `models:read`."""
        return self._connection.json(
            Call("GET", "/models", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[StoredModelView]:
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
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    def create(
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    def create(
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Create a model. Needs the permission `models:create`."""
        return self._connection.json(
            Call(
                "POST", "/models", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    def get(self, name: str) -> StoredModelView:
        """Show a model. Needs the permission `models:read`."""
        return self._connection.json(Call("GET", f"/models/{segment(name)}"))

    @overload
    def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Replace a model. Needs the permission `models:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/models/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Change a model. Needs the permission `models:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/models/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Delete a model. Needs the permission `models:delete`."""
        return self._connection.json(
            Call("DELETE", f"/models/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    def load(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ModelAction: ...
    @overload
    def load(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> ModelsModelDryRun: ...
    def load(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> ModelAction | ModelsModelDryRun:
        """Start a model's engines, wait until ready. Needs the permission `models:load`."""
        return self._connection.json(Call("POST", f"/models/{segment(name)}/load", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def unload(
        self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: Literal[False] = False
    ) -> ModelAction: ...
    @overload
    def unload(self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: Literal[True]) -> ModelsModelDryRun: ...
    def unload(
        self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: bool = False
    ) -> ModelAction | ModelsModelDryRun:
        """Drain and stop a model's engines. Needs the permission `models:unload`."""
        return self._connection.json(
            Call("POST", f"/models/{segment(name)}/unload", query={"dry_run": dry_run or None, "force": force, "wait": wait})
        )

    @overload
    def reload(
        self,
        name: str,
        *,
        stop_first: bool | None = None,
        force: bool | None = None,
        wait: float | None = None,
        dry_run: Literal[False] = False,
    ) -> ModelAction: ...
    @overload
    def reload(
        self, name: str, *, stop_first: bool | None = None, force: bool | None = None, wait: float | None = None, dry_run: Literal[True]
    ) -> ModelsModelDryRun: ...
    def reload(
        self, name: str, *, stop_first: bool | None = None, force: bool | None = None, wait: float | None = None, dry_run: bool = False
    ) -> ModelAction | ModelsModelDryRun:
        """Replace a model's engines, all or none. Needs the permission `models:reload`."""
        return self._connection.json(
            Call(
                "POST",
                f"/models/{segment(name)}/reload",
                query={"dry_run": dry_run or None, "stop_first": stop_first, "force": force, "wait": wait},
            )
        )

    @overload
    def abort(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ModelAction: ...
    @overload
    def abort(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> ModelsModelDryRun: ...
    def abort(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> ModelAction | ModelsModelDryRun:
        """Take back the replacement of a model's engines. Needs the permission `models:abort`."""
        return self._connection.json(Call("POST", f"/models/{segment(name)}/abort", query={"dry_run": dry_run or None, "wait": wait}))
