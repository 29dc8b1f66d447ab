"""Revealing texts of the audit log: somebody asks with a reason, somebody else approves, and the first fetches the texts, once.

Each step is an event of the audit log, none of which has the text. What is kept of a request to reveal is in the store, and its state is
authenticated with a key that only the gateways know: a row that was changed in the database reveals nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from gateway.app.audit.vault import Vault
from gateway.audit.keyring import envelope_of
from gateway.audit.reader import LogReader
from gateway.audit.record import Envelope
from gateway.audit.sealing import opened
from gateway.core.approvals import Requester, identities, requester_of, shared
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import (
    AlreadyExists,
    AuditIndexing,
    ConfigError,
    GatehouseError,
    NotFound,
    Overloaded,
    PermissionDenied,
    RequestError,
    Shredded,
    VersionMismatch,
)
from gateway.core.storage import ControlStore, Page, Resource
from gateway.core.types import Principal
from gateway.core.vault import RevealedText
from gateway.store.store import Store

KIND: Final = "reveals"
PREFIX: Final = "rev-"
LIFE_SECONDS: Final = 3600.0
"""From asking to fetching."""
KEEP_SECONDS: Final = 30 * 86400.0
"""How long a finished reveal is listed; the audit log keeps it for good."""
MOST_TEXTS: Final = 64
SKEW_SECONDS: Final = 5.0
"""How far the clocks of replicas may differ."""
MOST_RECORDS: Final = 100_000
State = Literal["pending", "approved", "denied", "used"]
Record = Callable[..., None]
Indexed = Callable[[str], Awaitable[list[dict[str, Any]]]]
"""A request's id to its records. Raises AuditIndexing, Overloaded."""


def may_be_one(requester: Requester, principal: Principal) -> list[str]:
    """The identities by which the approver is, or may be, the person who asked; empty if they are different people. Of two credentials in
    one tenant, both must name a user: whoever holds one without a user may hold the other as well."""
    mine = identities(principal)
    unknown = f"tenant {principal.tenant}"
    unsaid = requester.tenant == principal.tenant and unknown in (*requester.identities, *mine)
    return shared(requester, mine) or ([unknown] if unsaid else [])


class RevealBody(Struct, frozen=True, kw_only=True):
    """As it is stored. requester: with all identities, so that nobody approves their own wish under another name."""

    request_id: str
    reason: str
    requester: Requester
    by: str
    state: State
    created: float
    expires: float
    decided: float | None = None
    decider: str = ""
    decision_reason: str = ""
    used: float | None = None
    proof: str = ""


class Reveal(Struct, frozen=True, kw_only=True):
    """id, tenant: whose texts. version: of the stored resource."""

    id: str
    tenant: str
    version: int
    body: RevealBody

    def state(self, now: float) -> str:
        return "expired" if self.body.state in ("pending", "approved") and self.body.expires <= now else self.body.state


class Reveals:
    """vault: None where nothing is encrypted. reader: of the audit log."""

    def __init__(
        self,
        store: Store,
        vault: Vault | None,
        reader: Callable[[], LogReader],
        record: Record,
        clock: Clock | None = None,
    ) -> None:
        self._store: ControlStore = store
        self._derived = store.derived
        self._vault, self._reader, self._record = vault, reader, record
        self._clock: Clock = clock or SystemClock()
        self.indexed: Indexed | None = None
        """Finds a request's records without reading the whole log, where there is an index."""

    # --- the steps

    async def tenants(self, request_id: str) -> list[str]:
        """The tenants of which the log has texts of this request, by their data keys. Raises NotFound."""
        found: list[str] = []
        for key in dict.fromkeys(envelope.key for envelope, _ in await self._texts(request_id)):
            tenant = await self._key_tenant(key)
            if tenant is not None and tenant not in found:
                found.append(tenant)
        if not found:
            raise NotFound(f"The audit log of this replica has no text of the request {request_id!r}.")
        return found

    async def ask(self, request_id: str, tenant: str, reason: str, principal: Principal, actor: str, *, dry_run: bool = False) -> Reveal:
        now = self._clock.wall()
        body = RevealBody(
            request_id=request_id,
            reason=reason,
            requester=requester_of(principal),
            by=actor,
            state="pending",
            created=now,
            expires=now + LIFE_SECONDS,
        )
        id = f"{PREFIX}{int(now * 1000):011x}{secrets.token_hex(8)}"
        made = await self._store.create(KIND, id, self._signed(id, tenant, body), actor=actor, tenant=tenant, dry_run=dry_run)
        if not dry_run:
            detail = {"request_id": request_id, "tenant": tenant, "reason": reason}
            self._record("audit.reveal_asked", id, detail, actor=actor)
        return self._of(made)

    async def decide(self, id: str, approve: bool, reason: str, principal: Principal, actor: str, *, dry_run: bool = False) -> Reveal:
        """Raises NotFound, PermissionDenied for whoever may be the one who asked, AlreadyExists once it is decided or over."""
        found = await self.get(id)
        common = may_be_one(found.body.requester, principal)
        if common:
            kind = common[0].partition(" ")[0]
            self._record(
                "audit.reveal_decided",
                id,
                {"why": "self_approval", "identity": kind, "tenant": found.tenant},
                actor=actor,
                outcome="denied",
            )
            raise PermissionDenied(
                f"Whoever asked may not decide, and the {kind} of your credential is theirs too: log in as somebody else.",
                code="self_approval",
            )
        self._insist(found, "pending")
        state: State = "approved" if approve else "denied"
        body = msgspec.structs.replace(found.body, state=state, decided=self._clock.wall(), decider=actor, decision_reason=reason)
        made = await self._change(found, body, actor, dry_run)
        if not dry_run:
            detail = {"decision": state, "request_id": body.request_id, "tenant": found.tenant, "reason": reason}
            self._record("audit.reveal_decided", id, detail, actor=actor)
        return made

    async def open(self, id: str, principal: Principal, actor: str) -> tuple[Reveal, list[RevealedText]]:
        """The texts, once. Raises NotFound, PermissionDenied for anybody but the one who asked, AlreadyExists (409) in any state but
        `approved`, MasterUnavailable: then it can be tried again."""
        found = await self.get(id)
        if found.body.requester.hashed != requester_of(principal).hashed or principal.made > found.body.created:
            self._record("audit.revealed", id, {"why": "not_the_requester", "tenant": found.tenant}, actor=actor, outcome="denied")
            raise PermissionDenied("Only whoever asked may fetch the texts.", code="not_the_requester")
        self._insist(found, "approved")
        texts = await self._opened(found)
        used = await self._change(found, msgspec.structs.replace(found.body, state="used", used=self._clock.wall()), actor, False)
        detail = {
            "request_id": found.body.request_id,
            "tenant": found.tenant,
            "approved_by": found.body.decider,
            "texts": [{"kind": one.kind, "state": one.state, "key": one.key} for one in texts],
        }
        self._record("audit.revealed", id, detail, actor=actor)
        return used, texts

    def _insist(self, found: Reveal, state: str) -> None:
        now = found.state(self._clock.wall())
        if now != state:
            raise AlreadyExists(f"It is {now}; that can be done only while it is {state}.", code="reveal_not_" + state)

    async def _change(self, found: Reveal, body: RevealBody, actor: str, dry_run: bool) -> Reveal:
        signed = self._signed(found.id, found.tenant, body)
        try:
            made = await self._store.update(KIND, found.id, signed, actor=actor, version=found.version, dry_run=dry_run)
        except VersionMismatch:
            raise AlreadyExists("Somebody else was faster: look again.", code="already_decided") from None
        return self._of(made)

    # --- what is kept

    async def get(self, id: str) -> Reveal:
        """Raises NotFound, ConfigError for one that was changed in the database."""
        return self._of(await self._store.get(KIND, id))

    async def page(self, tenants: list[str] | None, limit: int, cursor: str | None) -> Page[Reveal]:
        page = await self._store.list(KIND, tenant=tenants, limit=limit, cursor=cursor)
        return Page(tuple(self._of(one) for one in page.items), page.cursor)

    async def clear(self) -> None:
        """Deletes what has been over for long. A store that does not answer is left to the next time."""
        before = self._clock.wall() - KEEP_SECONDS
        try:
            page = await self._store.list(KIND, limit=100)
            for one in page.items:  # the oldest first, by their names
                if one.updated < before:
                    await self._store.delete(KIND, one.name, actor="gatehouse")
        except GatehouseError:
            return

    def _signed(self, id: str, tenant: str, body: RevealBody) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(body, proof=self._proof(id, tenant, body)))
        return plain

    def _proof(self, id: str, tenant: str, body: RevealBody) -> str:
        told = msgspec.json.encode([id, tenant, msgspec.structs.replace(body, proof="")])
        return hmac.new(self._derived("reveals"), told, "sha256").hexdigest()

    def _of(self, resource: Resource) -> Reveal:
        body = msgspec.convert(resource.body, RevealBody)
        if not hmac.compare_digest(body.proof, self._proof(resource.name, resource.tenant, body)):
            raise ConfigError(f"the reveal {resource.name} was changed in the store, or made with another pepper")
        return Reveal(id=resource.name, tenant=resource.tenant, version=resource.version, body=body)

    # --- the texts

    async def _texts(self, request_id: str) -> list[tuple[Envelope, dict[str, Any]]]:
        """The envelopes of a request's records, each with its record."""
        records = await self._records(request_id)
        found = [(envelope_of(record["text"]), record) for record in records if "text" in record]
        return [(envelope, record) for envelope, record in found if envelope is not None]

    async def _records(self, request_id: str) -> list[dict[str, Any]]:
        """The records of a request, found by the index, or in the whole log if the index cannot answer now."""
        if self.indexed is not None:
            try:
                found = await self.indexed(request_id)
                return [record for record in found if record.get("request_id") == request_id]  # whatever an index makes of a `*`
            except (AuditIndexing, Overloaded):
                pass
        return await asyncio.to_thread(lambda: list(islice(self._reader().records(request_id=request_id), MOST_RECORDS)))

    async def _key_tenant(self, id: str) -> str | None:
        if self._vault is None:
            raise RequestError("Nothing is encrypted here: audit.encryption is not configured.", code="encryption_off", status=409)
        try:
            return await self._vault.tenant_of(id)
        except NotFound:
            return None

    async def _opened(self, found: Reveal) -> list[RevealedText]:
        """Raises MasterUnavailable, StoreUnavailable."""
        if self._vault is None:
            raise RequestError("Nothing is encrypted here: audit.encryption is not configured.", code="encryption_off", status=409)
        texts: list[RevealedText] = []
        tenants: dict[str, str | None] = {}
        latest = found.body.created + SKEW_SECONDS  # whoever reuses the id later has nothing revealed that nobody asked for
        for envelope, record in await self._texts(found.body.request_id):
            if len(texts) == MOST_TEXTS:
                break
            if float(record.get("time", 0.0)) > latest:
                continue
            if envelope.key not in tenants:
                tenants[envelope.key] = await self._key_tenant(envelope.key)
            if tenants[envelope.key] == found.tenant:
                texts.append(await self._open(self._vault, envelope, record))
        return texts

    async def _open(self, vault: Vault, envelope: Envelope, record: dict[str, Any]) -> RevealedText:
        kind, time, key = str(record.get("kind")), float(record.get("time", 0.0)), envelope.key
        try:
            _, data_key = await vault.key(key)
        except Shredded:
            return RevealedText(kind=kind, time=time, state="shredded", key=key)
        except ConfigError as error:
            return RevealedText(kind=kind, time=time, state="lost", key=key, why=error.message)
        try:
            text = opened(data_key, envelope, kind, time, str(record.get("request_id")))
        except (ValueError, msgspec.MsgspecError) as error:
            return RevealedText(kind=kind, time=time, state="lost", key=key, why=str(error))
        finally:
            data_key.drop()
        return RevealedText(kind=kind, time=time, state="text", key=key, text=msgspec.to_builtins(text))
