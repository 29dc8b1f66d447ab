"""What the composition root hands to the admin API: every port it talks to, already built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.core.clock import Clock, SystemClock
from gateway.core.modelfiles import ModelFiles
from gateway.core.ports import AuditReader, Authenticator, ConfigApplier, Feed, FleetView, ModelControl, PolicyTester
from gateway.core.storage import ControlStore
from gateway.core.types import EventRecord
from gateway.core.waiting import Signal


class EventLog(Protocol):
    """The audit log, as far as the admin API writes to it."""

    @property
    def accepting(self) -> bool: ...

    def event(self, record: EventRecord) -> Signal[None]:
        """Completes when the record is durable; fails with AuditUnavailable."""
        ...


class ResourceCheck(Protocol):
    """Checks what only a resource's user knows (such as a guardrail's own settings): whether it could be put into force."""

    async def __call__(self, kind: str, body: dict[str, Any], beside: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
        """Raises ConfigError, without changing anything. beside: other resources (kind, body) that are stored in the same write."""
        ...


async def nothing_to_check(kind: str, body: dict[str, Any], beside: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
    """For a composition without plug-ins."""


async def alone() -> dict[str, Any]:
    """For a composition without other replicas."""
    return {"replicas": [], "jobs": []}


@dataclass(frozen=True)
class Ports:
    """store: None without a store; operations that need it then get 503. matches: name patterns, as the policies read
    them (pattern, name). replicas: those on the same store, and the jobs that one does for all."""

    authenticator: Authenticator
    config: ConfigApplier
    fleet: FleetView
    control: ModelControl
    policies: PolicyTester
    audit: EventLog
    audit_reader: AuditReader
    feed: Feed
    files: ModelFiles
    matches: Callable[[str, str], bool]
    store: ControlStore | None = None
    replicas: Callable[[], Awaitable[dict[str, Any]]] = alone
    check: ResourceCheck = nothing_to_check
    clock: Clock = field(default_factory=SystemClock)
