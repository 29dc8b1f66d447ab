"""The phases of a small GET that reaches an engine: metadata and readiness of a model in the Open Inference Protocol.

It passes what every request passes (authentication, authorisation, limits, the audit log, admission) and is settled like one, so that a
client that leaves frees its slot. To authorisation and limits it is the operation `infer`; records and metrics call it `metadata`.
"""

from __future__ import annotations

from time import perf_counter_ns, time
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

from gateway.core.decided import caller_facts, request_facts
from gateway.core.errors import AuthenticationError, EngineError, GatehouseError, ModelNotFound, PermissionDenied, RequestError
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.types import NARROWED, InferenceRequest, IntentRecord, Principal, ResponseHead, Usage
from gateway.core.waiting import WAITS, Completion, Signal, check
from gateway.core.wire import WireApi
from gateway.pipeline.attempt import trace_line
from gateway.pipeline.exchange import Client, Exchange
from gateway.pipeline.pipeline import INSUFFICIENT
from gateway.pipeline.queueing import acquired, queued
from gateway.wire.oip import codec

MAX_BYTES: Final = 1024 * 1024
TIMEOUT: Final = 10.0
"""Seconds for the engine's answer, and between two reads of it."""
DEADLINE: Final = 30.0
"""Seconds for the whole request, the wait for a slot included."""
LARGE: Final = 64 * 1024
INFER: Final = WireApi("infer")
"""Neither its request nor its answer has a body that policies read."""
METADATA: Final = "metadata"
"""Its operation in records and metrics."""


class SmallAnswer:
    """Receives a small answer; `done` completes with it. It costs no tokens."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.head: ResponseHead | None = None
        self.body = b""
        self.done: Signal[None] = Signal()

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            raise EngineError("The engine's answer is too large.")

    def on_end(self) -> None:
        self._exchange.engine_ns += perf_counter_ns() - self._exchange.sent_ns
        self.done.set(None)

    def on_failed(self, error: Exception) -> None:
        self._exchange.engine_ns += perf_counter_ns() - self._exchange.sent_ns
        self.done.fail(error)

    def stranded(self) -> bool:
        return False  # it is asked of one endpoint only

    def error_event(self, error: GatehouseError) -> bytes:
        return b""

    def finish(self) -> str:
        return ""  # nothing is generated

    def tick(self, now: float) -> float:
        return self._exchange.deadline

    def usage(self) -> Usage | None:
        return Usage()


class HeadOnly:
    """The client of a HEAD request: gets the head of each answer without its body (RFC 9110, 9.3.2)."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sent = False
        self.read_body, self.reserve = client.read_body, client.reserve
        self.settle_when_taken, self.finished = client.settle_when_taken, client.finished

    @property
    def paused(self) -> bool:
        return self._client.paused

    def send(self, data: bytes) -> None:
        if not self._sent:
            self._sent = True
            self._client.send(data[: data.find(b"\r\n\r\n") + 4])


async def metadata(x: Exchange) -> None:
    """One request for a model's metadata or readiness, from its headers to its settlement."""
    snapshot = x.snapshot
    x.deadline = x.wake_at = min(x.deadline, x.plane.now + DEADLINE)
    if x.body is None:
        x.keep_alive = False  # the body is not read
    principal = await caller(x)
    if x.peer.trusted:
        principal = x.plane.named.of(principal, x.headers, snapshot.spec.identity.open_webui)
    x.principal = principal
    if x.plane.standing.active:
        x.plane.standing.admit(principal)
    place = _parsed(x.path)
    request = x.request = InferenceRequest(INFER, x.path, "" if place is None else place.model, {}, None)
    entry = _allowed(x, principal, request, place)
    if entry is None or place is None:
        raise await _refused(x, principal, request)
    x.entry = entry
    request.asked, request.model = request.model, entry.name
    await _reserve(x, principal, request)
    request.operation = METADATA
    ticket = snapshot.audit.intent(
        IntentRecord(
            time=time(),
            request_id=x.request_id.decode(),
            tenant=principal.tenant,
            principal=principal.id,
            credential=principal.kind,
            peer=x.peer.address,
            operation=METADATA,
            model=entry.name,
            stream=False,
            bytes=0,
            rule=x.decision_rule,
            config=snapshot.version,
            user=principal.user,
            agent=principal.agent,
            session=principal.session,
            caller=caller_facts(principal),
            facts=request_facts(request, entry.name, x.peer),
            detail={"version": place.version} if place.version else None,
        )
    )
    x.intended = True
    answer = await _asked(x, entry, ticket, codec.model_path(entry.name, place.version, "ready" if place.action == "ready" else ""))
    _check_status(entry, answer.head.status if answer.head is not None else 502)
    body = answer.body
    if len(body) >= LARGE:
        x.client.reserve(len(body))
    x.client.send(x.head(b"200 OK", b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)) + body)
    x.head_sent, x.status, x.answer_bytes = True, 200, len(body)
    x.settle("ok", 200)


async def caller(x: Exchange) -> Principal:
    """The caller. Raises AuthenticationError or any error of the authenticators."""
    found: Any = x.snapshot.identity.authenticate(x.headers, x.peer)
    if found is not None and not isinstance(found, Principal):
        found = await found
    if found is None:
        raise AuthenticationError("No credential was given.", headers=(("www-authenticate", 'Bearer realm="gatehouse"'),))
    principal: Principal = found
    return principal


def no_action(snapshot: Snapshot, principal: Principal, path: bytes) -> RequestError | None:
    """The refusal of a path that names a model which the caller may see, followed by an unknown action. None for any other path, and if the
    whole path is a model's name, which may contain slashes too. Reveals nothing about other models."""

    def seen(place: codec.ModelPath | None) -> TypeGuard[codec.ModelPath]:
        if place is None or place.action != "metadata" or place.model not in snapshot.models:
            return False
        return snapshot.authorizer.may_see(principal, place.model, place.version)

    before, _, last = path.rpartition(b"/")
    place = _parsed(before)
    if last in (b"", b"ready", b"infer") or seen(_parsed(path)) or not seen(place):
        return None
    own, ready, infer = (codec.model_path(place.model, place.version, action).decode() for action in ("", "ready", "infer"))
    return RequestError(
        f"There is no {path.decode('latin-1')[:200]}. There are GET {own}, GET {ready} and POST {infer}.", code="not_found", status=404
    )


def _parsed(path: bytes) -> codec.ModelPath | None:
    try:
        return codec.parse_path(unquote(path.decode("latin-1"), errors="strict"))
    except UnicodeDecodeError:
        return None


def _allowed(x: Exchange, principal: Principal, request: InferenceRequest, place: codec.ModelPath | None) -> ModelEntry | None:
    """The model's entry, or None for a refusal by policy, which is kept until it has been charged."""
    try:
        if place is None:
            raise ModelNotFound("The model does not exist.", param="model")
        request.version = place.version
        entry = _authorised(x, principal, request)
        if x.plane.standing.active:
            x.entry = entry
            x.plane.standing.admit_model(entry.name, place.model)
    except (PermissionDenied, ModelNotFound) as error:
        x.refusal = error
        return None
    return entry


async def _refused(x: Exchange, principal: Principal, request: InferenceRequest) -> GatehouseError:
    """Takes one request from the caller's limits, so that probing is not free; the refusal. A model that the caller may not know of counts
    as one without a name. Raises LimitExceeded, Overloaded."""
    await _reserve(x, principal, InferenceRequest(INFER, x.path, "" if x.entry is None else x.entry.name, {}, None))
    request.operation = METADATA
    error, x.refusal = x.refusal, None  # its traceback holds the exchange
    assert error is not None
    return error


async def _reserve(x: Exchange, principal: Principal, request: InferenceRequest) -> None:
    """Takes what the request costs from the caller's limits, as of the operation `infer`. Raises LimitExceeded, Overloaded."""
    reservation: Any = x.snapshot.limiter.reserve(principal, request)
    x.reservation = await reservation if isinstance(reservation, WAITS) else reservation


def _authorised(x: Exchange, principal: Principal, request: InferenceRequest) -> ModelEntry:
    """The model's entry. An unknown model and one hidden from the caller get the same answer."""
    entry = x.snapshot.models.get(request.model)
    decision = x.snapshot.authorizer.decide(principal, request, x.peer, 0)
    x.decision_rule, x.allowed = decision.rule, decision.allow
    narrowed = decision is NARROWED
    if entry is None or (not narrowed and not x.snapshot.authorizer.may_see(principal, request.model, request.version)):
        if (refusal := no_action(x.snapshot, principal, x.path)) is not None:
            raise refusal
        raise ModelNotFound(f"The model {request.model[:128]!r} does not exist.", param="model")
    if not decision.allow:
        x.entry = entry
        if narrowed:
            raise PermissionDenied(decision.reason, code="insufficient_scope", headers=INSUFFICIENT)
        raise PermissionDenied(decision.reason)
    return entry


async def _asked(x: Exchange, entry: ModelEntry, ticket: Signal[None], path: bytes) -> SmallAnswer:
    """The answer of one endpoint of the model."""
    places = x.snapshot.places
    if places is None:
        granted: Any = entry.route.acquire(x.request, x.principal, None, (), x.deadline, True)  # type: ignore[arg-type]
        attempt: Attempt = await queued(x, entry, granted) if isinstance(granted, WAITS) else granted
        granted = None
    else:
        attempt = await acquired(x, entry, places, None, ())
    x.attempt = attempt
    x.attempts = 1
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    answer = SmallAnswer(x)
    x.relay = answer
    x.sent_ns = perf_counter_ns()
    head = b"GET %b%b HTTP/1.1\r\nx-request-id: %b\r\n%b%b" % (
        attempt.client.base_path,
        path,
        x.request_id,
        attempt.request_headers,
        trace_line(x),
    )
    x.call = attempt.client.send(head, b"", answer, min(TIMEOUT, attempt.first_byte_timeout), TIMEOUT)
    try:
        if not answer.done.done:
            await Completion(answer.done)
        check(answer.done.error)
    except GatehouseError as error:
        if isinstance(error, EngineError) and answer.done.done:  # else it is the client that left, or the deadline
            attempt.close(AttemptResult.REFUSED if error.refused else AttemptResult.FAILURE)
        raise
    x.call = None
    attempt.close(AttemptResult.SUCCESS)
    return answer


def _check_status(entry: ModelEntry, status: int) -> None:
    """Raises the client's error for an engine that did not answer the question, without the engine's own text."""
    if status in (429, 503):
        raise EngineError("The model is not ready.", code="no_healthy_endpoint", status=503, retry_after=1.0)
    if status >= 500 and status != 501:
        raise EngineError(f"The engine answered with status {status}.")
    if status >= 400:
        raise ModelNotFound(f"The model {entry.name!r} does not have this version or does not speak the protocol.", param="model")
