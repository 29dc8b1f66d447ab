"""Approvals in the process that has the store: keeping answers, giving them to retries, and what operators see and decide.

Everything lasts in the store (gateway.store.approvals), so that a restart changes nothing and any worker of any replica can answer. What
happens is recorded: `approval_asked`, `approval_seen`, `approval_decided`, `approval_returned`, `approval_expired`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import structs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.core.approvals import ApprovalRecord, Bounds, Held, HeldUse, Hold, Requester, Take, Taken, identities, named, shared
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, NotFound, PermissionDenied
from gateway.core.snapshot import Snapshot
from gateway.core.specs.approvals import ApprovalsSpec
from gateway.core.standing import Standing
from gateway.core.storage import KeyRecord, Page
from gateway.core.tasks import TaskOwner
from gateway.core.types import Principal
from gateway.store.approvals import StoredApprovals

log = logging.getLogger("gatehouse.approvals")
SWEEP_SECONDS: Final = 5.0
AT_ONCE: Final = 20
"""Expired approvals of which a turn of the loop tells."""
SEEN_EVENTS: Final = 16
"""Tools named in one event."""
Record = Callable[..., None]


class Requesters:
    """Whether those who asked may still get what they asked for. key: of the store. fixed: the ids of the configuration's own keys."""

    def __init__(
        self, standing: Standing, key: Callable[[str], Awaitable[KeyRecord]], fixed: Callable[[], Collection[str]], clock: Clock
    ) -> None:
        self._standing, self._key, self._fixed, self._clock = standing, key, fixed, clock

    async def check(self, requester: Requester, since: float) -> None:
        """since: when they asked, by the database's clock. Raises PermissionDenied for one who is suspended or halted, or whose key has
        ended, whoever has its id since; StoreUnavailable."""
        one = Principal(requester.id, requester.tenant, requester.kind, user=requester.user, agent=requester.agent)
        if self._standing.of(one) is not None:
            raise PermissionDenied("Whoever asked is suspended or halted.", code="requester_stopped")
        if requester.kind != "api_key" or requester.id in self._fixed():
            return
        try:
            key = await self._key(requester.id)
            ends = 0.0 if key.created > since else key.ends()
        except NotFound:
            ends = 0.0
        if ends is not None and ends <= self._clock.wall():
            raise PermissionDenied("The key that asked has ended.", code="requester_stopped")


class Approvers:
    """Who may decide, by the configuration in force: by the names of the guardrails that judge tools. They are looked for
    among the models once for each configuration."""

    def __init__(self, current: Callable[[], Snapshot]) -> None:
        self._current = current
        self._seen: Snapshot | None = None
        self._by_guardrail: dict[str, tuple[str, ...]] = {}

    def of(self, guardrail: str) -> tuple[str, ...] | None:
        """Empty: whoever has the permission. None: no guardrail of this name judges tools any more."""
        snapshot = self._current()
        if snapshot is not self._seen:
            chosen = {id(guards): guards for entry in snapshot.models.values() for guards in (entry.request_tools, entry.response_tools)}
            self._by_guardrail = {guard.name: tuple(guard.approvers) for guards in chosen.values() for guard in guards}
            self._seen = snapshot
        return self._by_guardrail.get(guardrail)


async def _anybody(requester: Requester, since: float) -> None:
    """Where nobody is stopped."""


class ApprovalBook:
    """Implements gateway.core.approvals.ApprovalDesk and the admin API's port. Life: `start` once the store has been started.

    settings: those in force. record: (event, target, detail, actor=, outcome=) for the audit log. notify: told of each approval that is
    asked for or decided. stands: (who, when they asked) raises PermissionDenied where whoever asked may no longer have it. approvers: of
    a guardrail by its name, as it is now; None where there is none any more.

    Who may decide is what the configuration says at that time, not when the answer was kept: who is no approver any more must not decide.
    """

    def __init__(
        self,
        kept: StoredApprovals,
        settings: Callable[[], ApprovalsSpec],
        record: Record,
        owner: TaskOwner,
        approvers: Callable[[str], tuple[str, ...] | None],
        notify: Callable[[str, ApprovalRecord], None] = lambda what, record: None,
        stands: Callable[[Requester, float], Awaitable[None]] = _anybody,
    ) -> None:
        self._stands, self._approvers = stands, approvers
        self._kept, self._settings, self._record, self._owner, self.notify = kept, settings, record, owner, notify
        self._counts: dict[str, int] = {}
        self._size = 0
        self._events: dict[str, int] = {}

    def start(self) -> None:
        self._owner.every(SWEEP_SECONDS, self.sweep, name="approvals")

    # --- for the data plane

    def hold(self, wanted: Hold) -> Awaitable[Held]:
        return self._owner.wait(self.keep(wanted), name="hold")

    def take(self, wanted: Take) -> Awaitable[Taken]:
        return self._owner.wait(self.give(wanted), name="take")

    async def keep(self, wanted: Hold) -> Held:
        """Raises Overloaded, RequestError, StoreUnavailable."""
        settings = self._settings()
        bounds = Bounds(answer=settings.max_bytes, total=settings.max_total_bytes, pending=settings.max_pending)
        record = await self._kept.hold(wanted, bounds)
        self._count("asked")
        self._record("approval_asked", record.id, self._detail(record), actor=_name(record))
        self.notify("asked", record)
        return record.held

    async def give(self, wanted: Take) -> Taken:
        """Raises StoreUnavailable, ConfigError."""
        taken = await self._kept.take(wanted)
        if taken.state == "taken":
            self._count("returned")
            actor = f"{wanted.requester.tenant}/{wanted.requester.id}"
            self._record("approval_returned", wanted.id, {"request_id": wanted.request_id, "tenant": wanted.requester.tenant}, actor=actor)
        return taken

    # --- for operators

    async def page(self, *, tenant: str | Sequence[str] | None, state: str | None, limit: int, cursor: str | None) -> Page[ApprovalRecord]:
        page = await self._kept.page(tenant=tenant, state=state, limit=limit, cursor=cursor)
        return structs.replace(page, items=tuple(self._as_now(record) for record in page.items))

    async def get(self, id: str) -> ApprovalRecord:
        """Raises NotFound."""
        return self._as_now(await self._kept.get(id))

    def _as_now(self, record: ApprovalRecord) -> ApprovalRecord:
        """With the approvers who may decide now, if nobody has decided yet. Where its guardrail is gone they stay: they may deny."""
        approvers = self._approvers(record.guardrail) if record.state == "pending" else None
        return record if approvers is None else structs.replace(record, approvers=approvers)

    async def show(self, id: str, actor: str) -> tuple[ApprovalRecord, list[HeldUse] | None]:
        """One approval with its calls in full, or None once they are erased. Records who has seen them. Raises NotFound, ConfigError."""
        record, content = await self._kept.read(id)
        if content is not None:
            detail = {"arguments_sha256": record.held.sha256, "tenant": record.requester.tenant}
            self._record("approval_seen", record.id, detail, actor=actor)
        return self._as_now(record), None if content is None else content.uses

    async def decide(
        self, id: str, approve: bool, reason: str, operator: Principal, actor: str, sha256: str | None, *, dry_run: bool = False
    ) -> ApprovalRecord:
        """Raises NotFound, VersionMismatch, PermissionDenied for whoever may be the requester."""
        return await self._decide(id, approve, reason, identities(operator), actor, sha256, dry_run)

    async def decide_signed(self, id: str, approve: bool, reason: str, by: str, sha256: str | None) -> ApprovalRecord:
        """A decision that came signed, of somebody of whom only the name is known."""
        record = await self.get(id)
        if record.approvers and f"user/{by}" not in record.approvers:
            raise PermissionDenied(f"This is for {', '.join(record.approvers)} to decide.", code="not_an_approver")
        tenant = record.requester.tenant
        return await self._decide(id, approve, reason, (named(tenant, by), f"key {tenant} {by}"), f"webhook/{by}", sha256, False)

    async def _decide(
        self, id: str, approve: bool, reason: str, who: Sequence[str], actor: str, sha256: str | None, dry_run: bool
    ) -> ApprovalRecord:
        record = await self._kept.get(id)
        common = shared(record.requester, who)
        if self._settings().separation == "credential":
            common = [identity for identity in common if not identity.startswith("tenant ")]
        if common:
            self._count("refused")
            detail = {"why": "self_approval", "identity": common[0].partition(" ")[0], "tenant": record.requester.tenant}
            self._record("approval_decided", record.id, detail, actor=actor, outcome="denied")
            raise PermissionDenied(
                f"Whoever asked may not decide, and the {common[0].partition(' ')[0]} of your credential is the requester's too: "
                "log in as somebody else.",
                code="self_approval",
            )
        if sha256 is not None and sha256 != record.held.sha256:
            raise PermissionDenied(
                "The decision is about other arguments than those that are kept.", code="approval_mismatch", param="arguments_sha256"
            )
        if approve and self._approvers(record.guardrail) is None:
            raise PermissionDenied(
                f"The guardrail {record.guardrail!r} that holds this is gone, and with it its approvers: it can only be denied.",
                code="not_an_approver",
            )
        if approve:
            await self._stands(record.requester, record.created)
        decided = await self._kept.decide(id, approve, actor, reason, dry_run=dry_run)
        if not dry_run:
            self._count(decided.state)
            tenant = record.requester.tenant
            detail = {"decision": decided.state, "arguments_sha256": record.held.sha256, "request_id": record.request_id, "tenant": tenant}
            self._record("approval_decided", record.id, detail, actor=actor)
            self.notify("decided", decided)
        return decided

    # --- what is over

    async def sweep(self) -> None:
        """Erases what has expired. A store that does not answer is left to the next time."""
        try:
            swept = await self._kept.sweep(self._settings().keep)
        except GatehouseError as error:
            log.debug("approvals could not be swept: %s", error.message)
            return
        self._counts, self._size = swept.counts, swept.size
        for number, record in enumerate(swept.expired, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._count("expired")
            detail = {"request_id": record.request_id, "tenant": record.requester.tenant}
            self._record("approval_expired", record.id, detail, outcome="denied")
            self.notify("expired", record)

    def _count(self, what: str) -> None:
        self._events[what] = self._events.get(what, 0) + 1

    def _detail(self, record: ApprovalRecord) -> dict[str, Any]:
        return {
            "request_id": record.request_id,
            "tenant": record.requester.tenant,
            "model": record.model,
            "guardrail": record.guardrail,
            "tools": [{"tool": tool[:64], "sha256": digest, "action": action} for tool, digest, action, _ in record.tools[:SEEN_EVENTS]],
            "expires": record.expires,
        }

    def collect(self) -> Iterable[Metric]:
        """For a scrape; the counts of what is kept are at most SWEEP_SECONDS old."""
        kept = GaugeMetricFamily("gatehouse_approvals", "Approvals in the store by state", labels=["state"])
        for state in ("pending", "approved", "denied", "expired", "used"):
            kept.add_metric([state], float(self._counts.get(state, 0)))
        yield kept
        yield GaugeMetricFamily("gatehouse_approvals_bytes", "Bytes of answers that are kept", value=float(self._size))
        events = CounterMetricFamily("gatehouse_approval_events", "Approvals asked for, decided, returned, expired", labels=["event"])
        for what in ("asked", "approved", "denied", "returned", "expired", "refused"):
            events.add_metric([what], float(self._events.get(what, 0)))
        yield events


def _name(record: ApprovalRecord) -> str:
    return f"{record.requester.tenant}/{record.requester.id}"
