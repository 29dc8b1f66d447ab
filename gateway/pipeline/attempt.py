"""Phases 8 and 9: one try at one endpoint after another, until an answer begins or no further try is allowed."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from time import perf_counter_ns
from typing import Any, Final

from gateway.core.errors import (
    ContextLengthExceeded,
    EngineError,
    EngineTimeout,
    GatehouseError,
    Overloaded,
    RequestError,
)
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.secret import MASK
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, Principal, ResponseHead
from gateway.core.waiting import Completion, Signal, check, waits
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.flights import FULL, Flight
from gateway.pipeline.queueing import acquired, note_route, queued
from gateway.pipeline.stream import AnswerRelay
from gateway.telemetry.tracing import traceparent
from gateway.wire.failures import engine_says

log = logging.getLogger("gatehouse.pipeline")
MOST_LOST: Final = 2
"""Engines that may be lost while they have a request, before it counts as the reason: it is not given to another one."""
PASSED_STATUSES: Final = frozenset({400, 409, 413, 415, 422})
"""Statuses of an engine's answer about the request itself: the client is told what the engine said."""
NO_PATH: Final = frozenset({404, 405, 501})
"""Statuses of an engine that does not have the path that it was asked."""
CREDENTIALS: Final = ("auth", "key", "token", "secret")
"""Parts of the names of headers that carry them."""
SECRET_LENGTH: Final = 8
"""Characters from which on a word of such a header is taken for one: schemes such as `Bearer` have fewer."""
AT_CAPACITY: Final = "The engine is at its capacity."
_SUCCESS: Final = AttemptResult.SUCCESS
"""Compiled, a Final is one load, and a name that was imported a look-up."""


async def run(
    exchange: Exchange, entry: ModelEntry, ticket: Signal[None], relay_type: type[AnswerRelay], flight: Flight | None = None
) -> AnswerRelay:
    """Selects an endpoint and sends, again on another endpoint while that is safe. Returns the relay at the end of the answer.

    flight: takes the answer too, where others may share it or it may be kept. Raises EngineError, Overloaded, AuditUnavailable. The attempt
    stays with the exchange until it is settled.
    """
    request: InferenceRequest = exchange.request  # type: ignore[assignment]
    tried: tuple[str, ...] = ()
    session = exchange.headers.get(entry.routing_header) if entry.routing_header is not None and exchange.peer.trusted else None
    while True:
        places = exchange.snapshot.places
        if places is None:
            granted: Any = entry.route.acquire(request, exchange.principal, session, tried, exchange.deadline, True)  # type: ignore[arg-type]
            attempt: Attempt = await queued(exchange, entry, granted) if waits(granted) else granted
            granted = None
        else:
            attempt = await acquired(exchange, entry, places, session, tried)
        if entry.watch is not None:
            attempt = entry.watch.watched(exchange, attempt)
        if flight is not None:
            attempt = flight.led(exchange, attempt)
        exchange.attempt, exchange.raced = attempt, ""
        exchange.attempts += 1
        exchange.clock.mark("select")
        if not ticket.done:
            await Completion(ticket)
        check(ticket.error)
        exchange.clock.mark("durable")
        request.foreign = request.api.dialect != "" and request.api.dialect not in attempt.apis
        relay = AnswerRelay(exchange) if relay_type is AnswerRelay else relay_type(exchange)  # by its name it is made at once
        exchange.relay = relay
        _dispatch(exchange, entry, attempt, relay)
        pause: float | None = None
        try:
            if not relay.done.done:
                await Completion(relay.done)
            check(relay.done.error)
        except GatehouseError as error:
            tried = _with(exchange, tried, attempt)
            if isinstance(error, EngineError) and error.lost:
                note_lost(exchange, attempt)
            pause = _after_failure(exchange, entry, attempt, relay, error, len(tried))
            if pause is None:
                raise
            note_route(exchange, "retried")
        if pause is not None:
            if pause:
                await _sleep(pause)
            continue
        exchange.clock.mark("engine")
        exchange.call = None
        attempt.close(result_of(relay.head, request.api.counts))
        if not _may_move(exchange, entry, attempt, relay, len(tried) + (2 if exchange.raced else 1)):
            return relay
        tried = _with(exchange, tried, attempt)


def _with(exchange: Exchange, tried: tuple[str, ...], attempt: Attempt) -> tuple[str, ...]:
    """The endpoints that have failed, with those of an attempt: two, if it was a race."""
    found = (*tried, exchange.raced, attempt.endpoint_name) if exchange.raced else (*tried, attempt.endpoint_name)
    exchange.tried = len(found)
    return found


def _dispatch(exchange: Exchange, entry: ModelEntry, attempt: Attempt, relay: AnswerRelay) -> None:
    """Sends the request to the attempt's endpoint."""
    request: InferenceRequest = exchange.request  # type: ignore[assignment]
    salting, salt = attempt.salting, b""
    if salting != "none":
        salt = exchange.snapshot.salts.salt(exchange.principal, entry.spec.prefix_sharing)  # type: ignore[arg-type]
    path, body = request.api.target(request, attempt.upstream_model, salt if salting != "header" else b"")
    exchange.sent_ns = perf_counter_ns()
    exchange.until = exchange.plane.now + attempt.total_timeout
    exchange.wake_at = min(exchange.deadline, exchange.until)
    head = upstream_head(exchange, attempt, path, salt if salting == "header" else b"")
    if exchange.upload is not None:
        body, whole = exchange.upload.body(body)
        exchange.call = attempt.client.send(head, body, relay, inf, inf, None if whole else exchange.upload)
    elif request.stream:
        exchange.call = attempt.client.send(head, body, relay, attempt.first_byte_timeout, attempt.idle_timeout)
    else:  # before a whole answer, silence means work; a retry would make an engine do it all again
        exchange.call = attempt.client.send(head, body, relay, inf, inf)
    if exchange.client.paused:
        exchange.call.pause()
    exchange.clock.mark("dispatch")


def _after_failure(
    exchange: Exchange, entry: ModelEntry, attempt: Attempt, relay: AnswerRelay, error: GatehouseError, made: int
) -> float | None:
    """Ends the failed attempt and its call; seconds to wait before the next one, or None when the failure is final. made: attempts at this
    model, as a fallback has its own.

    The call is still under way when the failure is not the engine's: the client has left, or the deadline has come.
    """
    if exchange.call is not None:
        exchange.call.cancel()
    exchange.call, exchange.relay = None, relay if relay.started else None
    if not isinstance(error, EngineError) or exchange.plane.now >= exchange.deadline:
        return None  # the request's own deadline says nothing about the engine
    if error.working:
        attempt.close(AttemptResult.NEUTRAL)
    else:
        attempt.close(AttemptResult.REFUSED if error.refused else AttemptResult.FAILURE)
    if relay.started or is_spent(exchange):
        return None
    pause = entry.route.may_retry(error, made)
    if pause is not None:
        entry.meter.retries += 1
        exchange.attempt = None
    return pause


def _may_move(exchange: Exchange, entry: ModelEntry, attempt: Attempt, relay: AnswerRelay, made: int) -> bool:
    """Whether the answer is that an engine had no room for the request, which goes to another one. made: as for a failure."""
    head = relay.head
    if head is None or head.status not in FULL:
        return False
    labels: frozenset[str] = exchange.request.labels  # type: ignore[union-attr]
    note_full(entry, attempt.endpoint_name, head, labels)
    if relay.started or is_spent(exchange) or exchange.plane.now >= exchange.deadline or not entry.route.may_move(made, labels):
        return False
    entry.meter.retries += 1
    exchange.attempt = exchange.relay = None
    exchange.sent_ns = 0  # no engine has it
    note_route(exchange, "retried")
    return True


def note_full(entry: ModelEntry, endpoint: str, head: ResponseHead, labels: frozenset[str]) -> None:
    """An engine has answered that it has no room for a request with these labels."""
    entry.route.full(endpoint, _seconds(head.get(b"retry-after")), labels)


def note_lost(exchange: Exchange, attempt: Attempt) -> None:
    """An engine was lost while it had the request."""
    exchange.lost += 1
    if exchange.lost == MOST_LOST:
        request_id, found = exchange.request_id.decode(), attempt.endpoint_name
        log.warning("request %s: engine %s was lost with it, as one before was; no other engine gets it", request_id, found)


def is_spent(exchange: Exchange) -> bool:
    """Whether the request cannot be sent again: engines may have died of it, or one has got some of a body that was not kept."""
    return exchange.lost >= MOST_LOST or (exchange.upload is not None and bool(exchange.upload.begun))


async def _sleep(seconds: float) -> None:
    done: Signal[None] = Signal()
    timer = asyncio.get_running_loop().call_later(seconds, done.set, None)
    try:
        await done
    finally:
        timer.cancel()


def upstream_head(exchange: Exchange, attempt: Attempt, path: bytes, salt: bytes) -> bytes:
    """Request line and headers for the engine, rebuilt from an allow-list: nothing the client sent goes on but a valid traceparent."""
    request: InferenceRequest = exchange.request  # type: ignore[assignment]
    principal: Principal = exchange.principal  # type: ignore[assignment]
    content = request.content
    if salt:
        content += b"x-gatehouse-cache-salt: %b\r\n" % salt
    return b"POST %b%b HTTP/1.1\r\n%bx-request-id: %b\r\nx-gatehouse-priority: %b\r\nx-gatehouse-deadline-ms: %d\r\n%b%b" % (
        attempt.client.base_path,
        path,
        content,
        exchange.request_id,
        principal.priority.encode(),
        int((min(exchange.deadline, exchange.until) - exchange.plane.now) * 1000),
        attempt.request_headers,
        trace_line(exchange),
    )


def trace_line(exchange: Exchange) -> bytes:
    """The header line by which an engine's call belongs to the request's trace; b"" without one."""
    traced = exchange.clock.trace
    trace: bytes | None = traceparent(exchange.headers.get(b"traceparent")) if traced is None else traced.next_call()
    return b"" if trace is None else b"traceparent: %b\r\n" % trace


def result_of(head: ResponseHead | None, counts: bool = False) -> AttemptResult:
    """What an answer shows about the engine's health: refusals of the request and full queues show nothing. A 401 does: it is about the
    gateway's own key, for a client's never goes on. counts: the request only asks how many tokens a prompt has."""
    status = head.status if head is not None else 502
    if status < 400:
        return _SUCCESS
    if counts and status in NO_PATH:
        return AttemptResult.NEUTRAL
    failed = status == 401 or (status >= 500 and status not in (503, 507))
    return AttemptResult.FAILURE if failed else AttemptResult.NEUTRAL


def refuses(head: ResponseHead | None) -> bool:
    """Whether an engine says in words of its own what is wrong with the request."""
    return head is not None and head.status in PASSED_STATUSES


def engine_error(head: ResponseHead, body: bytes, counts: bool = False, sent: bytes = b"") -> GatehouseError:
    """The contract's error for an engine's unsuccessful answer. counts: as for `result_of`. sent: the header lines of its settings that it
    was sent."""
    status = head.status
    message, code, param = engine_says(body)
    message = unrepeated(message, sent) if sent and message else message
    if counts and status in NO_PATH and "model" not in message.lower():  # else it may be the model that it does not have
        return RequestError("The engine of this model cannot count tokens.", code="unsupported_operation")
    if status in PASSED_STATUSES:
        if code == "context_length_exceeded":  # a 400, also where an engine says 413 or 422
            return ContextLengthExceeded(message or "The request does not fit into the model's context.", param=param)
        return RequestError(message or "The engine refused the request.", code=code or "invalid_value", param=param, status=status)
    retry_after = _seconds(head.get(b"retry-after"))
    if status in FULL:
        if code == "model_loading":
            return EngineError("The model is being loaded.", code="model_loading", status=503, retry_after=retry_after or 1.0)
        return Overloaded(AT_CAPACITY, retry_after=retry_after or 1.0)
    if status == 504:
        return EngineTimeout("The engine took longer than its deadline.")
    if status == 507:
        return EngineError("The engine has not enough memory for the model or for this request.", code="insufficient_memory", status=507)
    return EngineError(f"The engine answered with status {status}.")


def unrepeated(message: str, sent: bytes) -> str:
    """An engine's message without the credentials that it was sent: one that refuses them may repeat them, and the client reads it."""
    for line in sent.decode("ascii").split("\r\n"):
        name, _, value = line.partition(": ")
        if any(part in name.lower() for part in CREDENTIALS):
            for word in value.split(" "):
                if len(word) >= SECRET_LENGTH:
                    message = message.replace(word, MASK)
    return message


def _seconds(value: bytes | None) -> float | None:
    return float(value) if value is not None and value.isdigit() and len(value) < 6 else None
