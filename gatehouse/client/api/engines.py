"""The admin API below /engines. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
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


class EnginesApi:
    """Operations below /engines."""

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
    ) -> EnginePage:
        """List engines. Needs the permission `engines:read`."""
        return self._connection.json(
            Call("GET", "/engines", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[StoredEngineView]:
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
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    def create(
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    def create(
        self, body: EngineSettings, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Create a engine. Needs the permission `engines:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/engines",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    def get(self, name: str) -> StoredEngineView:
        """Show a engine. Needs the permission `engines:read`."""
        return self._connection.json(Call("GET", f"/engines/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: EngineSettings,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> StoredEngineView: ...
    @overload
    def replace(
        self, name: str, body: EngineSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    def replace(
        self, name: str, body: EngineSettings, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Replace a engine. Needs the permission `engines:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/engines/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    def update(
        self, name: str, body: EnginePatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Change a engine. Needs the permission `engines:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/engines/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> StoredEngineView: ...
    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> EngineDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> StoredEngineView | EngineDryRun:
        """Delete a engine. Needs the permission `engines:delete`."""
        return self._connection.json(
            Call("DELETE", f"/engines/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    @overload
    def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    def drain(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    def drain(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Send an engine no new requests. Needs the permission `engines:drain`."""
        return self._connection.json(Call("POST", f"/engines/{segment(name)}/drain", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    def resume(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    def resume(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Send an engine requests again. Needs the permission `engines:resume`."""
        return self._connection.json(Call("POST", f"/engines/{segment(name)}/resume", query={"dry_run": dry_run or None, "wait": wait}))

    @overload
    def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: Literal[False] = False) -> EndpointView: ...
    @overload
    def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: Literal[True]) -> EndpointDryRun: ...
    def breaker(self, name: str, body: Breaker, *, wait: float | None = None, dry_run: bool = False) -> EndpointView | EndpointDryRun:
        """Hold a breaker, or let it go. Needs the permission `engines:breaker`."""
        return self._connection.json(
            Call("POST", f"/engines/{segment(name)}/breaker", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    def log(self, name: str, *, lines: int | None = None) -> EngineLog:
        """Show what an engine's process wrote. Needs the permission `engines:log`."""
        return self._connection.json(Call("GET", f"/engines/{segment(name)}/log", query={"lines": lines}))
