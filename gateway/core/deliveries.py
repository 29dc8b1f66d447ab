"""Deliveries of webhooks: the event, its receiver, and the attempts so far; part of gateway.core.storage.ControlStore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Delivery(Struct, frozen=True, kw_only=True):
    """One event for one webhook. id: deliveries with the same id are sent once. body: JSON. status: pending, delivered, or failed (given
    up). created: when it was queued; due: when it is tried next; both by the store's clock. keep: the row is kept until then, so that its
    id is not sent again. attempts: so far. code: HTTP status of the last answer, 0 if there was none. error: of the last attempt."""

    id: str
    webhook: str
    event: str
    body: str
    created: float
    due: float
    keep: float = 0.0
    attempts: int = 0
    status: str = "pending"
    code: int = 0
    error: str = ""


class DeliveryStorage(Protocol):
    """A bounded, durable queue. Several replicas may work on it, so all times are by the store's clock."""

    async def add_deliveries(self, wanted: Sequence[Delivery], most: int) -> int:
        """Queues deliveries with new ids, as long as fewer than `most` are waiting. Returns how many of `wanted` are in the table then."""
        ...

    async def take_deliveries(self, hold: float, farthest: float, most: int = 16) -> Sequence[Delivery]:
        """Takes deliveries that are due, and counts an attempt for each. For `hold` seconds nobody else gets them; one that is not settled
        by then is due again. farthest: one that is due later than so many seconds from now counts as due, since the store's clock must have
        been set back."""
        ...

    async def settle_delivery(self, id: str, *, status: str, pause: float, code: int, error: str) -> None:
        """Stores how an attempt went. pause: seconds until the next one."""
        ...

    async def deliveries(self, webhook: str | None = None, *, limit: int = 100) -> Sequence[Delivery]:
        """The newest ones."""
        ...

    async def forget_deliveries(self, age: float, most: int) -> int:
        """Deletes settled deliveries that are older than `age` seconds and need not be kept, then the oldest settled ones until at most
        `most` are left. Returns how many were deleted."""
        ...
