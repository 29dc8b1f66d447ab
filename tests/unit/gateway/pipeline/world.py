"""The pipeline's surroundings as fakes in the test's hands: client, engine, route, limiter, audit, identity, policy, time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from gateway.core.errors import EngineError, GatehouseError, PermissionDenied
from gateway.core.isolation import Salts
from gateway.core.ports import AttemptResult, Guardrail, Receiver
from gateway.core.prices import SlotTime
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ConfigSpec, ListenSpec, ModelSpec, RoutingSpec, StreamSpec
from gateway.core.tools import ToolGuard
from gateway.core.types import Decision, Headers, InferenceRequest, IntentRecord, OutcomeRecord, Peer, Principal, ResponseHead, Usage
from gateway.core.waiting import Maybe, Signal
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.telemetry.metrics import Metrics
from gateway.wire import table

CHAT = b"/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM_BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
JSON_HEAD = ResponseHead(200, [(b"content-type", b"application/json")])
SSE_HEAD = ResponseHead(200, [(b"content-type", b"text/event-stream")])
ANSWER = (
    b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"}}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":2}}}'
)


def chunk(content: str | None = None, index: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    """One event of a chat stream."""
    if content is not None:
        delta["content"] = content
    choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
DONE = b"data: [DONE]\n\n"


class Client:
    """The client's side of an exchange: what was written, and how it was finished."""

    def __init__(self) -> None:
        self.paused = False
        self.written = bytearray()
        self.ends: list[bool] = []
        self.reads = self.reserved = 0
        self.untaken: list[tuple[Any, Usage | None]] = []

    def send(self, data: bytes) -> None:
        assert not self.ends, "nothing may be written after the end"
        self.written += data

    def finished(self, keep_alive: bool) -> None:
        self.ends.append(keep_alive)

    def read_body(self) -> None:
        self.reads += 1

    def reserve(self, size: int) -> None:
        self.reserved += size

    def settle_when_taken(self, reservation: Any, usage: Usage | None) -> None:
        self.untaken.append((reservation, usage))

    @property
    def head(self) -> bytes:
        return bytes(self.written).partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.head.split(b" ")[1])

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines)

    @property
    def body(self) -> bytes:
        """The body without its transfer coding; for a chunked one, all that has come so far."""
        body = bytes(self.written).partition(b"\r\n\r\n")[2]
        return unchunk(body)[0] if b"chunked" in self.head else body

    @property
    def complete(self) -> bool:
        """Whether a chunked body has its last chunk."""
        return unchunk(bytes(self.written).partition(b"\r\n\r\n")[2])[1]


def unchunk(data: bytes) -> tuple[bytes, bool]:
    """(what the chunks hold, whether the last chunk is there); strict."""
    found = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n", data[:80]
        if not length:
            assert rest == b"\r\n", "bytes after the last chunk"
            return found, True
        found += rest[:length]
        data = rest[length + 2 :]
    return found, False


class Call:
    """One request at the fake engine. The test plays the engine with `head`, `body`, `end` and `fail`."""

    def __init__(self, head: bytes, body: bytes, receiver: Receiver, first_byte: float, idle: float) -> None:
        self.request_head, self.request_body, self.receiver = head, body, receiver
        self.timeouts = (first_byte, idle)
        self.over = self.cancelled = False
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def cancel(self) -> None:
        if not self.over:
            self.over = self.cancelled = True

    def _guarded(self, action: Any, *values: Any) -> None:
        """As the transport does: a receiver that raises ends its own call, and a call that is over hears nothing more."""
        if self.over:
            return
        try:
            action(*values)
        except Exception as error:  # noqa: BLE001 - boundary: the transport has it too
            self.over = True
            self.receiver.on_failed(error)

    def head(self, head: ResponseHead = JSON_HEAD) -> Call:
        self._guarded(self.receiver.on_head, head)
        return self

    def body(self, data: bytes) -> Call:
        self._guarded(self.receiver.on_body, data)
        return self

    def end(self) -> None:
        if not self.over:
            self.over = True
            try:
                self.receiver.on_end()
            except Exception as error:  # noqa: BLE001 - boundary: the transport has it too
                self.receiver.on_failed(error)

    def fail(self, error: Exception) -> None:
        if not self.over:
            self.over = True
            self.receiver.on_failed(error)

    def forsake(self) -> None:
        """What the transport does with a call without a byte of its answer when the engine is found not to work."""
        if not self.over and self.receiver.stranded():
            self.fail(_safe())

    def answer(self, body: bytes = ANSWER, head: ResponseHead = JSON_HEAD) -> None:
        self.head(head).body(body).end()


def _safe(*, lost: bool = False) -> EngineError:
    error = EngineError("The engine does not answer.")
    error.safe, error.lost = True, lost
    return error


class EngineClient:
    """Keeps its calls. `failing`: errors for the next calls, told before `send` returns, as for a refused connection."""

    def __init__(self, base_path: bytes = b"") -> None:
        self.base_path = base_path
        self.calls: list[Call] = []
        self.failing: list[EngineError] = []

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        call = Call(head, body, receiver, first_byte_timeout, idle_timeout)
        self.calls.append(call)
        if self.failing:
            call.fail(self.failing.pop(0))
        return call

    async def aclose(self) -> None: ...


class Attempt:
    """One slot; counts how often, and how, it is closed."""

    def __init__(self, name: str, client: EngineClient, upstream_model: str | None = None) -> None:
        self.endpoint_name = name
        self.endpoint_header = b"x-gatehouse-endpoint: %b\r\n" % name.encode()
        self.upstream_model = upstream_model
        self.request_headers = b"authorization: Bearer engine-key\r\n"
        self.first_byte_timeout, self.idle_timeout, self.total_timeout = 12.0, 6.0, 100.0
        self.salting = "none"
        self.apis: tuple[str, ...] = ()
        self.device: SlotTime | None = None
        self.client = client
        self.results: list[str] = []
        self.begun = 0

    def answering(self) -> None:
        self.begun += 1

    def close(self, result: AttemptResult) -> None:
        self.results.append(result.name)


class Counter:
    """Where prompts are counted."""

    def __init__(self, client: EngineClient, counting: str, upstream_model: str | None = None) -> None:
        self.counts_with, self.counting, self.upstream_model = client, counting, upstream_model
        self.request_headers = b"authorization: Bearer engine-key\r\n"


class Route:
    """Gives attempts at endpoints a, b, c ... of one client. `wait`: the next ones are queued; `errors`: raised instead."""

    def __init__(self, client: EngineClient) -> None:
        self.salting = "none"
        self.client = client
        self.attempts: list[Attempt] = []
        self.tried: list[tuple[str, ...]] = []
        self.sessions: list[bytes | None] = []
        self.wait = False
        self.queue: list[Signal[Attempt]] = []
        self.abandoned: list[Signal[Attempt]] = []
        self.errors: list[GatehouseError] = []
        self.retries: list[float] = []
        self.made: list[int] = []
        self.leaves = self.elsewhere = False
        self.clears = True
        self.refused: list[tuple[str, float | None]] = []
        self.upstream_model: str | None = None
        self.apis: tuple[str, ...] = ()
        self.ready, self.backlog = True, 0
        self.counters: Counter | None = None
        self.uncounteds = 0
        self.counts_prompts = False

    def counter(self, labels: frozenset[str]) -> Counter | None:
        return self.counters

    def uncounted(self) -> None:
        self.uncounteds += 1

    def acquire(
        self, request: InferenceRequest, principal: Principal, session: bytes | None, tried: tuple[str, ...], deadline: float, wait: bool
    ) -> Maybe[Attempt] | float:
        if self.wait and not wait:
            return 7.0
        self.tried.append(tried)
        self.sessions.append(session)
        if self.errors:
            raise self.errors.pop(0)
        if self.wait:
            waiting: Signal[Attempt] = Signal()
            self.queue.append(waiting)
            return waiting
        return self.grant()

    def grant(self) -> Attempt:
        attempt = Attempt("abcdefgh"[len(self.attempts)], self.client, self.upstream_model)
        attempt.salting, attempt.apis = self.salting, self.apis
        self.attempts.append(attempt)
        return attempt

    def abandon(self, waiting: Any) -> None:
        self.abandoned.append(waiting)

    def full(self, endpoint: str, retry_after: float | None, labels: frozenset[str]) -> None:
        self.refused.append((endpoint, retry_after))

    def may_move(self, attempts: int, labels: frozenset[str]) -> bool:
        return self.elsewhere

    def may_leave(self, endpoint: str, attempts: int, labels: frozenset[str]) -> bool:
        return self.leaves

    def cleared(self, labels: frozenset[str]) -> None:
        if not self.clears:
            raise PermissionDenied("No engine of m may see data with the label x.", code="label_not_cleared")

    def serves(self, labels: frozenset[str]) -> bool:
        return self.ready

    def may_retry(self, error: Exception, attempts: int) -> float | None:
        self.made.append(attempts)
        return self.retries.pop(0) if self.retries and getattr(error, "safe", False) else None


class Reservation:
    headers = b"x-ratelimit-limit-requests: 10\r\n"
    not_enforced: tuple[str, ...] = ()
    counts_tokens = True

    def __init__(self) -> None:
        self.settled: list[Usage | None] = []

    def settle(self, usage: Usage | None) -> None:
        self.settled.append(usage)


class Limiter:
    def __init__(self) -> None:
        self.reservations: list[Reservation] = []
        self.reserved: list[tuple[int, int, int, bool, str]] = []
        self.short = True
        self.error: GatehouseError | None = None
        self.waiting: Signal[Reservation] | None = None

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        if self.error is not None:
            raise self.error
        if self.waiting is not None:
            return self.waiting
        self.reservations.append(Reservation())
        if request.most and not (request.counted or request.cautious):
            request.unsure = self.short
        self.reserved.append((request.prompt_tokens, request.counted, request.most, request.cautious, request.model))
        return self.reservations[-1]


class Audit:
    """Records; `ticket` decides whether intents are durable at once."""

    accepting, fault = True, None

    def __init__(self) -> None:
        self.intents: list[IntentRecord] = []
        self.outcomes: list[OutcomeRecord] = []
        self.error: GatehouseError | None = None
        self.durable = True
        self.tickets: list[Signal[None]] = []

    def intent(self, record: IntentRecord) -> Signal[None]:
        if self.error is not None:
            raise self.error
        self.intents.append(record)
        ticket: Signal[None] = Signal()
        self.tickets.append(ticket)
        if self.durable:
            ticket.set(None)
        return ticket

    def outcome(self, record: OutcomeRecord) -> None:
        self.outcomes.append(record)

    def event(self, record: Any) -> Signal[None]:
        raise AssertionError("exchanges record no events")

    def hash_body(self, body: bytes | memoryview) -> str:
        return f"hash-{len(body)}"

    async def aclose(self) -> None: ...


class Identity:
    """Everybody is `caller`, unless the test says otherwise."""

    def __init__(self) -> None:
        self.caller: Maybe[Principal | None] = Principal("k", "acme", "api_key", ("*",))
        self.error: Exception | None = None

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        if self.error is not None:
            raise self.error
        return self.caller


class Authorizer:
    def __init__(self) -> None:
        self.allow, self.visible = True, True
        self.denied: set[str] = set()
        self.hidden: set[str] = set()

    def decide(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> Decision:
        allow = self.allow and request.model not in self.denied
        return Decision(allow, "" if allow else "Not yours.", "rule-1")

    def may_see(self, principal: Principal, model: str, version: str = "") -> bool:
        return self.visible and model not in self.hidden


def holding(guardrails: Sequence[Guardrail]) -> bool:
    """Whether streams are held for one of them."""
    return any(getattr(guardrail, "holds", False) for guardrail in guardrails)


class World:
    """One data plane with the model `m` (alias `alias`) and, when asked for, a fallback `n`. Time stands still: `plane.now`."""

    def __init__(
        self,
        *,
        request: Sequence[Guardrail] = (),
        response: Sequence[Guardrail] = (),
        request_tools: Sequence[ToolGuard] = (),
        response_tools: Sequence[ToolGuard] = (),
        fallback_response_tools: Sequence[ToolGuard] = (),
        fallback: bool = False,
        fallback_request: Sequence[Guardrail] = (),
        fallback_response: Sequence[Guardrail] = (),
        fallback_max_tokens: int | None = None,
        keep_alive: float = 15.0,
        key: str = "prefix",
        max_tokens: int | None = None,
        count_prompts: bool | Literal["auto"] = "auto",
        **listen: Any,
    ) -> None:
        self.metrics = Metrics()
        self.plane = DataPlane(self.metrics)
        self.plane.now = 1000.0
        self.engine = EngineClient()
        self.route, self.other = Route(self.engine), Route(self.engine)
        self.route.counts_prompts = count_prompts is True
        self.limiter, self.audit, self.identity, self.authorizer = Limiter(), Audit(), Identity(), Authorizer()
        model = ModelSpec(name="m", pool=("a",), routing=RoutingSpec(key=key), max_tokens=max_tokens, count_prompts=count_prompts)
        judges = {"request_tools": tuple(request_tools), "response_tools": tuple(response_tools)}
        self.entry = ModelEntry(
            model, self.route, self.metrics.meter("m"), tuple(request), tuple(response), holds=holding(response), **judges
        )
        models = {"m": self.entry, "alias": self.entry}
        if fallback:
            other = ModelSpec(name="n", pool=("b",), max_tokens=fallback_max_tokens)
            meter, holds = self.metrics.meter("n"), holding(fallback_response)
            models["n"] = ModelEntry(other, self.other, meter, tuple(fallback_request), tuple(fallback_response), holds=holds)
            models["n"].response_tools = tuple(fallback_response_tools)
            self.entry.stand_by((models["n"].in_place_of(self.entry),))
        spec = ConfigSpec(version=1, listen=ListenSpec(**listen), stream=StreamSpec(keep_alive=keep_alive))
        self.snapshot = Snapshot(7, spec, self.identity, self.authorizer, self.limiter, self.audit, models, table.parse, Salts(b"secret"))
        self.plane.snapshot = self.snapshot

    def start(
        self, body: bytes | None = BODY, *, path: bytes = CHAT, headers: Headers | None = None, peer: Peer | None = None
    ) -> tuple[Exchange, Client]:
        """Runs one request as far as it goes. `body` None: it has not come yet."""
        client = Client()
        exchange = Exchange(self.plane, self.snapshot, client, path, headers or {}, peer or Peer("192.0.2.1"), b"req-1")
        exchange.body = body
        exchange.run(serve(exchange))
        return exchange, client

    @property
    def call(self) -> Call:
        return self.engine.calls[-1]

    @property
    def outcome(self) -> OutcomeRecord:
        """The one outcome that was recorded."""
        (record,) = self.audit.outcomes
        return record
