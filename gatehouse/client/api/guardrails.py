"""The admin API below /guardrails. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.guardrails import (
    Evaluation,
    GuardrailDryRun,
    GuardrailPage,
    GuardrailPatch,
    GuardrailSpec,
    GuardrailView,
    Tried,
)


class GuardrailsApi:
    """Operations below /guardrails."""

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
    ) -> GuardrailPage:
        """List guardrails. Needs the permission `guardrails:read`."""
        return self._connection.json(
            Call("GET", "/guardrails", query={"limit": limit, "cursor": cursor, "prefix": prefix, "tenant": tenant, "source": source})
        )

    def iterate(
        self,
        *,
        limit: int | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        source: Literal["file", "store"] | None = None,
    ) -> Iterator[GuardrailView]:
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
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[False] = False
    ) -> GuardrailView: ...
    @overload
    def create(
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    def create(
        self, body: GuardrailSpec, *, wait: float | None = None, idempotency_key: str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Create a guardrail. Needs the permission `guardrails:create`."""
        return self._connection.json(
            Call(
                "POST",
                "/guardrails",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"Idempotency-Key": idempotency_key},
            )
        )

    def get(self, name: str) -> GuardrailView:
        """Show a guardrail. Needs the permission `guardrails:read`."""
        return self._connection.json(Call("GET", f"/guardrails/{segment(name)}"))

    @overload
    def replace(
        self,
        name: str,
        body: GuardrailSpec,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> GuardrailView: ...
    @overload
    def replace(
        self, name: str, body: GuardrailSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    def replace(
        self, name: str, body: GuardrailSpec, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Replace a guardrail. Needs the permission `guardrails:update`."""
        return self._connection.json(
            Call(
                "PUT",
                f"/guardrails/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def update(
        self,
        name: str,
        body: GuardrailPatch,
        *,
        wait: float | None = None,
        if_match: int | str | None = None,
        dry_run: Literal[False] = False,
    ) -> GuardrailView: ...
    @overload
    def update(
        self, name: str, body: GuardrailPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    def update(
        self, name: str, body: GuardrailPatch, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Change a guardrail. Needs the permission `guardrails:update`."""
        return self._connection.json(
            Call(
                "PATCH",
                f"/guardrails/{segment(name)}",
                query={"dry_run": dry_run or None, "wait": wait},
                body=body,
                headers={"If-Match": if_match},
            )
        )

    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[False] = False
    ) -> GuardrailView: ...
    @overload
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: Literal[True]
    ) -> GuardrailDryRun: ...
    def delete(
        self, name: str, *, wait: float | None = None, if_match: int | str | None = None, dry_run: bool = False
    ) -> GuardrailView | GuardrailDryRun:
        """Delete a guardrail. Needs the permission `guardrails:delete`."""
        return self._connection.json(
            Call("DELETE", f"/guardrails/{segment(name)}", query={"dry_run": dry_run or None, "wait": wait}, headers={"If-Match": if_match})
        )

    def evaluate(self, body: Tried) -> Evaluation:
        """Run a text through the guardrails in force. Needs the permission `guardrails:evaluate`."""
        return self._connection.json(Call("POST", "/guardrails:evaluate", body=body))
