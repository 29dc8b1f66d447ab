"""The admin API below /webhooks. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, overload

from gatehouse.client.calls import Call, segment
from gatehouse.client.connection import Connection
from gatehouse.client.types.webhooks import DeliveryDryRun, DeliveryPage, DeliveryView, WebhookPage


class WebhooksApi:
    """Operations below /webhooks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> WebhookPage:
        """List the webhooks. Needs the permission `webhooks:read`."""
        return self._connection.json(Call("GET", "/webhooks"))

    def deliveries(self, *, webhook: str | None = None, limit: int | None = None) -> DeliveryPage:
        """List the last deliveries. Needs the permission `webhooks:read`."""
        return self._connection.json(Call("GET", "/webhooks:deliveries", query={"webhook": webhook, "limit": limit}))

    @overload
    def test(self, name: str, *, wait: float | None = None, dry_run: Literal[False] = False) -> DeliveryView: ...
    @overload
    def test(self, name: str, *, wait: float | None = None, dry_run: Literal[True]) -> DeliveryDryRun: ...
    def test(self, name: str, *, wait: float | None = None, dry_run: bool = False) -> DeliveryView | DeliveryDryRun:
        """Send a test event. Needs the permission `webhooks:test`."""
        return self._connection.json(Call("POST", f"/webhooks/{segment(name)}/test", query={"dry_run": dry_run or None, "wait": wait}))
