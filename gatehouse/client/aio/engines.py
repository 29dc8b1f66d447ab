"""The admin API below /engines. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.engines import (
    Breaker,
    EndpointDryRun,
    EngineDryRun,
    EngineLog,
    EnginePage,
    EnginePatch,
    EngineSettings,
    StoredEngineView,
)
from gatehouse.client.types.status import EndpointView


class AsyncEnginesApi:
    """Operations below /engines."""

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
    ) -> EnginePage:
        """List engines. Needs the permission `engines:read`."""
        return await self._connection.json(
            Call("GET", "/engines", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[StoredEngineView]:
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
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    async def create(
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    async def create(
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Create a engine. Needs the permission `engines:create`."""
        return await self._connection.json(
            Call(
                "POST",
                "/engines",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    async def get(self, name: str) -> StoredEngineView:
        """Show a engine. Needs the permission `engines:read`."""
        return await self._connection.json(Call("GET", f"/engines/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: EngineSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> StoredEngineView: ...
    @overload
    async def replace(
        self, name: str, body: EngineSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    async def replace(
        self, name: str, body: EngineSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Replace a engine. Needs the permission `engines:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/engines/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    async def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    async def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Change a engine. Needs the permission `engines:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/engines/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Delete a engine. Needs the permission `engines:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/engines/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    async def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    async def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    async def drain(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Send an engine no new requests. Needs the permission `engines:drain`."""
        return await self._connection.json(
            Call("POST", f"/engines/{segment(name)}/drain", query={"dry_run": dry_run or None, "wait": wait})
        )

    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    async def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    async def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Send an engine requests again. Needs the permission `engines:resume`."""
        return await self._connection.json(
            Call("POST", f"/engines/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait})
        )

    @overload
    async def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    async def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    async def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Hold a breaker, or let it go. Needs the permission `engines:breaker`."""
        return await self._connection.json(
            Call("POST", f"/engines/{segment(name)}/breaker", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    async def log(self, name: str, *, lines: int | None = None) -> EngineLog:
        """Show what an engine's process wrote. Needs the permission `engines:log`."""
        return await self._connection.json(Call("GET", f"/engines/{segment(name)}/log", query={"lines": lines}))
