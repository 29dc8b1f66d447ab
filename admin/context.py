"""What the composition root hands to the admin API: every port it talks to, already built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from admin.ports import (
    ApprovalControl,
    AuditIndexReader,
    BatchControl,
    CacheControl,
    ClientFileControl,
    EventLog,
    GuardrailTester,
    HaltControl,
    HoldControl,
    KeyHolders,
    LimitControl,
    LogLevelControl,
    Replays,
    ResourceCheck,
    RevocationControl,
    RoleBook,
    TextControl,
    TokenControl,
    Upgrade,
    WebhookControl,
    WorkerControl,
)
from gateway.core.approvals import ApprovalRecord
from gateway.core.clock import Clock, SystemClock
from gateway.core.jobs import JobControl
from gateway.core.modelfiles import ModelFiles
from gateway.core.modelshare import ModelCopies
from gateway.core.ports import AuditReader, Authenticator, ConfigApplier, Feed, FleetView, ModelControl, PolicyTester
from gateway.core.prices import LineUp
from gateway.core.rollouts import RolloutControl
from gateway.core.specs import StepUpSpec
from gateway.core.storage import ControlStore
from gateway.core.write_set import NO_OTHERS, WriteSet


async def nothing_to_check(kind: str, body: dict[str, Any], writes: WriteSet = NO_OTHERS) -> None:
    """The ResourceCheck of a composition without plug-ins."""


async def alone() -> dict[str, Any]:
    """For a composition without other replicas."""
    return {"replicas": [], "jobs": []}


async def noted(tenant: str, user: str) -> None:
    """For a composition that notes no logins."""


def unscaled() -> dict[str, Any]:
    """For a composition without engines."""
    return {"pools": [], "engines": []}


async def at_once(seconds: float) -> bool:
    """Waits for nothing: for a composition in which a change is in force as soon as it is written."""
    return True


@dataclass(frozen=True)
class Ports:
    """An optional port is None if this gateway lacks what it is about: a store, or the setting that enables it."""

    authenticator: Authenticator
    config: ConfigApplier
    roles: RoleBook
    fleet: FleetView
    control: ModelControl
    policies: PolicyTester
    audit: EventLog
    audit_reader: AuditReader
    feed: Feed
    files: ModelFiles
    matches: Callable[[str, str], bool]
    """(pattern, name): name patterns as the policies read them."""
    store: ControlStore | None = None
    """Without a store, operations that need it get 503."""
    replicas: Callable[[], Awaitable[dict[str, Any]]] = alone
    """The replicas on the same store, and the jobs that one of them does for all."""
    check: ResourceCheck = nothing_to_check
    in_force: Callable[[float], Awaitable[bool]] = at_once
    """Waits for so many seconds until everything written here so far is in force in each process of this gateway; whether it is."""
    workers: WorkerControl | None = None
    """None if this process serves requests itself."""
    upgrade: Upgrade | None = None
    """None if the program cannot be replaced."""
    step_up: Callable[[], Sequence[StepUpSpec]] = tuple
    """The rules in force."""
    tokens: TokenControl | None = None
    revocations: RevocationControl | None = None
    halts: HaltControl | None = None
    approvals: ApprovalControl | None = None
    approvals_webhook: Callable[[Mapping[str, str], bytes], Awaitable[ApprovalRecord]] | None = None
    """Takes a signed decision (headers, body)."""
    batches: BatchControl | None = None
    jobs: JobControl | None = None
    client_files: ClientFileControl | None = None
    limits: LimitControl | None = None
    webhooks: WebhookControl | None = None
    replays: Replays | None = None
    """None if nothing is decided here."""
    audit_index: AuditIndexReader | None = None
    """None if the audit log cannot be searched."""
    guardrails: GuardrailTester | None = None
    holders: KeyHolders | None = None
    logins: Callable[[], list[dict[str, Any]]] = list
    """Where people can log in (`gatehouse login`). Nothing of it is secret."""
    prices: Callable[[], Mapping[str, LineUp]] = dict
    """The prices of the models in force that have some, by name."""
    reconcile: Callable[[], Awaitable[dict[str, Any]]] | None = None
    """Compares the stored usage with the audit log. None in a process without a store."""
    note_login: Callable[[str, str], Awaitable[None]] = noted
    """Writes the login of a user (tenant, user) to the store now, if it is waiting for that."""
    log_levels: LogLevelControl | None = None
    model_copies: ModelCopies | None = None
    caches: CacheControl | None = None
    rollouts: RolloutControl | None = None
    texts: TextControl | None = None
    """Texts in the audit log. None without a store."""
    holds: HoldControl | None = None
    """Legal holds. None without a store."""
    scaling: Callable[[], dict[str, Any]] = unscaled
    machines: Callable[[str], dict[str, Any]] | None = None
    """What is heard of a joined machine, by its name. None without a store."""
    joining: Callable[[str, Mapping[str, str], bytes, str], Awaitable[tuple[int, bytes]]] | None = None
    """What machines say (admin.joining). None without a store."""
    clock: Clock = field(default_factory=SystemClock)
