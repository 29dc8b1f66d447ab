"""The admin API below /guardrails. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.guardrails import (
    Evaluation,
    GuardrailDryRun,
    GuardrailPage,
    GuardrailPatch,
    GuardrailSpec,
    GuardrailView,
    Tried,
)


class AsyncGuardrailsApi:
    """Operations below /guardrails."""

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
    ) -> GuardrailPage:
        """List guardrails. Needs the permission `guardrails:read`."""
        return await self._connection.json(
            Call("GET", "/guardrails", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    async def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> AsyncIterator[GuardrailView]:
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
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> GuardrailView: ...
    @overload
    async def create(
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    async def create(
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Create a guardrail. Needs the permission `guardrails:create`."""
        return await self._connection.json(
            Call(
                "POST",
                "/guardrails",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    async def get(self, name: str) -> GuardrailView:
        """Show a guardrail. Needs the permission `guardrails:read`."""
        return await self._connection.json(Call("GET", f"/guardrails/{segment(name)}"))

    @overload
    async def replace(
        self,
        name: str,
        body: GuardrailSpec,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> GuardrailView: ...
    @overload
    async def replace(
        self, name: str, body: GuardrailSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    async def replace(
        self, name: str, body: GuardrailSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Replace a guardrail. Needs the permission `guardrails:update`."""
        return await self._connection.json(
            Call(
                "PUT",
                f"/guardrails/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def update(
        self,
        name: str,
        body: GuardrailPatch,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> GuardrailView: ...
    @overload
    async def update(
        self, name: str, body: GuardrailPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    async def update(
        self, name: str, body: GuardrailPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Change a guardrail. Needs the permission `guardrails:update`."""
        return await self._connection.json(
            Call(
                "PATCH",
                f"/guardrails/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> GuardrailView: ...
    @overload
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    async def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Delete a guardrail. Needs the permission `guardrails:delete`."""
        return await self._connection.json(
            Call("DELETE", f"/guardrails/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    async def evaluate(self, body: Tried) -> Evaluation:
        """Run a text through the guardrails in force. Needs the permission `guardrails:evaluate`."""
        return await self._connection.json(Call("POST", "/guardrails:evaluate", body=body))
