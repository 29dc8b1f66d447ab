"""Types of the operations below /webhooks. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class DeliveryDryRun(TypedDict):
    result: DeliveryView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class DeliveryPage(TypedDict):
    items: list[DeliveryView]
    cursor: NotRequired[str | None]


class DeliveryView(TypedDict):
    """status: pending, delivered, failed (given up). due: when it is tried next. code: the status of the last answer, 0 without one."""

    id: str
    webhook: str
    event: str
    created: str
    due: str
    attempts: int
    status: str
    code: int
    error: str


class WebhookPage(TypedDict):
    items: list[WebhookView]
    cursor: NotRequired[str | None]


class WebhookView(TypedDict):
    """url: without its query. timeout: seconds."""

    name: str
    url: str
    events: list[str]
    timeout: float
