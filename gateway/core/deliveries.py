"""Deliveries of webhooks: the event, its receiver, and the attempts so far; part of gateway.core.storage.ControlStore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Delivery(Struct, frozen=True, kw_only=True):
    """One event for one webhook. id: the same for what must be told once. body: JSON. status: pending, delivered, failed (given up). due:
    when it is tried next. keep: it is not forgotten before then, so that nothing with its id is told again. attempts: so far. code: the
    status of the last answer, 0 without one. error: of the last attempt."""

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
    """A bounded queue that lasts. Several replicas may work on it."""

    async def add_deliveries(self, wanted: Sequence[Delivery], most: int) -> int:
        """Queues those whose id is not known yet, while fewer than `most` wait; returns how many are known or queued now."""
        ...

    async def take_deliveries(self, now: float, until: float, most: int = 16) -> Sequence[Delivery]:
        """Those that are due, each for this caller alone until then: unless it is settled before, it is due again. Counts the attempt."""
        ...

    async def settle_delivery(self, id: str, *, status: str, due: float, code: int, error: str) -> None:
        """Says how an attempt went."""
        ...

    async def deliveries(self, webhook: str | None = None, *, limit: int = 100) -> Sequence[Delivery]:
        """The newest ones."""
        ...

    async def forget_deliveries(self, before: float, most: int) -> int:
        """Deletes those that are settled, and neither made nor to be kept after then; beyond `most` the oldest settled ones. Returns how
        many."""
        ...
