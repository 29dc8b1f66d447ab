"""The Exchange: one request from its first byte to its settlement. It owns principal, reservation, audit intent and attempt.

It is settled exactly once, by whichever comes first: the end of the answer, the client leaving, a deadline, a guardrail, a
drain. `settle` is synchronous and cannot be cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from time import perf_counter_ns, time
from typing import Any, Final, Protocol

from gateway.core.asking import with_spent
from gateway.core.decided import UNTOLD, caller_facts, request_facts
from gateway.core.errors import (
    ApprovalPending,
    ClientGone,
    EngineTimeout,
    GatehouseError,
    GuardrailViolation,
    InternalError,
    ModelNotFound,
    PermissionDenied,
)
from gateway.core.ports import Attempt, AttemptResult, Call, Reservation
from gateway.core.prices import Price
from gateway.core.pseudonyms import Layer
from gateway.core.shapes import ShapeGuard
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.types import DecisionFacts, Headers, InferenceRequest, OutcomeRecord, Peer, Principal, ResponseHead, Usage
from gateway.core.waiting import Driver, Signal
from gateway.pipeline.guarded import Note
from gateway.pipeline.phases import UNTIMED, PhaseClock, clock_of
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.restoring import pseudonym_counts
from gateway.pipeline.statuses import outcome_of, status_line
from gateway.wire.table import identity_lines, refusal

log = logging.getLogger("gatehouse.pipeline")

LAST_CHUNK: Final = b"0\r\n\r\n"
"""Ends a body in chunked transfer coding (RFC 9112, 7.1)."""
NOTHING: Final = Usage()
"""Stands for no usage in records; never changed."""
_now: Final = time
_NEUTRAL: Final = AttemptResult.NEUTRAL
"""Compiled, a Final is one load, and a name that was imported a look-up."""


class Client(Protocol):
    """The client's side of an exchange; implemented by the server's connection."""

    @property
    def paused(self) -> bool:
        """The client does not read: anything written now would pile up."""
        ...

    def send(self, data: bytes) -> None:
        """Writes response bytes."""
        ...

    def finished(self, keep_alive: bool) -> None:
        """The response is complete: the connection takes its next request, or closes."""
        ...

    def read_body(self) -> None:
        """The body is wanted now (answers `Expect: 100-continue`). Raises Overloaded or LimitExceeded when there is no memory for it."""
        ...

    def reserve(self, size: int) -> None:
        """Takes memory for a large answer until the client has taken it. Raises Overloaded or LimitExceeded."""
        ...

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        """Settles a reservation as soon as the client has taken its answer or is gone: until then its request is not over."""
        ...


class Relay(Protocol):
    """Takes the engine's answer for an exchange. head: of the answer, once it has come."""

    head: ResponseHead | None

    def on_failed(self, error: Exception) -> None:
        """The answer will not come, or will not be complete."""

    def tick(self, now: float) -> float:
        """Called when `wake_at` has come; returns the next time."""

    def usage(self) -> Usage | None:
        """The usage the engine reported, or a count of the chunks relayed so far."""
        ...

    def finish(self) -> str:
        """Why the engine stopped generating, as it said."""

    def error_event(self, error: GatehouseError) -> bytes: ...


class Exchange:
    """One request. Made by the server at the end of the headers; stepped by its Driver; gone after `settle`."""

    __slots__ = (
        "allowed",
        "answer_bytes",
        "answer_hash",
        "attempt",
        "attempts",
        "body",
        "body_ready",
        "call",
        "client",
        "clock",
        "cors",
        "costs",
        "deadline",
        "decision_rule",
        "detail",
        "driver",
        "engine_ns",
        "entry",
        "first_ns",
        "flight",
        "guardrail",
        "head_sent",
        "headers",
        "hurried",
        "inspected",
        "intended",
        "keep_alive",
        "kept",
        "layers",
        "lost",
        "notes",
        "path",
        "peer",
        "plane",
        "principal",
        "raced",
        "refusal",
        "refused",
        "relay",
        "request",
        "request_id",
        "reservation",
        "route",
        "sent_ns",
        "settled",
        "shapes",
        "snapshot",
        "spent",
        "started_ns",
        "status",
        "tried",
        "until",
        "upload",
        "usage",
        "wake_at",
    )

    def __init__(
        self, plane: DataPlane, snapshot: Snapshot, client: Client, path: bytes, headers: Headers, peer: Peer, request_id: bytes
    ) -> None:
        self.plane, self.snapshot, self.client = plane, snapshot, client
        self.path, self.headers, self.peer, self.request_id = path, headers, peer, request_id
        self.started_ns = perf_counter_ns()
        self.deadline = self.until = self.wake_at = plane.now + snapshot.spec.listen.request_timeout
        self.body: bytes | None = None
        self.body_ready: Signal[bytes] | None = None
        self.principal: Principal | None = None
        self.request: InferenceRequest | None = None
        self.entry: ModelEntry | None = None
        self.decision_rule = ""
        self.allowed = False  # whether policy has allowed it, once there is a `decision_rule`
        self.reservation: Reservation | None = None
        self.intended = False
        self.attempt: Attempt | None = None
        self.flight: Any = None  # whose answer may be kept (gateway.pipeline.flights.Flight)
        self.attempts = self.tried = self.lost = 0  # tried: failed at the present model; lost: with the engine, at any
        self.raced = ""  # the endpoint that has failed in a race that another one is left to decide
        self.call: Call | None = None
        self.relay: Relay | None = None
        self.sent_ns = 0
        self.first_ns = 0
        self.route = ""
        self.engine_ns = 0
        self.status = 0
        self.head_sent = False
        self.keep_alive = True
        self.hurried = False  # its deadline is one that the caller has set
        self.settled = False
        self.refusal: GatehouseError | None = None  # by policy, while it is charged
        self.refused = False  # by a policy: then it costs a request, so that probing is not free
        self.answer_bytes, self.answer_hash, self.guardrail = 0, "", ""
        self.notes: list[Note] = []  # what guardrails found, and did
        self.shapes: tuple[ShapeGuard, ...] = ()  # guardrails that judge the form of the answer
        self.layers: tuple[Layer, ...] = ()  # of pseudonyms; the answer passes them from the last to the first
        self.detail: dict[str, Any] | None = None
        self.kept: Any = None  # what is kept of its texts (gateway.pipeline.capture)
        self.upload: Any = None  # the form with a file that it is (gateway.pipeline.uploading)
        self.cors = identity_lines(path, request_id)  # and what pages of other origins may read
        self.costs: dict[str, int] | None = None  # of the steps of a pipeline, by currency
        self.spent: Usage | None = None  # of an answer that was repaired, with its cost
        self.usage: Usage | None = None  # of the answer, once it is whole; with what it cost, once it is settled
        self.inspected: Usage | None = None  # what the model cost that a guardrail asked and that led to a refusal
        self.clock: PhaseClock = clock_of(plane, headers, peer, self.started_ns) if plane.timed() else UNTIMED
        self.driver: Driver | None = None
        plane.exchanges.add(self)

    # --- life

    def run(self, phases: Coroutine[Any, Any, None]) -> None:
        """Runs the pipeline's coroutine to its first wait."""
        self.driver = driver = Driver(phases, self._ended)
        driver.start()

    def body_complete(self, body: bytes) -> None:
        self.body = body
        if self.body_ready is not None:
            self.body_ready.set(body)

    def cancel(self, error: GatehouseError) -> None:
        """Ends the exchange with an error, wherever it waits."""
        if not self.settled and self.driver is not None:
            error.interrupts = True
            self.driver.cancel(error)

    def reconsider(self) -> None:
        """Ends the exchange if its caller or its model has been stopped (gateway.core.standing)."""
        standing, principal, entry = self.plane.standing, self.principal, self.entry
        if principal is None:
            return  # it is looked at once it is known
        stop = standing.of(principal)
        if (stop is None or not stop.interrupts) and entry is not None:
            stop = standing.of_model(entry.name, "" if self.request is None else self.request.asked)
        if stop is not None and stop.interrupts:
            self.cancel(stop.error())

    def client_gone(self) -> None:
        """The client closed its connection: cancels the engine's work; generated tokens are still charged."""
        self.cancel(ClientGone("The client closed the connection."))

    def pause(self) -> None:
        """The client does not read: the engine's stream pauses too."""
        if self.call is not None:
            self.call.pause()

    def resume(self) -> None:
        if self.call is not None:
            self.call.resume()

    def expired(self, now: float) -> None:
        """`wake_at` has come: the request's own deadline, the attempt's, or the relay's (keep-alive comments)."""
        relay, call = self.relay, self.call
        if now >= self.deadline:
            self.cancel(EngineTimeout("The request took longer than its deadline."))
        elif relay is None:
            self.wake_at = self.deadline
        elif call is None:  # the engine has answered, and a guardrail is asked about the stream
            self.wake_at = min(self.deadline, relay.tick(now))
        elif now >= self.until:
            self.wake_at = self.deadline
            call.cancel()
            error = EngineTimeout("The engine exceeded its time limit for the answer.")
            error.working = self.head_sent
            relay.on_failed(error)
        else:
            self.wake_at = min(self.deadline, self.until, relay.tick(now))

    # --- the answer's head

    def overhead_us(self) -> int:
        """Microseconds since the first byte that were not spent waiting for an engine."""
        return (perf_counter_ns() - self.started_ns - self.engine_ns) // 1000

    def head(self, status_line: bytes, content: bytes, limits: bool = True) -> bytes:
        """The response head. `content`: the lines on the body (type, length or transfer coding), each with its CRLF. limits: with the
        state of those that the request has passed."""
        attempt, entry, reservation = self.attempt, self.entry, self.reservation
        return b"HTTP/1.1 %b\r\ndate: %b\r\n%bx-request-id: %b\r\nx-gatehouse-overhead-us: %d\r\n%b%b%b%b%b\r\n" % (
            status_line,
            self.plane.date,
            content,
            self.request_id,
            self.overhead_us(),
            entry.header if entry is not None else b"",
            attempt.endpoint_header if attempt is not None else b"",
            reservation.headers if limits and reservation is not None else b"",
            self.cors,
            b"" if self.keep_alive else b"connection: close\r\n",
        )

    def price_of(self, entry: ModelEntry) -> Price | None:
        """What the model cost when this request began: a price that changes meanwhile does not count."""
        return None if entry.prices is None else entry.prices.at(time() - (perf_counter_ns() - self.started_ns) * 1e-9)

    def repaired(self) -> None:
        """The answer so far is not the last one, and is paid for."""
        if self.relay is None or (usage := self.relay.usage()) is None:
            return
        self.timed(usage)
        price = self.request.price  # type: ignore[union-attr]
        if price is not None:
            usage.cost, usage.currency = price.cost(usage), price.currency
        self.spent = usage

    def timed(self, usage: Usage) -> None:
        """Says how long its slot was held so far, if the engine has a rate."""
        attempt = self.attempt
        if attempt is not None and (device := attempt.device) is not None:
            device.end()
            usage.device = device

    # --- the end

    def _ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the exchange with an error: a status and a body before the first byte, an SSE error event after it."""
        if self.settled:
            return
        if not isinstance(error, GatehouseError):
            log.error("request %s failed: %r", self.request_id.decode(), error, exc_info=error)
            error = InternalError(f"Internal error. The request id is {self.request_id.decode()}.")
        if isinstance(error, ClientGone):
            self.settle("cancelled", ClientGone.status, error.code)
            return
        outcome = outcome_of(error)
        self.plane.metrics.limit_refused(getattr(error, "limit", ""))
        self.refused = isinstance(error, GuardrailViolation | PermissionDenied | ApprovalPending | ModelNotFound)
        if isinstance(error, GuardrailViolation):
            self.guardrail = self.guardrail or error.code
            if self.principal is not None:
                self.plane.metrics.guardrail_refused(self.principal.tenant, self.principal.id)
        if self.head_sent:
            self.client.send(chunked((self.relay or self.request.api).error_event(error)) + LAST_CHUNK)  # type: ignore[union-attr]
        else:
            self.client.send(self.error_response(error))
        self.settle(outcome, self.status, error.code)

    def error_response(self, error: GatehouseError) -> bytes:
        """The whole response for an error before the first byte. A request whose body was not read to its end closes the connection."""
        if self.body is None:
            self.keep_alive = False
        self.status, body = refusal(error, self.path, self.headers, self.request_id)
        lines = [b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)]
        if error.retry_after is not None:
            seconds = max(0.0, error.retry_after)
            lines.append(b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (-(-seconds // 1), -(-seconds * 1000 // 1)))
        lines += [b"%b: %b\r\n" % (name.encode(), value.encode("latin-1", "replace")) for name, value in error.headers]
        passed = not any(name.startswith("x-ratelimit-") for name, _ in error.headers)  # else they are those of the limit that refused
        return self.head(status_line(self.status), b"".join(lines), passed) + body

    def settle(self, outcome: str, status: int, code: str = "") -> None:
        """Gives back everything still held and writes the record. Synchronous, runs once, cannot be cancelled."""
        if self.settled:
            return
        self.settled = True
        relay, request, entry = self.relay, self.request, self.entry
        usage = relay.usage() if self.usage is None and relay is not None else self.usage
        if usage is None and (outcome == "cancelled" or (self.hurried and outcome == "timeout")) and self.sent_ns and request is not None:
            usage = Usage(request.prompt_tokens, 0, 0, True)  # the engine has it: else clients that hang up early would have no limit
        if usage is not None and request is not None:
            self.timed(usage)
            if request.price is not None:
                usage.cost, usage.currency = request.price.cost(usage), request.price.currency
        if self.spent is not None:
            usage = self.spent if usage is None else usage.plus(self.spent)
        own, usage = usage, with_spent(usage, self.inspected) if self.refused else usage
        self.usage = usage
        if self.call is not None:
            self.call.cancel()
            self.call = None
        endpoint = ""
        if self.attempt is not None:
            self.attempt.close(_NEUTRAL)
            endpoint = self.attempt.endpoint_name
        counts = self.reservation is not None and (usage is not None or self.refused)
        if self.reservation is not None:
            charged = Usage() if usage is None and self.refused else usage
            if self.client.paused:
                self.client.settle_when_taken(self.reservation, charged)
            else:
                self.reservation.settle(charged)
            if self.reservation.not_enforced:
                self.detail = {**(self.detail or {}), "limits_not_enforced": list(self.reservation.not_enforced)}
        now_ns = perf_counter_ns()
        seconds = (now_ns - self.started_ns) * 1e-9
        if self.notes:
            self._add_notes()
        if self.layers:
            self.detail = {**(self.detail or {}), "pseudonyms": pseudonym_counts(self.layers)}
        record = None
        if self.principal is not None or self.plane.first_denial(self.peer.address, code, self.plane.now):
            record = self._record(outcome, status, code, usage, endpoint, seconds, counts)
        if entry is not None and request is not None:
            overhead = (now_ns - self.started_ns - self.engine_ns) * 1e-3
            entry.meter.record(request.operation, status, outcome, overhead, seconds, own)
            if (detail := self.plane.metrics.detail) is not None:
                detail.settled(self, entry.name, outcome, code, own, now_ns)
        else:
            self.plane.metrics.denied(status, code)
        self.clock.finish(self.plane.metrics.phases)
        plain = outcome == "ok" and status < 500 and self.clock.trace is None
        if (observer := self.plane.observer) is not None and record is not None and not (plain and seconds < observer.calm):
            observer.settled(record, self.clock, self.headers.get(b"traceparent"), None if self.relay is None else self.relay.head)
        self.plane.settled(self)
        self.driver = self.relay = None
        if self.upload is not None:
            self.upload.close()
        self.client.finished(self.keep_alive)

    def _add_notes(self) -> None:
        """What guardrails found goes into the record, and is counted."""
        for note in self.notes:
            note.counted()
        if shown := [note.shown() for note in self.notes if note.verdict != "allow"]:
            self.detail = {**(self.detail or {}), "guardrails": shown}

    def _record(
        self, outcome: str, status: int, code: str, usage: Usage | None, endpoint: str, seconds: float, counts: bool
    ) -> OutcomeRecord:
        principal, request, entry = self.principal, self.request, self.entry
        if usage is None:
            usage = NOTHING
        price = None if request is None or usage is NOTHING else request.price
        device = usage.device
        decided = not self.intended and self.decision_rule != "" and principal is not None and request is not None
        record = OutcomeRecord(
            _now(),  # time
            self.request_id.decode(),  # request_id
            outcome,  # outcome
            status,  # status
            code,  # code
            principal.tenant if principal is not None else "",  # tenant
            principal.id if principal is not None else "",  # principal
            "" if self.intended else self.peer.address,  # peer
            request.operation if request is not None else "",  # operation
            entry.name if entry is not None else "",  # model
            endpoint,  # endpoint
            self.attempts,  # attempts
            usage.prompt_tokens,  # prompt_tokens
            usage.completion_tokens,  # completion_tokens
            usage.cached_tokens,  # cached_tokens
            usage.reasoning_tokens,  # reasoning_tokens
            usage.image_tokens,  # image_tokens
            usage.audio_tokens + usage.audio_completion_tokens,  # audio_tokens
            usage.estimated,  # estimated
            counts,  # charged
            usage.cost,  # cost
            usage.currency if price is None else price.currency,  # currency
            "" if price is None else price.version_of(usage),  # price
            "" if price is None else price.basis,  # basis
            0 if device is None else device.prefill_us,  # prefill_us
            0 if device is None else device.decode_us,  # decode_us
            0 if device is None else device.slots,  # slots
            self.answer_bytes,  # bytes
            self.answer_hash,  # body_hash
            int(seconds * 1e6 + 0.5) / 1000.0,  # duration_ms
            (self.sent_ns - self.started_ns) // 1000 / 1000.0 if self.sent_ns else 0.0,  # sent_ms
            (self.first_ns - self.started_ns) // 1000 / 1000.0 if self.first_ns else 0.0,  # first_ms
            self.relay.finish() if self.relay is not None else "",  # finish
            self.route,  # route
            self.guardrail,  # guardrail
            principal.user if principal is not None else "",  # user
            principal.agent if principal is not None else "",  # agent
            principal.session if principal is not None else "",  # session
            "" if not decided else "allow" if self.allowed else "deny",  # decision
            self.decision_rule if decided else "",  # rule
            principal.kind if decided else "",  # type: ignore[union-attr]  # credential
            caller_facts(principal) if decided else None,  # type: ignore[arg-type]  # caller
            self._facts(entry) if decided else None,  # facts
            self.detail,  # detail
            None if self.kept is None else self.kept.answer(),  # text
        )
        self.snapshot.audit.outcome(record)
        return record

    def _facts(self, entry: ModelEntry | None) -> DecisionFacts | None:
        """What was decided on, of a request without an intent."""
        assert self.request is not None
        try:
            return request_facts(self.request, "" if entry is None else entry.name, self.peer, self.size)
        except Exception as error:  # boundary: whatever is wrong with a request, it ends, gives back what it holds, and is recorded
            log.error("the facts of request %s cannot be told: %r", self.request_id.decode(), error, exc_info=error)
            return UNTOLD

    @property
    def size(self) -> int:
        if self.upload is not None:
            return int(self.upload.size)
        return 0 if self.body is None else len(self.body)


def chunked(data: bytes) -> bytes:
    """One chunk of a body in chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)
