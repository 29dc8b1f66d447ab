"""The pipeline: the phases of a request's life, from top to bottom (docs/architecture.md has them as a table).

`serve` is a coroutine that a Driver steps: it suspends only where a phase must wait, and needs no task. Any error it raises
ends the exchange; everything the exchange holds is given back in `Exchange.settle`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from time import time
from typing import Any, Final

from gateway.core.approvals import HEADER
from gateway.core.decided import caller_facts, request_facts
from gateway.core.errors import (
    AuthenticationError,
    EngineError,
    GatehouseError,
    GuardrailViolation,
    InternalError,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RequestError,
)
from gateway.core.ports import Attempt
from gateway.core.snapshot import ModelEntry
from gateway.core.types import NARROWED, InferenceRequest, IntentRecord, Principal, ResponseHead
from gateway.core.waiting import WAITS, Completion, Signal, check, waits
from gateway.core.wire import WireApi
from gateway.pipeline import approvals, attempt, cached, conversations, costs, counting, inspect, moderation, shapes, tools, uploading
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.held import HeldRelay
from gateway.pipeline.large import LARGE_ANSWER, read_ahead
from gateway.pipeline.queueing import note_route
from gateway.pipeline.releasing import prepare, release
from gateway.pipeline.stream import OK, AnswerRelay, StreamRelay, received
from gateway.pipeline.until_close import UntilClose

LARGE: Final = 64 * 1024  # bytes above which a body is not copied behind its head, and is parsed in turns of the loop
INSUFFICIENT: Final = (("www-authenticate", 'Bearer realm="gatehouse", error="insufficient_scope"'),)  # RFC 6750, 3.1
_ELSEWHERE: Final = ("engine_error", "overloaded_error", "timeout_error")  # types of errors that a fallback may not have
TOLD: Final[tuple[str, ...]] = ("batch", "pipeline", "ticket")
NOT_CLEARED: Final = "label_not_cleared"  # the code where no engine of a model may see the request; those of a fallback may

log = logging.getLogger("gatehouse.pipeline")
_now: Final = time  # compiled, a Final is one load, and a name that was imported a look-up
_NARROWED: Final = NARROWED
_APPROVAL: Final = HEADER


async def serve(x: Exchange) -> None:
    """One inference request, from its headers to its settlement."""
    snapshot = x.snapshot
    principal: Any = snapshot.identity.authenticate(x.headers, x.peer) if x.principal is None else x.principal  # 2
    if not isinstance(principal, Principal):
        principal = await _identified(principal)
    principal = _admitted(x, principal)
    if x.plane.records is not None:
        await x.plane.records.at_hand(principal.tenant)
    x.clock.mark("authenticate")

    body = b"" if x.upload is not None else await _read(x) if x.body is None else x.body
    if x.upload is not None:
        body, request = await uploading.opened(x)
    elif len(body) > LARGE and snapshot.parse_steps is not None:  # 3
        request = x.request = await x.plane.turns.run(snapshot.parse_steps(x.path, body, x.headers))
    else:
        request = x.request = snapshot.parse(x.path, body, x.headers)
    x.clock.mark("parse")
    if request.api.remembers_any:
        await _recalled(x, principal, request)
    entry = _authorised(x, principal, request)  # 4
    if entry is None:
        raise await _refused(x, principal, request)
    x.entry = entry = entry.seen_by(principal) if entry.scoped else entry
    x.clock.mark("authorise")
    if _APPROVAL in x.headers and await _retried(x, principal, request, body):
        return
    reservation: Any = counting.reserved(x, entry) if entry.counts_prompts else snapshot.limiter.reserve(principal, request)  # 5
    x.reservation = await reservation if entry.counts_prompts or waits(reservation) else reservation
    x.clock.mark("reserve")
    if (entry.request_guardrails or entry.request_tools or request.unsure) and not inspect.clears(x, entry):  # 6
        await _inspected(x, entry, True)

    x.kept = None if x.plane.texts is None else await x.plane.texts.keep(x, principal, request)
    relay_type: type[AnswerRelay] = _relay_type(x, entry)
    ticket = _intent(x, principal, request, body)  # 7
    x.clock.mark("intent")
    if request.api.moderates and await _moderated(x, entry, ticket):
        return
    if entry.fallbacks:  # 8, 9, 10
        entry, relay = await _with_fallbacks(x, entry, ticket, relay_type)
    else:
        relay = await (attempt.run(x, entry, ticket, relay_type) if entry.cache is None else cached.run(x, entry, ticket, relay_type))
    if relay.started:
        await _finished(x, entry, ticket, relay)
    else:
        if (entry.response_guardrails or x.layers) and attempt.refuses(relay.head):
            raise await inspect.refusal(x, entry.response_guardrails, _refusal(relay))  # type: ignore[arg-type]
        head, body = _whole_answer(relay, request)
        if len(body) >= LARGE_ANSWER:
            await read_ahead(x, relay, entry, body)
        evidence: bytes | memoryview = body
        if entry.response_guardrails or entry.response_tools or request.api.describes or x.layers or x.shapes:
            clear = relay.read = inspect.clears_answer(x, entry, head, body)
            body, evidence = await _shaped(x, entry, ticket, head, body) if clear is None else (clear.body, clear.evidence())
        if request.memory is not None and request.memory.keeps:
            await conversations.keep(x, body)
        _send(x, head, body, evidence)
    _settled(x)  # 11


def _settled(x: Exchange) -> None:
    """Everything has passed: the answer may be kept, where answers are."""
    if x.flight is not None:
        x.flight.keep(x)
    x.settle("ok", 200)


async def _read(x: Exchange) -> bytes:
    """The body, which has not come yet."""
    ready: Signal[bytes] = Signal()
    x.body_ready = ready
    x.client.read_body()
    return await ready  # the connection's own deadline bounds the wait


async def _recalled(x: Exchange, principal: Principal, request: InferenceRequest) -> None:
    """Raises RequestError where there is no conversation to go on with, which costs a request."""
    if (unknown := await conversations.recall(x, principal, request)) is not None:
        await _reserve_one(x, principal, request.operation, request.path)
        raise unknown


async def _finished(x: Exchange, entry: ModelEntry, ticket: Signal[None], relay: AnswerRelay) -> None:
    """What is left to do once the engine's stream is over: what was held is released, what is to be kept is kept."""
    if relay.held:
        relay = await _shaped_stream(x, entry, ticket, relay)
        await relay.release()
    memory = x.request.memory  # type: ignore[union-attr]
    if memory is not None and memory.keeps:
        await conversations.keep_stream(x, relay)


async def _identified(waiting: Awaitable[Principal | None] | None) -> Principal:
    principal = None if waiting is None else await waiting
    if principal is None:
        raise AuthenticationError(
            "No credential was given. Send 'Authorization: Bearer <key>'.", headers=(("www-authenticate", 'Bearer realm="gatehouse"'),)
        )
    return principal


def _admitted(x: Exchange, principal: Principal) -> Principal:
    """The caller as a trusted peer names it. Raises PermissionDenied for one who is stopped."""
    plane = x.plane
    if x.peer.trusted:
        principal = plane.named.of(principal, x.headers, x.snapshot.spec.identity.open_webui)
    x.principal = principal
    if plane.standing.active:
        plane.standing.admit(principal)
    return principal


def _authorised(x: Exchange, principal: Principal, request: InferenceRequest) -> ModelEntry | None:
    """The model's entry, or None for a refusal by policy, which is kept until it has been charged. Raises RequestError."""
    try:
        return _allowed(x, principal, request)
    except (PermissionDenied, ModelNotFound) as error:
        x.refusal = error  # no `await` within `except`: compiled, that loses track of the error
        return None


def _taken(x: Exchange) -> GatehouseError:
    """The refusal, of which the exchange keeps nothing: its traceback holds the exchange."""
    error, x.refusal = x.refusal, None
    assert error is not None
    return error


def _allowed(x: Exchange, principal: Principal, request: InferenceRequest) -> ModelEntry:
    """The model's entry. An unknown model and one hidden from the caller get the same answer."""
    snapshot = x.snapshot
    if request.api.moderates:
        moderation.choose(snapshot, request)
    entry = snapshot.models.get(request.model)
    decision = snapshot.authorizer.decide(principal, request, x.peer, x.size)
    x.decision_rule, x.allowed = decision.rule, decision.allow
    narrowed = decision is _NARROWED
    if entry is None or (not x.allowed and not narrowed and not snapshot.authorizer.may_see(principal, request.model)):
        raise ModelNotFound(f"The model {request.model[:128]!r} does not exist.", param="model")
    if not x.allowed:
        x.entry = entry
        if narrowed:
            raise PermissionDenied(decision.reason, code="insufficient_scope", headers=INSUFFICIENT)
        raise PermissionDenied(decision.reason)
    if x.plane.standing.active:
        x.entry = entry
        x.plane.standing.admit_model(entry.name, request.model)
    if request.unknown:
        request.api.settle_unknown(request, entry.spec.unknown_fields, entry.spec.engine_tools)
    if entry.name != request.model:
        request.asked = request.model
        request.api.rename(request, entry.name)
    if request.stream and b":version" in x.headers:
        x.client = UntilClose(x.client)
    bound = entry.spec.max_tokens
    if bound is not None and request.max_tokens > bound:
        raise RequestError(f"max_tokens: this model generates at most {bound} tokens for one request.", param="max_tokens")
    if entry.prices is not None:
        request.price = x.price_of(entry)
    request.size, request.guess = x.size, request.prompt_tokens
    known = snapshot.labels
    if known is not None and (labels := known.of(request, principal, entry.name, x.headers, x.peer)):
        inspect.labelled(x, labels)
    return entry


async def _refused(x: Exchange, principal: Principal, request: InferenceRequest) -> GatehouseError:
    """Takes one request from the caller's limits, so that probing is not free; the refusal. A model that the caller may not know of counts
    as one without a name, whether or not there is such a model. Raises LimitExceeded, Overloaded."""
    await _reserve_one(x, principal, request.operation, request.path)
    return _taken(x)


async def _reserve_one(x: Exchange, principal: Principal, operation: str, path: bytes) -> None:
    """Reserves one request without tokens. Raises LimitExceeded, Overloaded."""
    one = InferenceRequest(WireApi(operation), path, "" if x.entry is None else x.entry.name, {}, None)
    reservation: Any = x.snapshot.limiter.reserve(principal, one)
    x.reservation = await reservation if isinstance(reservation, WAITS) else reservation


async def _retried(x: Exchange, principal: Principal, request: InferenceRequest, body: bytes) -> bool:
    """A retry that names an approval: gives it the kept answer and settles, or returns False where a request was approved, which then goes
    its way. Nothing is charged for either here; a refusal costs one request."""
    await _reserve_one(x, principal, request.operation, request.path)
    found = await approvals.asked(x, True)
    if not found.form:
        reservation, x.reservation = x.reservation, None
        if reservation is not None:
            reservation.settle(None)
        return False
    assert x.entry is not None
    _ = _relay_type(x, await prepare(x, x.entry, found.model))
    ticket = _intent(x, principal, request, body)
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    await release(x, found)
    x.settle("ok", 200)
    return True


async def _inspected(x: Exchange, entry: ModelEntry, asked: bool = False) -> None:
    """Phase 6. asked: `inspect.clears` has been, and said no. Raises GuardrailViolation, LimitExceeded, Overloaded, AuditUnavailable."""
    inspect.recordable(x)
    guardrails = entry.request_guardrails
    if x.request.api.moderates:  # type: ignore[union-attr]
        guardrails = moderation.before(x, guardrails)
    if guardrails:
        await inspect.request(x, guardrails, asked and inspect.only_guardrails(x, entry))
    if entry.request_tools:
        await tools.request(x, entry.request_tools)
    x.clock.mark("inspect")
    if x.request.unsure:  # type: ignore[union-attr]
        await counting.counted(x, entry)


async def _moderated(x: Exchange, entry: ModelEntry, ticket: Signal[None]) -> bool:
    """Whether a guardrail has answered instead of an engine."""
    if (moderator := x.snapshot.moderations.of(entry.name)) is None:
        return False
    body = await moderation.judged(x, moderator, ticket)
    _send(x, moderation.OK, body, body)
    x.settle("ok", 200)
    return True


async def _passed(x: Exchange, entry: ModelEntry, head: ResponseHead, body: bytes) -> tuple[bytes, bytes | memoryview]:
    """Phase 10 for a whole answer: what may pass of it, and the part that the record's body hash covers. Raises GuardrailViolation."""
    judges = bool(entry.response_tools) and x.request.api.generates  # type: ignore[union-attr]
    body, evidence = await inspect.answer(x, entry.response_guardrails, head, body, judges)
    if judges:
        body = evidence = await tools.answer(x, entry.response_tools, body)
    return body, evidence


async def _shaped(
    x: Exchange, entry: ModelEntry, ticket: Signal[None], head: ResponseHead, body: bytes
) -> tuple[bytes, bytes | memoryview]:
    """What may pass of a whole answer, in the form that it must have, after a second try where that is allowed. Raises
    GuardrailViolation."""
    passed, evidence = await _passed(x, entry, head, body)
    if not x.shapes:
        return passed, evidence
    request: InferenceRequest = x.request  # type: ignore[assignment]
    found = shapes.judged(x, passed)
    if found.repair and shapes.prepared(request, body, found):
        x.repaired()
        try:
            relay = await attempt.run(x, entry, ticket, AnswerRelay)
            head, body = _whole_answer(relay, request)
            passed, evidence = await _passed(x, entry, head, body)
            found = shapes.judged(x, passed)
        except (EngineError, Overloaded, RequestError) as error:
            log.debug("an answer of %s could not be repaired (%s)", entry.name, error.code)
    found.settle()
    return passed, evidence


async def _shaped_stream(x: Exchange, entry: ModelEntry, ticket: Signal[None], relay: AnswerRelay) -> AnswerRelay:
    """The same for a stream that is held: the relay whose stream may be released."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    if not x.shapes:
        return relay
    assert isinstance(relay, HeldRelay)
    events = relay.body()
    found = shapes.judged(x, await shapes.whole(x, await relay.passed()))
    if found.repair and shapes.prepared(request, await shapes.whole(x, events), found):
        x.repaired()
        try:
            again = await attempt.run(x, entry, ticket, type(relay))
            if again.started:
                assert isinstance(again, HeldRelay)
                found = shapes.judged(x, await shapes.whole(x, await again.passed()))
                relay = again
        except (EngineError, Overloaded, RequestError) as error:
            log.debug("an answer of %s could not be repaired (%s)", entry.name, error.code)
    found.settle()
    return relay


def _intent(x: Exchange, principal: Principal, request: InferenceRequest, body: bytes) -> Signal[None]:
    audit = x.snapshot.audit
    entry = x.entry
    assert entry is not None
    api, price = request.api, request.price
    reserved_prompt, reserved_completion = max(request.prompt_tokens, 0), max(request.max_tokens, request.expected, 0)
    detail = api.detail(request, audit.hash_body)
    if x.detail is not None and (told := {name: x.detail[name] for name in TOLD if name in x.detail}):
        detail = {**told, **(detail or {})}
    ticket = audit.intent(
        IntentRecord(
            _now(),  # time
            x.request_id.decode(),  # request_id
            principal.tenant,  # tenant
            principal.id,  # principal
            principal.kind,  # credential
            x.peer.address,  # peer
            request.operation,  # operation
            entry.name,  # model
            request.stream,  # stream
            x.size,  # bytes
            audit.hash_body(api.evidence(request, body)),  # body_hash
            x.decision_rule,  # rule
            x.snapshot.version,  # config
            principal.user,  # user
            principal.agent,  # agent
            principal.session,  # session
            reserved_prompt,  # reserved_prompt
            reserved_completion,  # reserved_completion
            0 if price is None else price.bound(reserved_prompt, reserved_completion),  # reserved_cost
            "" if price is None else price.currency,  # currency
            "" if price is None else price.version,  # price
            caller_facts(principal),  # caller
            request_facts(request, entry.name, x.peer),  # facts
            tuple(sorted(request.labels)) if request.labels else (),  # labels
            detail,  # detail
            None if x.kept is None else x.kept.prompt(body),  # text
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
                if not await _may_stand_in(x, asked, candidate):
                    continue
                relay_type = _relay_type(x, candidate)
                x.tried = 0
            try:
                run = attempt.run if candidate.cache is None else cached.run
                relay = await run(x, candidate, ticket, relay_type)
                error = None if relay.started else _refusal(relay)
                if error is None or error.type not in _ELSEWHERE or attempt.is_spent(x):
                    return candidate, relay
            except GatehouseError as failed:
                if (failed.type not in _ELSEWHERE and failed.code != NOT_CLEARED) or x.head_sent or attempt.is_spent(x):
                    raise
                error = failed
            log.debug("model %s cannot answer (%s)", candidate.name, error.code)
            if own is None:
                own, its_attempt = error, x.attempt
            x.attempt = error = None
        x.entry, x.attempt = asked, its_attempt
        x.request.price = x.price_of(asked)  # type: ignore[union-attr]
        assert own is not None
        raise own
    finally:
        own = None  # its traceback holds this frame


async def _may_stand_in(x: Exchange, asked: ModelEntry, fallback: ModelEntry) -> bool:
    """Whether a fallback may answer this request: the caller may use it, it passes the fallback's own checks, and limits have room."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    request.api.rename(request, fallback.name)
    if x.snapshot.labels is not None and (labels := x.snapshot.labels.of_model(fallback.name)):
        inspect.labelled(x, labels)
    bound = fallback.spec.max_tokens
    if bound is not None and request.max_tokens > bound:
        return False
    standing = x.plane.standing
    if standing.of_model(fallback.name) or not x.snapshot.authorizer.decide(x.principal, request, x.peer, x.size).allow:  # type: ignore[arg-type]
        return False
    if request.unknown and not frozenset(asked.spec.engine_tools) <= frozenset(fallback.spec.engine_tools):
        return False
    if fallback.request_guardrails or fallback.request_tools:
        try:
            await _inspected(x, fallback)
        except GatehouseError as error:
            log.debug("the fallback %s does not take this request (%s)", fallback.name, error.code)
            return False
        if standing.of_model(fallback.name):  # since its guardrails began to read
            return False
    x.entry, request.price = fallback, x.price_of(fallback)
    if not await counting.renewed(x, asked, fallback):
        return False
    note_route(x, "fallback")
    return True


def _relay_type(x: Exchange, entry: ModelEntry) -> type[AnswerRelay]:
    """Raises RequestError for a form of the answer that cannot be asked for, GuardrailViolation for one that nothing could inspect."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    if (entry.response_guardrails or x.layers) and (why := request.api.unanswerable(request)):
        raise GuardrailViolation(why)
    x.shapes = shapes.concerning(x, entry.response_shapes) if entry.response_shapes else ()
    return _stream_relay(entry, entry.holds or bool(x.shapes), bool(x.layers)) if request.stream else AnswerRelay


def _stream_relay(entry: ModelEntry, holds: bool, restores: bool) -> type[StreamRelay]:
    """restores: pseudonyms of the request are to be put back."""
    if entry.response_tools:
        return tools.HeldToolRelay if holds else tools.ToolRelay
    if holds:
        return HeldRelay
    return inspect.InspectedRelay if entry.response_guardrails or restores else StreamRelay


def _whole_answer(relay: AnswerRelay, request: InferenceRequest) -> tuple[ResponseHead, bytes]:
    """The head and body of a successful, gathered answer; raises an engine's error as the contract's."""
    if (head := relay.head) is None:
        raise InternalError("The engine's answer has no head.")
    if head.status != 200:
        raise _refusal(relay)  # type: ignore[misc]
    return head, received(request, head, relay.body())


def _refusal(relay: AnswerRelay) -> GatehouseError | None:
    """The contract's error for an engine's failed answer; None for a successful one."""
    if (head := relay.head) is None or head.status == 200:
        return None
    request = relay.exchange.request
    if head.status == 404 and request is not None and request.version:
        return ModelNotFound(f"The model {request.model!r} has no version {request.version[:64]!r}.", param="version")
    sent = b"" if relay.exchange.attempt is None else relay.exchange.attempt.request_headers
    return attempt.engine_error(head, relay.body(), request is not None and request.api.counts, sent)


def _send(x: Exchange, head: ResponseHead, body: bytes, evidence: bytes | memoryview) -> None:
    """`evidence`: the part of the body that its hash in the audit record covers."""
    if x.request.stream and x.request.api.generates:  # type: ignore[union-attr]  # the engine has not heard of streams
        return approvals.sent(x, x.request.api.replayed(body, False, True, x.request.include_usage))  # type: ignore[union-attr]
    if x.upload is not None and x.body is None:  # the engine has answered before it had all of it
        x.keep_alive = False
    lines = x.request.api.answer_lines(head, len(body)) + (costs.line(x) if costs.shows(x) else b"")  # type: ignore[union-attr]
    answer_head = x.head(OK, lines)
    if len(body) < LARGE:
        x.client.send(answer_head + body)
    else:
        x.client.send(answer_head)
        x.client.send(body)
    x.head_sent, x.answer_bytes = True, len(body)
    x.answer_hash = x.answer_hash or x.snapshot.audit.hash_body(evidence)  # the client need not wait for it
    x.clock.mark("relay")
