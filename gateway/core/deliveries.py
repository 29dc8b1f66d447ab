"""Deliveries of webhooks: the event, its receiver, and the attempts so far; part of gateway.core.storage.ControlStore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Delivery(Struct, frozen=True, kw_only=True):
    """One event for one webhook. id: the same for what must be told once. body: JSON. status: pending, delivered, failed (given up).
    created: when it was queued, due: when it is tried next, by the store's clock. keep: it is not forgotten before then, so that nothing
    with its id is told again. attempts: so far. code: the status of the last answer, 0 without one. error: of the last attempt."""

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
    """A bounded queue that lasts. Several replicas may work on it; its times are the store's, as their clocks may differ."""

    async def add_deliveries(self, wanted: Sequence[Delivery], most: int) -> int:
        """Queues those whose id is not known yet, while fewer than `most` wait; returns how many are known or queued now."""
        ...

    async def take_deliveries(self, hold: float, farthest: float, most: int = 16) -> Sequence[Delivery]:
        """Those that are due, each for this caller alone for `hold` seconds: unless it is settled before, it is due again. Counts the
        attempt. farthest: what would be due later than so many seconds from now is due: somebody has set the store's clock back."""
        ...

    async def settle_delivery(self, id: str, *, status: str, pause: float, code: int, error: str) -> None:
        """Says how an attempt went. pause: seconds until the next one."""
        ...

    async def deliveries(self, webhook: str | None = None, *, limit: int = 100) -> Sequence[Delivery]:
        """The newest ones."""
        ...

    async def forget_deliveries(self, age: float, most: int) -> int:
        """Deletes those that are settled, and neither made nor to be kept in the last `age` seconds; beyond `most` the oldest settled ones.
        Returns how many."""
        ...
