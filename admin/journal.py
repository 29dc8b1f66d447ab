"""Records administrators' actions in the audit log: an intent before each write, the outcome with the difference after it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import msgspec
from starlette.requests import Request

from admin import values
from admin.auth import peer_of
from admin.operation import Call
from admin.permissions import Access
from admin.ports import EventLog
from gateway.core.clock import Clock
from gateway.core.errors import AuditUnavailable, GatehouseError
from gateway.core.ports import Feed
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future

log = logging.getLogger("gatehouse.admin")
MAX_DIFF = 64 * 1024
"""Largest difference in a record, in bytes; a larger one is reduced to its paths."""
BESIDE = 32 * 1024
"""A body of more bytes is masked in a thread."""
MAX_SHOWN = 1024 * 1024
"""Largest body in a record, in bytes."""


class Journal:
    """Writes `admin.RESOURCE.VERB` events: outcome `begun`, then `ok`, `refused`, `denied` or `failed`. Secrets are masked."""

    def __init__(self, audit: EventLog, feed: Feed, clock: Clock) -> None:
        self._audit, self._feed, self._clock = audit, feed, clock

    async def begin(self, call: Call) -> None:
        """Returns when the intent is durable. Raises AuditUnavailable: then nothing may be changed."""
        if not self._audit.accepting:
            raise AuditUnavailable("The audit log cannot take records, so nothing was changed.")
        await as_future(self._audit.event(self._record(call, "begun", {**_where(call), **_path(call), "body": await _shown(call)})))

    async def end(self, call: Call, outcome: str, code: str = "") -> None:
        """Records the outcome. The write has happened, so a failing log is reported by `/readyz`, not to the caller."""
        detail: dict[str, Any] = {**_where(call), "diff": _bounded(call.diff)}
        if code:
            detail["code"] = code
        record = self._record(call, outcome, detail)
        try:
            await asyncio.shield(as_future(self._audit.event(record)))
        except GatehouseError as error:
            log.error("the outcome of an administrative write is not in the audit log: %s", error)
        self._feed.publish("admin", {"event": record.event, "actor": record.actor, "target": record.target, "outcome": outcome})

    def denied(self, access: Access, permission: str, request: Request, request_id: str) -> None:
        """Records that a known caller asked for something they may not do."""
        detail = {"peer": peer_of(request.scope).address, "request_id": request_id}
        self._note(f"admin.{permission.replace(':', '.')}", access.actor, request.scope["path"], "denied", detail)

    def login_failed(self, request: Request, request_id: str, code: str) -> None:
        """Records the first of a peer's series of failed logins."""
        peer = peer_of(request.scope).address
        self._note("admin.login", "", peer, "denied", {"code": code, "request_id": request_id})

    def _note(self, event: str, actor: str, target: str, outcome: str, detail: dict[str, Any]) -> None:
        self._audit.event(EventRecord(self._clock.wall(), event, actor, target[:256], outcome, detail))

    def _record(self, call: Call, outcome: str, detail: dict[str, Any]) -> EventRecord:
        event = f"admin.{call.operation.permission.replace(':', '.')}"
        target = (call.target or call.request.scope["path"])[:256]
        return EventRecord(self._clock.wall(), event, call.actor, target, outcome, detail, tuple(sorted(call.tenants)))


def _where(call: Call) -> dict[str, Any]:
    return {"peer": peer_of(call.request.scope).address, "request_id": call.request_id, "method": call.operation.method}


def _path(call: Call) -> dict[str, Any]:
    """The tenant that the path of a write names: what it is about is known before the handler has looked."""
    name = call.path.get("tenant") or (call.path.get("name") if call.operation.segments[0] == "tenants" else None)
    return {} if name is None else {"tenant": name}


async def _shown(call: Call) -> Any:
    """The body with its secrets masked; for a text only its hash and size, as it may hold secrets anywhere, and for a very long body."""
    if isinstance(call.body, bytes):
        return {"sha256": hashlib.sha256(call.body).hexdigest(), "bytes": len(call.body)} if call.body else None
    if len(call.raw) > MAX_SHOWN:
        return {"sha256": hashlib.sha256(call.raw).hexdigest(), "bytes": len(call.raw)}
    if len(call.raw) > BESIDE:
        return await asyncio.to_thread(lambda: values.mask(msgspec.to_builtins(call.body)))
    return values.mask(msgspec.to_builtins(call.body))


def _bounded(diff: list[dict[str, Any]]) -> Any:
    if len(msgspec.json.encode(diff)) <= MAX_DIFF:
        return diff
    return [{"path": entry["path"]} for entry in diff[:1000]]
