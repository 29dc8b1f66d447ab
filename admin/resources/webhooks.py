"""Webhooks: who is told of events, and how that went lately."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from gateway.core.errors import StoreUnavailable


class WebhookView(msgspec.Struct):
    """url: without its query. timeout: seconds."""

    name: str
    url: str
    events: list[str]
    timeout: float


class WebhookPage(msgspec.Struct):
    items: list[WebhookView]
    cursor: str | None = None


class DeliveryView(msgspec.Struct):
    """status: pending, delivered, failed (given up). due: when it is tried next. code: the status of the last answer, 0 without one."""

    id: str
    webhook: str
    event: str
    created: Timestamp
    due: Timestamp
    attempts: int
    status: str
    code: int
    error: str


class DeliveryPage(msgspec.Struct):
    items: list[DeliveryView]
    cursor: str | None = None


class DeliveryDryRun(msgspec.Struct):
    result: DeliveryView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class DeliveryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """webhook: only its own. limit: the newest so many."""

    webhook: Annotated[str, Meta(max_length=128)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


async def index(call: Call) -> Answer:
    return Answer({"items": _port(call).views(), "cursor": None})


async def deliveries(call: Call) -> Answer:
    query: DeliveryQuery = call.query
    found = await _port(call).deliveries(query.webhook, query.limit)
    return Answer({"items": [_view(one) for one in found], "cursor": None})


async def test(call: Call) -> Answer:
    """Sends an event `webhook_test` once, now."""
    call.target = f"webhooks/{call.path['name']}"
    view = _view(await _port(call).test(call.path["name"], call.actor, dry_run=call.dry_run))
    return Answer({"dry_run": True, "diff": [], "result": view} if call.dry_run else view)


def _view(one: Any) -> dict[str, Any]:
    return {
        "id": one.id,
        "webhook": one.webhook,
        "event": one.event,
        "created": timestamp(one.created),
        "due": timestamp(one.due),
        "attempts": one.attempts,
        "status": one.status,
        "code": one.code,
        "error": one.error,
    }


def _port(call: Call) -> Any:
    if call.ports.webhooks is None:
        raise StoreUnavailable("This process has no store, and so no queue of webhooks.")
    return call.ports.webhooks


def operations() -> list[Operation]:
    return [
        Operation("GET", "webhooks", "webhooks:read", "List the webhooks", index, WebhookPage),
        Operation("GET", "webhooks:deliveries", "webhooks:read", "List the last deliveries", deliveries, DeliveryPage, query=DeliveryQuery),
        Operation("POST", "webhooks/{name}/test", "webhooks:test", "Send a test event", test, (DeliveryView, DeliveryDryRun), Written),
    ]
