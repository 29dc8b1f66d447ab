"""The pipeline: the phases of a request's life, from top to bottom (docs/architecture.md has them as a table).

`serve` is a coroutine that a Driver steps: it suspends only where a phase must wait, and costs no task. Whatever it raises
ends the exchange with that error; what the exchange holds is given back in `Exchange.settle`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable

from gateway.core.errors import AuthenticationError, GatehouseError, InternalError, ModelNotFound, PermissionDenied, RequestError
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, IntentRecord, Principal
from gateway.core.waiting import Signal
from gateway.pipeline import attempt, inspect
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.stream import AnswerRelay, StreamRelay, answer_head
from gateway.wire.requests import answer_detail, rename

log = logging.getLogger("gatehouse.pipeline")


async def serve(x: Exchange) -> None:
    """One inference request, from its headers to its settlement."""
    snapshot = x.snapshot

    principal = snapshot.identity.authenticate(x.headers, x.peer)  # 2
    if not isinstance(principal, Principal):
        principal = await _identified(principal)
    x.principal = principal
    if x.marks is not None:
        x.mark("authenticate")

    body = x.body if x.body is not None else await _body(x)
    request = x.request = snapshot.parse(x.path, body, x.headers)  # 3
    if x.marks is not None:
        x.mark("parse")

    entry = x.entry = _authorised(x, principal, request)  # 4
    if x.marks is not None:
        x.mark("authorise")

    reservation = snapshot.limiter.reserve(principal, request)  # 5
    if isinstance(reservation, Awaitable):
        reservation = await reservation
    x.reservation = reservation
    if x.marks is not None:
        x.mark("reserve")

    if entry.request_guardrails:  # 6
        await inspect.request(x, entry.request_guardrails)
        if x.marks is not None:
            x.mark("inspect")

    ticket = _intent(x, principal, request, body)  # 7
    if x.marks is not None:
        x.mark("intent")

    relay = await _answered(x, entry, ticket, request)  # 8, 9, 10
    if relay.started:
        x.settle("ok", 200)  # 11
        return
    await _whole_answer(x, entry, relay)


async def _identified(waiting: Awaitable[Principal | None] | None) -> Principal:
    principal = None if waiting is None else await waiting
    if principal is None:
        raise AuthenticationError(
            "No credential was given. Send 'Authorization: Bearer <key>'.", headers=(("www-authenticate", 'Bearer realm="gatehouse"'),)
        )
    return principal


async def _body(x: Exchange) -> bytes:
    """Waits for the rest of the body; the connection's own deadline bounds the wait."""
    ready = x.body_ready = Signal[bytes]()
    x.client.read_body()
    return await ready


def _authorised(x: Exchange, principal: Principal, request: InferenceRequest) -> ModelEntry:
    """The model's entry. A model that is unknown and one that the caller may not know of are the same answer."""
    snapshot = x.snapshot
    entry = snapshot.models.get(request.model)
    decision = snapshot.authorizer.decide(principal, request)
    x.decision_rule = decision.rule
    if entry is None or (not decision.allow and not snapshot.authorizer.may_see(principal, entry.name)):
        raise ModelNotFound(f"The model {request.model[:128]!r} does not exist.", param="model")
    if not decision.allow:
        x.entry = entry
        raise PermissionDenied(decision.reason)
    if entry.name != request.model:
        rename(request, entry.name)
    bound = entry.spec.max_tokens
    if bound is not None and request.max_tokens > bound:
        raise RequestError(f"max_tokens: this model generates at most {bound} tokens for one request.", param="max_tokens")
    return entry


def _intent(x: Exchange, principal: Principal, request: InferenceRequest, body: bytes) -> Signal[None]:
    audit = x.snapshot.audit
    entry = x.entry
    assert entry is not None
    ticket = audit.intent(
        IntentRecord(
            time.time(),
            x.request_id.decode(),
            principal.tenant,
            principal.id,
            principal.kind,
            x.peer.address,
            request.operation,
            entry.name,
            request.stream,
            len(body),
            audit.hash_body(body),
            x.decision_rule,
            x.snapshot.version,
            request.view.detail() if request.operation == "infer" else None,
        )
    )
    x.intended = True
    return ticket


async def _answered(x: Exchange, entry: ModelEntry, ticket: Signal[None], request: InferenceRequest) -> AnswerRelay:
    """The answer of the model's own pool, or of the first of its fallbacks that can give one."""
    relay_type: type[AnswerRelay] = AnswerRelay
    if request.stream:
        relay_type = inspect.InspectedRelay if entry.response_guardrails else StreamRelay
    if not entry.fallbacks:
        return await attempt.run(x, entry, ticket, relay_type)
    for candidate in (entry, *(x.snapshot.models[name] for name in entry.fallbacks)):
        try:
            return await attempt.run(x, candidate, ticket, relay_type)
        except GatehouseError as error:
            if error.type not in ("engine_error", "overloaded_error", "timeout_error") or x.head_sent:
                raise
            failure = error
            log.info("model %s cannot answer (%s), trying its fallback", candidate.name, error.code)
            x.attempt = None
    raise failure


async def _whole_answer(x: Exchange, entry: ModelEntry, relay: AnswerRelay) -> None:
    """An answer that was gathered whole: errors are translated, guardrails read it, then it is sent."""
    head = relay.head
    if head is None:
        raise InternalError("The engine's answer has no head.")
    body = relay.body()
    if head.status != 200:
        raise attempt.engine_error(head, body)
    request = x.request
    if request is not None and request.operation == "infer":
        x.detail = answer_detail(body, head.get(b"inference-header-content-length"))
    elif entry.response_guardrails:
        body = await inspect.answer(x, entry.response_guardrails, body)
    x.answer_bytes = len(body)
    x.answer_hash = x.snapshot.audit.hash_body(body)
    x.client.send(answer_head(x, head, len(body)) + body)
    x.head_sent = True
    if x.marks is not None:
        x.mark("relay")
    x.settle("ok", 200)  # 11
