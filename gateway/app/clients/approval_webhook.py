"""The webhook of approvals: a server of the operators' is told of each approval, and sends decisions back. Both are signed.

A message is tried a few times and then given up: operators still have the admin API. Decisions come to the admin listener; each is checked
for its signature, its moment, and that its nonce is new, which the store remembers for all replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from gateway.app.clients.approvals import ApprovalBook
from gateway.core import signed, utf8
from gateway.core.approvals import MAX_REASON, ApprovalRecord
from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.errors import AuthenticationError, EngineError, NotFound, RequestError, VersionMismatch
from gateway.core.specs.approvals import ApprovalWebhookSpec
from gateway.core.storage import ControlStore
from gateway.core.tasks import TaskOwner
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.approvals")
PAUSES: Final = (1.0, 4.0, 15.0)
"""Seconds before each further try."""
MOST: Final = 256
"""Messages under way."""
ROUTE: Final = "approvals webhook"


class SignedDecision(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a decision. by: who decided, as the server knows them. arguments_sha256: of what they have seen."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    decision: Literal["approve", "deny"]
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON)]
    by: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class ApprovalWebhook:
    """settings: those in force; None: nobody is told, and no decision is taken. record: (event, target, detail) for the audit log."""

    def __init__(
        self,
        book: ApprovalBook,
        store: ControlStore,
        settings: Callable[[], ApprovalWebhookSpec | None],
        record: Callable[..., None],
        owner: TaskOwner,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._book, self._store, self._settings, self._record, self._owner = book, store, settings, record, owner
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._under_way = 0
        book.notify = self.notify

    def notify(self, what: str, record: ApprovalRecord) -> None:
        """Tells the server, in a task of its own. what: `asked`, `decided` or `expired`."""
        settings = self._settings()
        if settings is None:
            return
        if self._under_way >= MOST:
            log.warning("the webhook of approvals gets no message about %s: too many are under way", record.id)
            return
        self._under_way += 1
        self._owner.spawn(self._deliver(settings, record.id, message(what, record)), name="webhook")

    async def _deliver(self, settings: ApprovalWebhookSpec, id: str, body: bytes) -> None:
        try:
            for pause in (*PAUSES, None):
                fault = await self._sent(settings, body)
                if not fault:
                    return
                if pause is None:
                    break
                await asyncio.sleep(pause)
            log.error("the webhook of approvals could not be told of %s: %s", id, fault)
            self._record("approval_webhook_failed", id, {"reason": fault}, outcome="failed")
        finally:
            self._under_way -= 1

    async def _sent(self, settings: ApprovalWebhookSpec, body: bytes) -> str:
        """What went wrong; "" if nothing did. Each try has a nonce of its own."""
        parts = urlsplit(settings.url)
        client = EndpointClient(f"{parts.scheme}://{parts.netloc}", tls=settings.tls, connect_timeout=settings.timeout, max_idle=0)
        nonce = self._entropy.bytes(16).hex()
        headers = signed.headers(settings.secret.reveal(), body, self._clock.wall(), nonce)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            async with asyncio.timeout(settings.timeout):
                reply = await ask(client, "POST", path, {"content-type": "application/json", **headers}, body)
        except (TimeoutError, EngineError) as error:
            return f"{type(error).__name__}: {error}" if str(error) else "it did not answer in time"
        finally:
            await client.aclose()
        return "" if 200 <= reply.head.status < 300 else f"it answered with status {reply.head.status}"

    async def decide(self, headers: Mapping[str, str], body: bytes) -> ApprovalRecord:
        """A decision that came. Raises AuthenticationError, VersionMismatch (409 `replayed`), and what a decision raises."""
        settings = self._settings()
        if settings is None:
            raise NotFound("This path does not exist.")
        nonce = signed.verified(settings.secret.reveal(), headers, body, self._clock.wall())
        if nonce is None:
            raise AuthenticationError("The signature is not valid.", code="invalid_signature")
        known = await self._store.begin_idempotent(nonce, "webhook", ROUTE, sha256(body).hexdigest(), ttl=2 * signed.WINDOW)
        if known is not None:
            self._record("approval_webhook_replayed", "", {"nonce": nonce[:128]}, outcome="denied")
            raise VersionMismatch("This message has been used.", code="replayed", status=409)
        try:
            wanted = msgspec.json.decode(body, type=SignedDecision)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"The decision cannot be read: {utf8.fault(body) or error}.", code="invalid_value") from None
        approve = wanted.decision == "approve"
        return await self._book.decide_signed(wanted.id, approve, wanted.reason, wanted.by, wanted.arguments_sha256)


def message(what: str, record: ApprovalRecord) -> bytes:
    """What the server is told: everything but the arguments, which it fetches from the admin API."""
    told: dict[str, Any] = {
        "event": f"approval.{what}",
        "id": record.id,
        "state": record.state,
        "tenant": record.requester.tenant,
        "requester": {"id": record.requester.id, "user": record.requester.user, "agent": record.requester.agent},
        "model": record.model,
        "guardrail": record.guardrail,
        "request_id": record.request_id,
        "tools": [
            {"tool": tool, "arguments_sha256": digest, "action": action, "reversibility": reversibility}
            for tool, digest, action, reversibility in record.tools
        ],
        "arguments_sha256": record.held.sha256,
        "expires": record.expires,
        "decided_by": record.decider,
        "reason": record.reason,
    }
    return msgspec.json.encode(told)
