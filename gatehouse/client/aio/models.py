"""The admin API below /models. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.models import (
    ModelAction,
    ModelPage,
    ModelPatch,
    ModelsModelDryRun,
    ModelSpec,
    ResourceModelDryRun,
    StoredModelView,
)


class AsyncModelsApi:
    """Operations below /models."""

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
    ) -> ModelPage:
        """List models. Needs the permission `models:read`."""
        return await self._connection.json(
            Call("GET", "/models", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[StoredModelView]:
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
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    async def create(
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    async def create(
        self, body: ModelSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Create a model. Needs the permission `models:create`."""
        return await self._connection.json(
            Call(
                "POST", "/models", query={"dry_run": dry_run or None, "wait": wait}, body=body, headers={"Idempotency-Key": idempotency_key}
            )
        )

    async def get(self, name: str) -> StoredModelView:
        """Show a model. Needs the permission `models:read`."""
        return await self._connection.json(Call("GET", f"/models/{segment(name)}"))

    @overload
    async def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    async def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    async def replace(
        self, name: str, body: ModelSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Replace a model. Needs the permission `models:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/models/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    async def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    async def update(
        self, name: str, body: ModelPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Change a model. Needs the permission `models:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/models/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredModelView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> ResourceModelDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredModelView | ResourceModelDryRun:
        """Delete a model. Needs the permission `models:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/models/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def load(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ModelAction: ...
    @overload
    async def load(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> ModelsModelDryRun: ...
    async def load(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> ModelAction | ModelsModelDryRun:
        """Start a model's engines, wait until ready. Needs the permission `models:load`."""
        return await self._connection.json(Call("POST", f"/models/{segment(name)}/load", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    async def unload(
        self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: Literal[False] = False
    ) -> ModelAction: ...
    @overload
    async def unload(
        self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: Literal[True]
    ) -> ModelsModelDryRun: ...
    async def unload(
        self, name: str, *, force: bool | None = None, wait: float | None = None, dry_run: bool = False
    ) -> ModelAction | ModelsModelDryRun:
        """Drain and stop a model's engines. Needs the permission `models:unload`."""
        return await self._connection.json(
            Call("POST", f"/models/{segment(name)}/unload", query={"dry_run": dry_run or None, "force": force, "wait": wait})
        )

    @overload
    async def reload(
        self,
        name: str,
        *,
        stop_first: bool | None = None,
        force: bool | None = None,
        wait: float | None = None,
        dry_run: Literal[False] = False,
    ) -> ModelAction: ...
    @overload
    async def reload(
        self, name: str, *, stop_first: bool | None = None, force: bool | None = None, wait: float | None = None, dry_run: Literal[True]
    ) -> ModelsModelDryRun: ...
    async def reload(
        self, name: str, *, stop_first: bool | None = None, force: bool | None = None, wait: float | None = None, dry_run: bool = False
    ) -> ModelAction | ModelsModelDryRun:
        """Replace a model's engines, all or none. Needs the permission `models:reload`."""
        return await self._connection.json(
            Call(
                "POST",
                f"/models/{segment(name)}/reload",
                query={"dry_run": dry_run or None, "stop_first": stop_first, "force": force, "wait": wait},
            )
        )

    @overload
    async def abort(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> ModelAction: ...
    @overload
    async def abort(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> ModelsModelDryRun: ...
    async def abort(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> ModelAction | ModelsModelDryRun:
        """Take back the replacement of a model's engines. Needs the permission `models:abort`."""
        return await self._connection.json(Call("POST", f"/models/{segment(name)}/abort", query={"dry_run": dry_run or None, "wait": wait}))
