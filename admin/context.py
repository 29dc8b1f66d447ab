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


class Upgrade(Protocol):
    """Replaces the running program by the one that is installed now."""

    def view(self) -> dict[str, Any]:
        """How it stands."""
        ...

    async def begin(self, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Checks the new program and begins. Raises GatehouseError with the reason if it cannot be; nothing has changed then."""
        ...


async def nothing_to_check(kind: str, body: dict[str, Any], beside: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
    """For a composition without plug-ins."""


async def alone() -> dict[str, Any]:
    """For a composition without other replicas."""
    return {"replicas": [], "jobs": []}


class WorkerControl(Protocol):
    """The processes that serve requests, where they are not the one that answers."""

    def views(self) -> list[dict[str, Any]]: ...

    async def replace(self, id: str) -> None:
        """Starts another one in its place, and has it finish once the other serves. Raises GatehouseError; then it goes on."""
        ...


async def at_once(seconds: float) -> bool:
    """For a composition in which a change is in force when its write is done."""
    return True


@dataclass(frozen=True)
class Ports:
    """store: None without a store; operations that need it then get 503. matches: name patterns, as the policies read
    them (pattern, name). in_force: waits for so many seconds until everything written here so far is in force in each process of this
    gateway, and says whether it is. workers: None where this process serves. replicas: those on the same store, and the jobs that one
    does for all. upgrade: None where a program cannot be replaced."""

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
    in_force: Callable[[float], Awaitable[bool]] = at_once
    workers: WorkerControl | None = None
    upgrade: Upgrade | None = None
    clock: Clock = field(default_factory=SystemClock)
