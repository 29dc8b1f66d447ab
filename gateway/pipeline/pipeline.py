"""The pipeline: the phases of a request's life, from top to bottom (docs/architecture.md has them as a table).

`serve` is a coroutine that a Driver steps: it suspends only where a phase must wait, and needs no task. Any error it raises
ends the exchange; everything the exchange holds is given back in `Exchange.settle`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from time import time
from typing import Any, Final

from gateway.core.errors import (
    AuthenticationError,
    GatehouseError,
    InternalError,
    ModelNotFound,
    PermissionDenied,
    RequestError,
)
from gateway.core.ports import Attempt
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, IntentRecord, Principal, ResponseHead
from gateway.core.waiting import WAITS, Signal
from gateway.pipeline import attempt, inspect
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.held import HeldRelay
from gateway.pipeline.stream import OK, AnswerRelay, StreamRelay

LARGE: Final = 64 * 1024
"""Bytes above which a body is not copied behind its head, and is parsed in turns of the loop."""

_ELSEWHERE = ("engine_error", "overloaded_error", "timeout_error")
"""Types of errors that a fallback may not have."""

log = logging.getLogger("gatehouse.pipeline")


async def serve(x: Exchange) -> None:
    """One inference request, from its headers to its settlement."""
    snapshot = x.snapshot

    principal = snapshot.identity.authenticate(x.headers, x.peer)  # 2
    if not isinstance(principal, Principal):
        principal = await _identified(principal)
    x.principal = principal
    x.clock.mark("authenticate")

    body = x.body
    if body is None:
        ready: Signal[bytes] = Signal()
        x.body_ready = ready
        x.client.read_body()
        body = await ready  # the connection's own deadline bounds the wait
    if len(body) > LARGE and snapshot.parse_steps is not None:  # 3
        request = await x.plane.turns.run(snapshot.parse_steps(x.path, body, x.headers))
    else:
        request = snapshot.parse(x.path, body, x.headers)
    x.request = request
    x.clock.mark("parse")

    entry = x.entry = _authorised(x, principal, request)  # 4
    x.clock.mark("authorise")

    reservation: Any = snapshot.limiter.reserve(principal, request)  # 5
    if isinstance(reservation, WAITS):
        reservation = await reservation
    x.reservation = reservation
    x.clock.mark("reserve")

    if entry.request_guardrails:  # 6
        await inspect.request(x, entry.request_guardrails)
        x.clock.mark("inspect")

    ticket = _intent(x, principal, request, body)  # 7
    x.clock.mark("intent")

    relay_type: type[AnswerRelay] = AnswerRelay
    if request.stream:
        relay_type = _stream_relay(entry)
    if entry.fallbacks:  # 8, 9, 10
        entry, relay = await _with_fallbacks(x, entry, ticket, relay_type)
    else:
        relay = await attempt.run(x, entry, ticket, relay_type)
    if not relay.started:
        head, body = _whole_answer(relay, request)
        evidence: bytes | memoryview = body
        if entry.response_guardrails or request.api.describes:
            body, evidence = await inspect.answer(x, entry.response_guardrails, head, body)
        _send(x, head, body, evidence)
    elif relay.held:
        await relay.release()
    x.settle("ok", 200)  # 11


async def _identified(waiting: Awaitable[Principal | None] | None) -> Principal:
    principal = None if waiting is None else await waiting
    if principal is None:
        raise AuthenticationError(
            "No credential was given. Send 'Authorization: Bearer <key>'.", headers=(("www-authenticate", 'Bearer realm="gatehouse"'),)
        )
    return principal


def _authorised(x: Exchange, principal: Principal, request: InferenceRequest) -> ModelEntry:
    """The model's entry. An unknown model and one hidden from the caller get the same answer."""
    snapshot = x.snapshot
    entry = snapshot.models.get(request.model)
    decision = snapshot.authorizer.decide(principal, request, x.peer, len(x.body or b""))
    x.decision_rule = decision.rule
    if entry is None or (not decision.allow and not snapshot.authorizer.may_see(principal, request.model)):
        raise ModelNotFound(f"The model {request.model[:128]!r} does not exist.", param="model")
    if not decision.allow:
        x.entry = entry
        raise PermissionDenied(decision.reason)
    if request.unknown:
        request.api.settle_unknown(request, entry.spec.unknown_fields)
    if entry.name != request.model:
        request.api.rename(request, entry.name)
    if request.stream and b":version" in x.headers:
        raise RequestError("stream: a stream needs HTTP/1.1.", param="stream")
    bound = entry.spec.max_tokens
    if bound is not None and request.max_tokens > bound:
        raise RequestError(f"max_tokens: this model generates at most {bound} tokens for one request.", param="max_tokens")
    return entry


def _intent(x: Exchange, principal: Principal, request: InferenceRequest, body: bytes) -> Signal[None]:
    audit = x.snapshot.audit
    entry = x.entry
    assert entry is not None
    api = request.api
    ticket = audit.intent(
        IntentRecord(
            time=time(),
            request_id=x.request_id.decode(),
            tenant=principal.tenant,
            principal=principal.id,
            credential=principal.kind,
            peer=x.peer.address,
            operation=request.operation,
            model=entry.name,
            stream=request.stream,
            bytes=len(body),
            body_hash=audit.hash_body(api.evidence(request, body)),
            rule=x.decision_rule,
            config=x.snapshot.version,
            detail=api.detail(request, audit.hash_body),
        )
    )
    x.intended = True
    return ticket


async def _with_fallbacks(
    x: Exchange, asked: ModelEntry, ticket: Signal[None], relay_type: type[AnswerRelay]
) -> tuple[ModelEntry, AnswerRelay]:
    """The answer of the model's own pool, or of the first fallback that can answer this caller, with the model that gave it.

    Raises the error of the requested model.
    """
    own: GatehouseError | None = None
    its_attempt: Attempt | None = None
    try:
        for candidate in (asked, *asked.fallbacks):
            if own is not None:
                if x.plane.now >= x.deadline:
                    break
                if not await _may_stand_in(x, candidate):
                    continue
                relay_type = _relay_type(x, candidate)
                x.tried = 0
            try:
                relay = await attempt.run(x, candidate, ticket, relay_type)
                error = None if relay.started else _refusal(relay)
                if error is None or error.type not in _ELSEWHERE:
                    return candidate, relay
            except GatehouseError as failed:
                if failed.type not in _ELSEWHERE or x.head_sent:
                    raise
                error = failed
            log.info("model %s cannot answer (%s)", candidate.name, error.code)
            if own is None:
                own, its_attempt = error, x.attempt
            x.attempt = error = None
        x.entry, x.attempt = asked, its_attempt
        assert own is not None
        raise own
    finally:
        own = None  # its traceback holds this frame


async def _may_stand_in(x: Exchange, fallback: ModelEntry) -> bool:
    """Whether a fallback may answer this request: the caller may use it, and the request passes the fallback's own checks."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    request.api.rename(request, fallback.name)
    bound = fallback.spec.max_tokens
    if bound is not None and request.max_tokens > bound:
        return False
    if not x.snapshot.authorizer.decide(x.principal, request, x.peer, len(x.body or b"")).allow:  # type: ignore[arg-type]
        return False
    if fallback.request_guardrails:
        try:
            await inspect.request(x, fallback.request_guardrails)
        except GatehouseError as error:
            log.info("the fallback %s does not take this request (%s)", fallback.name, error.code)
            return False
    x.entry = fallback
    return True


def _relay_type(x: Exchange, entry: ModelEntry) -> type[AnswerRelay]:
    if not x.request.stream:  # type: ignore[union-attr]
        return AnswerRelay
    return _stream_relay(entry)


def _stream_relay(entry: ModelEntry) -> type[StreamRelay]:
    if entry.holds:
        return HeldRelay
    return inspect.InspectedRelay if entry.response_guardrails else StreamRelay


def _whole_answer(relay: AnswerRelay, request: InferenceRequest) -> tuple[ResponseHead, bytes]:
    """The head and body of a successful, gathered answer; raises an engine's error as the contract's."""
    head = relay.head
    if head is None:
        raise InternalError("The engine's answer has no head.")
    if head.status != 200:
        refusal = _refusal(relay)
        assert refusal is not None
        raise refusal
    body = relay.body()
    request.api.check_answer(body)
    return head, body


def _refusal(relay: AnswerRelay) -> GatehouseError | None:
    """The contract's error for an engine's failed answer; None for a successful one."""
    head = relay.head
    if head is None or head.status == 200:
        return None
    request = relay.exchange.request
    if head.status == 404 and request is not None and request.version:
        return ModelNotFound(f"The model {request.model!r} has no version {request.version[:64]!r}.", param="version")
    return attempt.engine_error(head, relay.body())


def _send(x: Exchange, head: ResponseHead, body: bytes, evidence: bytes | memoryview) -> None:
    """`evidence`: the part of the body that its hash in the audit record covers."""
    answer_head = x.head(OK, x.request.api.answer_lines(head, len(body)))  # type: ignore[union-attr]
    if len(body) < LARGE:
        x.client.send(answer_head + body)
    else:
        x.client.send(answer_head)
        x.client.send(body)
    x.head_sent = True
    x.answer_bytes = len(body)
    x.answer_hash = x.snapshot.audit.hash_body(evidence)  # the client need not wait for it
    x.clock.mark("relay")
