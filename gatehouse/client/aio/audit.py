"""The admin API below /audit. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, overload

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call, segment
from gatehouse.client.types.audit import (
    AuditKeyDryRun,
    AuditKeys,
    Consistency,
    DataKeyDryRun,
    DataKeyPage,
    DataKeysRotation,
    Found,
    FoundList,
    HoldDryRun,
    HoldPage,
    HoldSettings,
    HoldView,
    Proofs,
    Records,
    Report,
    RevealDecision,
    RevealDryRun,
    Revealed,
    RevealPage,
    RevealSettings,
    RevealView,
    RotatedKey,
    Shredded,
    Shredding,
    ShredDryRun,
    Verification,
)


class AsyncAuditApi:
    """Operations below /audit."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def records(self, *, count: int | None = None, writer: str | None = None) -> Records:
        """Show the newest records. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", "/audit/records", query={"count": count, "writer": writer}))

    def export(
        self,
        *,
        since: str | float | None = None,
        until: str | float | None = None,
        tenant: str | None = None,
        principal: str | None = None,
        model: str | None = None,
        kind: Literal["checkpoint", "event", "intent", "outcome", "segment"] | None = None,
        event: str | None = None,
        outcome: str | None = None,
        request_id: str | None = None,
        writer: str | None = None,
        format: Literal["cef", "csv", "jsonl", "ocsf"] | None = None,
        sealed: bool | None = None,
    ) -> AsyncIterator[bytes]:
        """Export records. Needs the permission `audit:export`."""
        return self._connection.parts(
            Call(
                "GET",
                "/audit/export",
                query={
                    "since": since,
                    "until": until,
                    "tenant": tenant,
                    "principal": principal,
                    "model": model,
                    "kind": kind,
                    "event": event,
                    "outcome": outcome,
                    "request_id": request_id,
                    "writer": writer,
                    "format": format,
                    "sealed": sealed,
                },
            )
        )

    async def verify(self, *, from_segment: str | None = None, archived: str | None = None) -> Verification:
        """Verify the log. Needs the permission `audit:verify`."""
        return await self._connection.json(Call("POST", "/audit/verify", query={"from_segment": from_segment, "archived": archived}))

    async def proofs(self, request_id: str) -> Proofs:
        """Prove a request's records. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", f"/audit/proofs/{segment(request_id)}"))

    async def consistency(self, *, writer: str, first: int, second: int | None = None) -> Consistency:
        """Prove that a checkpoint goes on from an older one. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", "/audit/consistency", query={"writer": writer, "first": first, "second": second}))

    @overload
    async def create_keys(self, *, wait: float | None = None, dry_run: Literal[False] = False) -> RotatedKey: ...
    @overload
    async def create_keys(self, *, wait: float | None = None, dry_run: Literal[True]) -> AuditKeyDryRun: ...
    async def create_keys(self, *, wait: float | None = None, dry_run: bool = False) -> RotatedKey | AuditKeyDryRun:
        """Replace the key that signs the log. Needs the permission `audit:rotate`."""
        return await self._connection.json(Call("POST", "/audit/keys", query={"dry_run": dry_run or None, "wait": wait}))

    async def keys(self) -> AuditKeys:
        """Show the keys that checkpoints are verified with. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", "/audit/keys"))

    async def bundles(self, request_id: str) -> bytes:
        """Get a request's evidence bundle. Needs the permission `audit:export`."""
        return (await self._connection.send(Call("GET", f"/audit/bundles/{segment(request_id)}"))).content

    async def search(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        method: str | None = None,
        peer: str | None = None,
        operation: str | None = None,
        model: str | None = None,
        endpoint: str | None = None,
        outcome: str | None = None,
        code: str | None = None,
        rule: str | None = None,
        decision: str | None = None,
        guardrail: str | None = None,
        event: str | None = None,
        actor: str | None = None,
        target: str | None = None,
        writer: str | None = None,
        kind: Literal["event", "request"] | None = None,
        since: str | float | None = None,
        until: str | float | None = None,
        records: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> FoundList:
        """Search requests and events. Needs the permission `records:search`."""
        return await self._connection.json(
            Call(
                "GET",
                "/audit/search",
                query={
                    "request_id": request_id,
                    "tenant": tenant,
                    "key": key,
                    "user": user,
                    "agent": agent,
                    "session": session,
                    "method": method,
                    "peer": peer,
                    "operation": operation,
                    "model": model,
                    "endpoint": endpoint,
                    "outcome": outcome,
                    "code": code,
                    "rule": rule,
                    "decision": decision,
                    "guardrail": guardrail,
                    "event": event,
                    "actor": actor,
                    "target": target,
                    "writer": writer,
                    "kind": kind,
                    "since": since,
                    "until": until,
                    "records": records,
                    "limit": limit,
                    "cursor": cursor,
                },
            )
        )

    async def iterate_search(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        method: str | None = None,
        peer: str | None = None,
        operation: str | None = None,
        model: str | None = None,
        endpoint: str | None = None,
        outcome: str | None = None,
        code: str | None = None,
        rule: str | None = None,
        decision: str | None = None,
        guardrail: str | None = None,
        event: str | None = None,
        actor: str | None = None,
        target: str | None = None,
        writer: str | None = None,
        kind: Literal["event", "request"] | None = None,
        since: str | float | None = None,
        until: str | float | None = None,
        records: bool | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Found]:
        """All of `search`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.search(
                request_id=request_id,
                tenant=tenant,
                key=key,
                user=user,
                agent=agent,
                session=session,
                method=method,
                peer=peer,
                operation=operation,
                model=model,
                endpoint=endpoint,
                outcome=outcome,
                code=code,
                rule=rule,
                decision=decision,
                guardrail=guardrail,
                event=event,
                actor=actor,
                target=target,
                writer=writer,
                kind=kind,
                since=since,
                until=until,
                records=records,
                limit=limit,
                cursor=cursor,
            )
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    async def report(
        self, *, since: str | float, until: str | float | None = None, tenant: str | None = None, verify: bool | None = None
    ) -> Report:
        """Report on a period. Needs the permission `records:report`."""
        return await self._connection.json(
            Call("GET", "/audit/report", query={"since": since, "until": until, "tenant": tenant, "verify": verify})
        )

    async def data_keys(self, *, tenant: str | None = None) -> DataKeyPage:
        """List the keys of texts. Needs the permission `audit:keys`."""
        return await self._connection.json(Call("GET", "/audit/data-keys", query={"tenant": tenant}))

    @overload
    async def data_keys_rotate(
        self, body: DataKeysRotation, *, wait: float | None = None, dry_run: Literal[False] = False
    ) -> DataKeyPage: ...
    @overload
    async def data_keys_rotate(self, body: DataKeysRotation, *, wait: float | None = None, dry_run: Literal[True]) -> DataKeyDryRun: ...
    async def data_keys_rotate(
        self, body: DataKeysRotation, *, wait: float | None = None, dry_run: bool = False
    ) -> DataKeyPage | DataKeyDryRun:
        """Rotate the keys of texts. Needs the permission `audit:keys`."""
        return await self._connection.json(
            Call("POST", "/audit/data-keys/rotate", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    async def data_keys_shred(self, *, tenant: str) -> Shredded:
        """Show what shredding destroys. Needs the permission `audit:shred`."""
        return await self._connection.json(Call("GET", "/audit/data-keys/shred", query={"tenant": tenant}))

    @overload
    async def create_data_keys_shred(self, body: Shredding, *, wait: float | None = None, dry_run: Literal[False] = False) -> Shredded: ...
    @overload
    async def create_data_keys_shred(self, body: Shredding, *, wait: float | None = None, dry_run: Literal[True]) -> ShredDryRun: ...
    async def create_data_keys_shred(self, body: Shredding, *, wait: float | None = None, dry_run: bool = False) -> Shredded | ShredDryRun:
        """Destroy a tenant's keys, and so its texts. Needs the permission `audit:shred`."""
        return await self._connection.json(
            Call("POST", "/audit/data-keys/shred", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    async def reveals(self, *, limit: int | None = None, cursor: str | None = None) -> RevealPage:
        """List reveals. Needs the permission `audit:reveal`."""
        return await self._connection.json(Call("GET", "/audit/reveals", query={"limit": limit, "cursor": cursor}))

    async def iterate_reveals(self, *, limit: int | None = None) -> AsyncIterator[RevealView]:
        """All of `reveals`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.reveals(limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create_reveals(self, body: RevealSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> RevealView: ...
    @overload
    async def create_reveals(self, body: RevealSettings, *, wait: float | None = None, dry_run: Literal[True]) -> RevealDryRun: ...
    async def create_reveals(self, body: RevealSettings, *, wait: float | None = None, dry_run: bool = False) -> RevealView | RevealDryRun:
        """Ask for a request's texts. Needs the permission `audit:reveal`."""
        return await self._connection.json(Call("POST", "/audit/reveals", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    async def get_reveals(self, id: str) -> RevealView:
        """Show a reveal. Needs the permission `audit:reveal`."""
        return await self._connection.json(Call("GET", f"/audit/reveals/{segment(id)}"))

    @overload
    async def reveals_approve(
        self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: Literal[False] = False
    ) -> RevealView: ...
    @overload
    async def reveals_approve(
        self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: Literal[True]
    ) -> RevealDryRun: ...
    async def reveals_approve(
        self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: bool = False
    ) -> RevealView | RevealDryRun:
        """Approve a reveal. Needs the permission `audit:approve`."""
        return await self._connection.json(
            Call("POST", f"/audit/reveals/{segment(id)}/approve", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    @overload
    async def reveals_deny(
        self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: Literal[False] = False
    ) -> RevealView: ...
    @overload
    async def reveals_deny(self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: Literal[True]) -> RevealDryRun: ...
    async def reveals_deny(
        self, id: str, body: RevealDecision, *, wait: float | None = None, dry_run: bool = False
    ) -> RevealView | RevealDryRun:
        """Deny a reveal. Needs the permission `audit:approve`."""
        return await self._connection.json(
            Call("POST", f"/audit/reveals/{segment(id)}/deny", query={"dry_run": dry_run or None, "wait": wait}, body=body)
        )

    async def reveals_fetch(self, id: str, *, wait: float | None = None, dry_run: bool = False) -> Revealed:
        """Fetch the texts, once. Needs the permission `audit:reveal`."""
        return await self._connection.json(
            Call("POST", f"/audit/reveals/{segment(id)}/fetch", query={"dry_run": dry_run or None, "wait": wait})
        )

    async def holds(self, *, limit: int | None = None, cursor: str | None = None) -> HoldPage:
        """List legal holds. Needs the permission `audit:read`."""
        return await self._connection.json(Call("GET", "/audit/holds", query={"limit": limit, "cursor": cursor}))

    async def iterate_holds(self, *, limit: int | None = None) -> AsyncIterator[HoldView]:
        """All of `holds`, page after page; `limit`: of a page."""
        cursor: str | None = None
        while True:
            page = await self.holds(limit=limit, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("cursor")
            if cursor is None:
                return

    @overload
    async def create_holds(self, body: HoldSettings, *, wait: float | None = None, dry_run: Literal[False] = False) -> HoldPage: ...
    @overload
    async def create_holds(self, body: HoldSettings, *, wait: float | None = None, dry_run: Literal[True]) -> HoldDryRun: ...
    async def create_holds(self, body: HoldSettings, *, wait: float | None = None, dry_run: bool = False) -> HoldPage | HoldDryRun:
        """Hold a tenant's audit records. Needs the permission `audit:hold`."""
        return await self._connection.json(Call("POST", "/audit/holds", query={"dry_run": dry_run or None, "wait": wait}, body=body))

    @overload
    async def delete_holds(self, tenant: str, *, why: str, wait: float | None = None, dry_run: Literal[False] = False) -> HoldPage: ...
    @overload
    async def delete_holds(self, tenant: str, *, why: str, wait: float | None = None, dry_run: Literal[True]) -> HoldDryRun: ...
    async def delete_holds(self, tenant: str, *, why: str, wait: float | None = None, dry_run: bool = False) -> HoldPage | HoldDryRun:
        """Take a legal hold back. Needs the permission `audit:hold`."""
        return await self._connection.json(
            Call("DELETE", f"/audit/holds/{segment(tenant)}", query={"dry_run": dry_run or None, "why": why, "wait": wait})
        )
