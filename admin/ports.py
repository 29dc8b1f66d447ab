"""The ports of the admin API: what its handlers need of the rest of the gateway. admin.context gathers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec

from admin.permissions import Grant, Permitted
from gateway.core.approvals import ApprovalRecord, HeldUse
from gateway.core.audit_questions import AuditSearch, Unopened
from gateway.core.batches import BatchRecord, FileRecord
from gateway.core.caching import Purge
from gateway.core.deliveries import Delivery
from gateway.core.log_levels import LogLevels
from gateway.core.specs import BindingSpec, RoleSpec
from gateway.core.storage import KeyRecord, Page, Resource
from gateway.core.types import EventRecord, Peer, Principal
from gateway.core.vault import DataKeyRow, RevealedText, ShredPlan
from gateway.core.waiting import Signal
from gateway.core.write_set import NO_OTHERS, WriteSet


class EventLog(Protocol):
    """The audit log, as far as the admin API writes to it."""

    @property
    def accepting(self) -> bool: ...

    def event(self, record: EventRecord) -> Signal[None]:
        """Completes when the record is durable; fails with AuditUnavailable."""
        ...


class ResourceCheck(Protocol):
    """Checks what only a resource's user knows (such as a guardrail's own settings): whether it could be put into force."""

    async def __call__(self, kind: str, body: dict[str, Any], writes: WriteSet = NO_OTHERS) -> None:
        """Raises ConfigError, without changing anything. writes: everything that the same write stores and deletes, this one included."""
        ...


class Upgrade(Protocol):
    """Replaces the running program by the one that is installed now."""

    def view(self) -> dict[str, Any]:
        """How it stands."""
        ...

    async def begin(self, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Checks the new program and begins. Raises GatehouseError with the reason if it cannot be; nothing has changed then."""
        ...


class WebhookControl(Protocol):
    """The receivers of events, and the deliveries to them (gateway.app.webhooks)."""

    def views(self) -> list[dict[str, Any]]: ...

    async def test(self, name: str, actor: str, *, dry_run: bool = False) -> Delivery:
        """Raises NotFound, StoreUnavailable."""
        ...

    async def deliveries(self, name: str | None, limit: int) -> Sequence[Delivery]: ...


class HaltControl(Protocol):
    """The kill switch (gateway.app.identity.halts). A halt has `target`, `reason`, `actor`, `since`, `source`."""

    def views(self) -> Sequence[Any]: ...

    async def halt(self, target: str, reason: str, actor: str, *, dry_run: bool = False) -> Any:
        """Raises ConfigError for what cannot be a target, OSError when it can be written nowhere."""
        ...

    async def unhalt(self, target: str, actor: str, *, dry_run: bool = False) -> Sequence[Any]:
        """Returns the halts that were taken back. Raises NotFound, StoreUnavailable, OSError."""
        ...


class ApprovalControl(Protocol):
    """Answers and requests that wait for a decision (gateway.app.clients.approvals). Records are gateway.core.approvals.ApprovalRecord."""

    async def page(
        self, *, tenant: str | Sequence[str] | None, state: str | None, limit: int, cursor: str | None
    ) -> Page[ApprovalRecord]: ...

    async def get(self, id: str) -> ApprovalRecord:
        """Raises NotFound."""
        ...

    async def show(self, id: str, actor: str) -> tuple[ApprovalRecord, list[HeldUse] | None]:
        """One approval with its calls in full, or None once they are erased. Records who has seen them. Raises NotFound."""
        ...

    async def decide(
        self, id: str, approve: bool, reason: str, operator: Principal, actor: str, sha256: str | None, *, dry_run: bool = False
    ) -> ApprovalRecord:
        """Raises NotFound, VersionMismatch, PermissionDenied for whoever may be the requester."""
        ...


class BatchControl(Protocol):
    """Batches of clients (gateway.app.batches.book). tenants: whose; None for all."""

    async def page(self, tenants: Sequence[str] | None, limit: int, after: str | None, state: str | None) -> tuple[list[BatchRecord], bool]:
        """The newest first, and whether there are more."""
        ...

    async def get(self, id: str, tenants: Sequence[str] | None) -> BatchRecord:
        """Raises NotFound."""
        ...

    async def stop(self, id: str, tenants: Sequence[str] | None, actor: str, *, dry_run: bool = False) -> BatchRecord:
        """Asks for its end. Raises NotFound."""
        ...


class ClientFileControl(Protocol):
    """Files of clients (gateway.app.clients.file_rows). tenants: whose; None for all."""

    async def page(self, tenants: Sequence[str] | None, limit: int, after: str | None) -> tuple[list[FileRecord], bool]:
        """The newest first, and whether there are more."""
        ...

    async def get(self, id: str) -> FileRecord:
        """Raises NotFound."""
        ...

    async def delete(self, id: str, actor: str, *, dry_run: bool = False) -> FileRecord:
        """Raises NotFound; RequestError for the input of a batch that is not over."""
        ...


class VaultControl(Protocol):
    """The data keys of the audit log's texts (gateway.app.audit.vault)."""

    async def views(self, tenants: Sequence[str] | None) -> Sequence[DataKeyRow]: ...

    async def rotate(self, tenant: str | None, actor: str, *, dry_run: bool = False) -> Sequence[DataKeyRow]:
        """Raises NotFound, MasterUnavailable."""
        ...

    async def rewrap(self, actor: str, *, dry_run: bool = False) -> Sequence[DataKeyRow]:
        """Raises MasterUnavailable, ConfigError."""
        ...

    async def plan(self, tenant: str) -> ShredPlan:
        """Raises NotFound."""
        ...

    async def shred(self, tenant: str, reason: str, confirm: str, actor: str) -> ShredPlan:
        """Raises NotFound, AlreadyExists where the plan has changed, PermissionDenied under a legal hold, OSError."""
        ...


class CaptureControl(Protocol):
    """Debug captures (gateway.app.audit.captures): resources whose body has `until` and `reason`."""

    async def every(self) -> Sequence[Resource]: ...

    async def begin(self, key: str, tenant: str, seconds: float, reason: str, actor: str, *, dry_run: bool = False) -> Resource: ...

    async def end(self, key: str, actor: str, *, dry_run: bool = False) -> Resource:
        """Raises NotFound."""
        ...


class RevealControl(Protocol):
    """Revealing texts (gateway.app.audit.reveals)."""

    async def tenants(self, request_id: str) -> Sequence[str]:
        """Raises NotFound."""
        ...

    async def ask(self, request_id: str, tenant: str, reason: str, principal: Principal, actor: str, *, dry_run: bool = False) -> Any: ...

    async def decide(self, id: str, approve: bool, reason: str, principal: Principal, actor: str, *, dry_run: bool = False) -> Any:
        """Raises NotFound, PermissionDenied, AlreadyExists."""
        ...

    async def open(self, id: str, principal: Principal, actor: str) -> tuple[Any, Sequence[RevealedText]]:
        """Raises NotFound, PermissionDenied, AlreadyExists, MasterUnavailable."""
        ...

    async def get(self, id: str) -> Any: ...

    async def page(self, tenants: list[str] | None, limit: int, cursor: str | None) -> Page[Any]: ...


class TextControl(Protocol):
    """Texts in the audit log. vault: None where nothing is encrypted."""

    @property
    def vault(self) -> VaultControl | None: ...

    @property
    def captures(self) -> CaptureControl: ...

    @property
    def reveals(self) -> RevealControl: ...


class TokenControl(Protocol):
    """The keys of gateway tokens. Views have `id`, `state`, `created`, `signs_from`."""

    def views(self) -> list[dict[str, Any]]: ...

    async def rotate(self, after: float, actor: str, *, dry_run: bool = False) -> list[dict[str, Any]]: ...

    async def withdraw(self, kid: str, actor: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Raises NotFound."""
        ...


class RevocationControl(Protocol):
    """Revoked tokens. Each is a resource whose body has `type`, `issuer`, `value`, `before`, `expires`, `reason`."""

    async def revoke(
        self, kind: str, issuer: str, value: str, before: float | None, expires: float | None, reason: str, actor: str, *, dry_run: bool
    ) -> Resource: ...

    async def page(self, limit: int, cursor: str | None) -> Page[Resource]: ...

    async def get(self, name: str) -> Resource:
        """Raises NotFound."""
        ...

    async def lift(self, name: str, actor: str, *, dry_run: bool) -> Resource:
        """Raises NotFound."""


class LimitControl(Protocol):
    """The state of limits, as far as this gateway knows it."""

    async def state(self, limit: str, most: int, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """So many buckets of a limit in use, and where the next page begins. Raises NotFound, StoreUnavailable, RequestError (`after`)."""
        ...

    async def applying(self, principal: Principal, model: str, operation: str) -> list[dict[str, Any]]:
        """Every bucket that applies to a request. Raises StoreUnavailable, Overloaded for a limit that the caller's key names and that is
        not there."""
        ...

    async def reset(self, limit: str, scope: str | None, *, dry_run: bool = False) -> int:
        """Makes one bucket full again, or all; returns how many were not. Raises NotFound, StoreUnavailable."""
        ...


class RoleBook(Protocol):
    """Roles and bindings of the configuration file and the store, as far as they are about the admin listener. What has been written here
    counts at once; what another replica has written, as soon as it is heard of."""

    async def held(self, principal: Principal, peer: Peer) -> tuple[tuple[Grant, ...], frozenset[str]]:
        """What a caller holds by its roles and bindings at this moment, and the permissions that it is denied. peer: where it is."""
        ...

    async def possible(self, principal: Principal) -> tuple[Grant, ...]:
        """What the caller could hold if every condition held, including what is denied."""
        ...

    async def differing(self, one: Principal, other: Principal) -> tuple[Grant, ...]:
        """What one of two callers of a tenant could hold, or be denied, and the other could not: by a role, by a binding, or because a
        condition reads what differs between them."""
        ...

    async def naming(self, kind: str, name: str, tenant: str, without: Collection[str] = ()) -> str | None:
        """The name of a binding that names this subject, such as a group, for callers of this tenant; None without one. without: names
        of bindings to overlook."""
        ...

    async def denied_by(self, principal: Principal) -> frozenset[str]:
        """The roles whose permissions the caller is denied, under whatever condition."""
        ...

    def concerns(self, principal: Principal, subjects: Sequence[str], tenant: str) -> bool:
        """Whether a binding of these subjects, for callers of these tenants (a pattern), is about the caller."""
        ...

    async def permitted(self, role: str) -> Permitted | None:
        """What a role permits; None where there is no such role."""
        ...

    def meaning(self, role: str, permissions: Sequence[str], confined: bool) -> Permitted:
        """What these permissions mean together. Raises ConfigError."""
        ...


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Roles and bindings: in place of the file's, or beside what there is, as if they were applied to the store."""

    roles: dict[str, RoleSpec]
    bindings: tuple[BindingSpec, ...]
    beside: bool


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions of the past: at most the `last`, none before `since` (seconds since the epoch), of these tenants (None: of all)."""

    last: int
    since: float | None
    tenants: frozenset[str] | None


class GuardrailTester(Protocol):
    """The guardrails in force, without a request."""

    async def evaluate(self, text: str, where: str, model: str | None, names: Sequence[str]) -> dict[str, Any]:
        """{"verdict": allow, rewrite, block or hold; "text": what would pass; "labels": what a request would get; "guardrails": for each in
        order what it found, what would be done, how long it took}. where: request or response. Raises NotFound for an unknown model,
        RequestError for other names."""
        ...


class Replays(Protocol):
    """Decisions of the past, of the local audit log (admin.resources.replays has the answers' fields, moments as seconds)."""

    async def diff(self, candidate: Candidate, window: Window) -> dict[str, Any]:
        """Raises ConfigError for a candidate that cannot be used, Overloaded while another comparison runs."""
        ...

    async def past(self, request_id: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Why a request was decided as it was. sees: whether one of a tenant may be shown. Raises NotFound."""
        ...


class HoldControl(Protocol):
    """Legal holds (gateway.app.audit.legal_holds); each with tenant, since, why, actor and whether the store has it (`everywhere`)."""

    async def list(self) -> list[dict[str, Any]]:
        """Raises OSError, like the others."""
        ...

    async def add(self, tenant: str, why: str, actor: str) -> dict[str, Any]: ...

    async def release(self, tenant: str) -> dict[str, Any] | None:
        """Releases a hold; returns it with the time of its release (`released`, in seconds since the epoch). Raises StoreUnavailable: then
        it stays."""
        ...


class AuditIndexReader(Protocol):
    """The index of the local audit log (gateway.audit.index)."""

    async def search(self, asked: AuditSearch, *, records: bool) -> tuple[list[dict[str, Any]], Unopened]:
        """The entries, the newest first, with `id`, `time` (seconds since the epoch), `kind`, and the fields of the log that are not empty;
        records: with the lines themselves, decoded, in `records`. And how many that may be wanted, too, are encrypted as a whole and could
        not be opened. Raises AuditIndexing, AuditSearchTooLong."""
        ...

    async def report(self, since: float, until: float, tenants: frozenset[str] | None) -> dict[str, Any]:
        """What happened in a period (gateway.audit.summary). Raises the same."""
        ...


class CacheControl(Protocol):
    """Caches of answers in all processes of this gateway (gateway.app.caches.book)."""

    async def statistics(self) -> dict[str, dict[str, int]]: ...
    async def behind(self) -> list[dict[str, Any]]: ...
    async def purge(self, purge: Purge, actor: str = "gatehouse") -> tuple[int, list[str]]: ...


class LogLevelControl(Protocol):
    """Levels of the log while the gateway runs (gateway.app.telemetry.log_levels)."""

    @property
    def levels(self) -> LogLevels: ...

    def configured(self) -> str:
        """The level of the configuration in force."""
        ...

    def change(self, level: str, loggers: dict[str, str], seconds: float, actor: str, *, dry_run: bool = False) -> LogLevels: ...

    def restore(self) -> None: ...


class WorkerControl(Protocol):
    """The processes that serve requests, where they are not the one that answers."""

    def views(self) -> list[dict[str, Any]]: ...

    async def replace(self, id: str) -> None:
        """Starts another one in its place, and has it finish once the other serves. Raises GatehouseError; then it goes on."""
        ...


class KeyHolders(Protocol):
    """Who a key's requests would come from, without having the key: the principal, and why it would be refused ("" if not). source: the
    address that the request comes from; "": any."""

    async def stored(self, key: KeyRecord, source: str = "") -> tuple[Principal, str]:
        """Looks at a key of the store."""
        ...

    async def of(self, caller: Principal, source: str = "") -> tuple[Principal, str]:
        """Looks at a caller whom the configuration names."""
        ...
