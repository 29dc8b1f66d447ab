"""Every Protocol between parts of Gatehouse. The table of a request's life (docs/architecture.md) names them by phase.

`Maybe[T]` is T, or an awaitable when the answer must be waited for; the fast path returns the value. Awaitables on the hot path are a
`Signal` (gateway.core.waiting) or an asyncio future; coroutines run in tasks of the implementation's (gateway.core.tasks.TaskOwner).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, Protocol

from gateway.core.audit_proofs import AuditProofs
from gateway.core.audit_questions import AuditFilter, AuditScope
from gateway.core.prices import SlotTime
from gateway.core.slices import Steps
from gateway.core.types import (
    AuditRecord,
    Decision,
    Headers,
    InferenceRequest,
    IntentRecord,
    OutcomeRecord,
    Peer,
    Principal,
    ResponseHead,
    Trial,
    Usage,
    Verdict,
)
from gateway.core.uploads import BodySource
from gateway.core.waiting import Maybe, Signal

# --- 2 authenticate


class Authenticator(Protocol):
    """Identifies the caller from the headers and the connection alone."""

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """The principal; None when there is no credential of this kind. Raises AuthenticationError to reject a bad one."""


# --- 4 authorise


class Authorizer(Protocol):
    """Decides whether a principal may do this. Default deny; memoised by implementation; never raises for a denial."""

    def decide(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> Decision:
        """peer: where the request comes from. size: bytes of its body."""

    def explain(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> list[dict[str, Any]]:
        """The rules that concern the request, in the order in which they count: {"rule", "effect", "when": the condition's text or None,
        "holds": whether it counts for this request}. For operators, never for callers."""

    def may_see(self, principal: Principal, model: str, version: str = "") -> bool:
        """Whether the model is listed for this principal."""
        ...

    def judge(self, principal: Principal, model: str, operation: str, version: str, read: Callable[[str], Any]) -> Decision:
        """The decision about a request that is not at hand. read: gives the facts that conditions name; what it raises passes."""

    def considered(self, principal: Principal, model: str, operation: str, version: str, read: Any) -> list[dict[str, Any]]:
        """As `explain`, about a request that is not at hand. read: as for `judge`."""


# --- 5 reserve quota


class Reservation(Protocol):
    """The amounts taken from the buckets for one exchange; settled exactly once."""

    headers: bytes
    """x-ratelimit-* lines ("name: value\\r\\n" each), ready to be written into the response head; b"" when unlimited."""
    not_enforced: tuple[str, ...]
    """Limits that are not enforced and would have refused the request."""

    @property
    def counts_tokens(self) -> bool:
        """Whether any of these buckets counts tokens, or money."""

    def settle(self, usage: Usage | None) -> None:
        """Charges the actual usage (None: the exchange was not served, everything is refunded) and frees the concurrency slot."""


class Limiter(Protocol):
    """Takes from all the buckets that apply, or from none."""

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        """Raises LimitExceeded (with retry_after and the x-ratelimit headers) when any bucket has too little."""


# --- 6 and 10 inspect


class Guardrail(Protocol):
    """Reads whole texts. An exception inside is a denial by the pipeline (fail mode `closed`). May have a `trigger` (docs/plugins.md)."""

    name: str

    def check(self, texts: Sequence[str]) -> Maybe[Verdict] | Steps[Verdict]:
        """The verdict, an awaitable if others must be asked, or for long texts the steps to it, which run in slices between
        other work (gateway.core.slices), and a step takes a few milliseconds at most. A plain call takes about one.

        A guardrail that sends texts elsewhere should also have `check_labelled(texts, labels)`, which is called instead if the texts have
        data labels: it may ask only services that are cleared for all of them (docs/labels.md)."""

    def stream(self) -> StreamMatcher | None:
        """A matcher for one choice of a streamed answer; None where this guardrail cannot work on streams, which are then held."""


class StreamMatcher(Protocol):
    """Sees the text of one choice as it grows. Holds back only what could still become part of a match.

    It may have `findings`, a list of Finding that grows, with places in the text that came in; and with them `verdict` ("rewrite" or
    "annotate") and `reason`, for the audit record.
    """

    @property
    def held(self) -> str:
        """Text received but not yet released, unchanged: passed on when a matcher fails whose fail mode is `open`."""

    def feed(self, text: str) -> str:
        """The part of the held and the new text that is safe to release now. Raises GuardrailViolation to block."""

    def finish(self) -> str:
        """The text still held at the end. Raises GuardrailViolation to block."""


# --- 7 audit


class AuditLog(Protocol):
    """Writes records as durably as configured. Records are ordered and chained by the writer."""

    def intent(self, record: IntentRecord) -> Signal[None]:
        """Completes when the record is durable; fails with AuditUnavailable.

        Raises AuditUnavailable when the queue is full or the log is broken.
        """

    def outcome(self, record: OutcomeRecord) -> None:
        """Hands the record over; never waits, never raises. A loss turns `accepting` off."""

    def event(self, record: AuditRecord) -> Signal[None]: ...

    @property
    def accepting(self) -> bool:
        """Whether a sink accepts records now (shown by /readyz)."""

    @property
    def fault(self) -> str | None:
        """Why records are not accepted, or None if they are."""

    def hash_body(self, body: bytes | memoryview) -> str:
        """A keyed hash of a body or of a tensor's data, in hex; "" when body hashes are off."""

    async def aclose(self) -> None: ...


class AuditReader(AuditProofs, Protocol):
    """Reads the local audit log for `gatehouse audit tail|verify|export` and the admin API."""

    def tail(self, count: int, writer: str | None = None) -> list[dict[str, Any]]:
        """The newest records of one writer or of all, by time, each with its `writer`."""

    def verify(self, scope: AuditScope = ...) -> dict[str, Any]:
        """scope: what must be there; by default everything."""

    def export(self, wanted: AuditFilter = ..., format: str = "jsonl") -> Iterator[bytes]:
        """The lines that match, writer by writer: `jsonl` exactly as in the log, or `csv`, `ocsf`, `cef`. Blocks, like all methods here."""

    def newest(self, since: float | None = None, text: str = "") -> Iterator[dict[str, Any]]:
        """Intents and outcomes of all writers, the newest first, none before `since`. text: only records that hold it, in any field."""


# --- 8 admit and select; 9 dispatch


class Receiver(Protocol):
    """Takes an engine's answer as it arrives; called by the transport, synchronously, in order. After `end` or `failed` nothing follows."""

    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_failed(self, error: Exception) -> None:
        """An EngineError (engine_failed, or EngineTimeout). `error.safe` tells whether no byte of a response had arrived."""

    def stranded(self) -> bool:
        """Probes found that the endpoint does not work, and no byte of a response has arrived. True: the call fails now, as the request can
        be served elsewhere; False: it goes on waiting."""


class Call(Protocol):
    """One request under way on one connection."""

    def pause(self) -> None:
        """Stops reading from the engine until `resume`."""

    def resume(self) -> None: ...

    def cancel(self) -> None:
        """Gives up: closes the connection and tells the receiver nothing more."""


class EngineClient(Protocol):
    """The way to one endpoint: its address, its connections."""

    @property
    def base_path(self) -> bytes:
        """The prefix of every path at this endpoint (usually b"")."""

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: BodySource | None = None
    ) -> Call:
        """Sends one request. `head`: request line and headers without content-length, host and the final empty line. Timeouts in seconds,
        from the sending to the first byte and between two reads. source: gives the rest of the body. Never raises for the network."""

    def forsake(self) -> None:
        """Probes say that the engine does not work: fails those calls that have no byte of a response yet and can be served elsewhere."""

    async def aclose(self) -> None: ...


class Attempt(Protocol):
    """One try at one endpoint; owns a slot. Closed exactly once."""

    endpoint_name: str
    endpoint_header: bytes
    """`x-gatehouse-endpoint: NAME\\r\\n`."""
    upstream_model: str | None
    """The model's name at this endpoint, when it differs from the public one."""
    request_headers: bytes
    """Header lines for this endpoint (authorization of an external engine and the like), each with its CRLF."""
    first_byte_timeout: float
    idle_timeout: float
    total_timeout: float
    """Seconds until the first byte of a stream, between two reads of it, and for any whole answer."""
    salting: str  # how the engine is told the isolation domain: `header`, `cache_salt` (a field of the body) or `none`
    apis: tuple[str, ...]  # formats besides the OpenAI API that the engine speaks
    client: EngineClient
    device: SlotTime | None  # the time of its slot, if the engine has a rate

    def answering(self) -> None:
        """The first event of a stream has arrived, so the engine works. Whoever waits to know that need not wait for the stream's end."""
        ...

    def close(self, result: AttemptResult) -> None: ...


class AttemptResult:
    """How an attempt ended, for the breaker: success, failure (the engine's fault), refused (a failure to connect: the breaker
    opens at once) or neutral (client errors, cancellation)."""

    SUCCESS: AttemptResult
    FAILURE: AttemptResult
    REFUSED: AttemptResult
    NEUTRAL: AttemptResult
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


AttemptResult.SUCCESS = AttemptResult("success")
AttemptResult.FAILURE = AttemptResult("failure")
AttemptResult.REFUSED = AttemptResult("refused")
AttemptResult.NEUTRAL = AttemptResult("neutral")


class Counter(Protocol):
    """An endpoint that may be asked for the tokens of a prompt. counting: how, `input_tokens` (below the request's path) or `tokenize`."""

    upstream_model: str | None
    request_headers: bytes
    counting: str

    @property
    def counts_with(self) -> EngineClient:
        """Its connections."""


class Route(Protocol):
    """The way to one public model: its pool, selector, queue, retry budget. Made once per model by the router's builder."""

    counts_prompts: bool  # whether its engines may be asked for the tokens of prompts

    def acquire(
        self, request: InferenceRequest, principal: Principal, session: bytes | None, tried: tuple[str, ...], deadline: float, wait: bool
    ) -> Maybe[Attempt] | float:
        """Admission and selection in one decision. `session`: the value of the routing header, if any. `tried`: endpoints to avoid (a
        retry). `deadline`: monotonic seconds. `wait` False: instead of waiting, the seconds until the caller's tenant is served next.
        Raises Overloaded, EngineError(no_healthy_endpoint), PermissionDenied(label_not_cleared). `abandon` takes a Signal given up."""

    def abandon(self, waiting: Any) -> None:
        """The waiting request was cancelled: leaves the queue, or gives back the slot that was just granted."""

    def may_retry(self, error: Exception, attempts: int) -> float | None:
        """Seconds to wait before another attempt (0.0: none), or None: no retry (attempts spent, budget spent, not retry-safe)."""

    def full(self, endpoint: str, retry_after: float | None, labels: frozenset[str]) -> None:
        """The endpoint had no room for a request, so it is avoided for a while if others are open. retry_after: seconds, as it said."""

    def may_move(self, attempts: int, labels: frozenset[str]) -> bool:
        """Whether a request for which an endpoint had no room, after so many attempts, may be tried at another one now."""

    def may_leave(self, endpoint: str, attempts: int, labels: frozenset[str]) -> bool:
        """Whether an attempt at this endpoint, the last of so many, could be given up for one at another endpoint now."""

    def counter(self, labels: frozenset[str]) -> Counter | None:
        """The least busy working endpoint that can count a prompt with these labels. Counting needs no slot."""

    def uncounted(self) -> None:
        """An endpoint could not count prompts, so none is asked for a while."""

    def cleared(self, labels: frozenset[str]) -> Any:
        """Raises PermissionDenied(label_not_cleared) where no endpoint may see data with these labels, as `acquire` does."""

    def serves(self, labels: frozenset[str]) -> bool:
        """Whether an endpoint that is cleared for these labels can take a request now."""

    @property
    def ready(self) -> bool:
        """Whether at least one endpoint can take a request."""

    @property
    def backlog(self) -> int:
        """Requests that wait for a slot."""


# --- control plane


class FleetView(Protocol):
    """Operators' view of engines, endpoints and models: plain dictionaries, ready for JSON, secrets masked. names: of these if there."""

    def engines(self, names: Collection[str] | None = None) -> list[dict[str, Any]]: ...
    def endpoints(self, names: Collection[str] | None = None) -> list[dict[str, Any]]: ...
    def endpoint_names(self) -> list[str]: ...
    def models(self, names: Collection[str] | None = None) -> list[dict[str, Any]]: ...
    def engine_log(self, engine: str, lines: int) -> list[str]: ...  # the last lines; blocks

    def in_force(self, kind: str, name: str) -> tuple[int | None, str]:
        """Of an engine or a model of the store: the revision that is in force, or None, and why the newest one is not; "" if it is, or
        will be."""
        ...

    def status(self) -> dict[str, Any]:
        """The process at a glance: version, start, configuration, readiness, requests in flight, addresses."""
        ...


class ModelControl(Protocol):
    """Changes to running engines. Each raises GatehouseError with one clear sentence if it fails."""

    async def load(self, engine: str) -> None:
        """Returns when it is ready."""
        ...

    async def unload(self, engine: str, *, force: bool = False) -> None:
        """force: even when it is pinned."""
        ...

    async def reload(self, engines: Sequence[str], *, stop_first: bool = False, force: bool = False) -> None:
        """Replaces the processes of these engines, all or none. stop_first: an engine whose new process does not fit into memory
        beside the old one is stopped before; force: even when it is pinned. Raises EngineChangeFailed."""
        ...

    async def abort(self, engines: Sequence[str], reason: str) -> None:
        """Takes back the changes that replace processes of these engines, each with all of its engines; returns when it is done. The
        change itself fails with the reason. GatehouseError (`no_rollout`) when none of them is being replaced."""
        ...

    async def drain(self, endpoint: str) -> None: ...

    async def resume(self, endpoint: str) -> None: ...

    async def force_breaker(self, endpoint: str, state: Literal["open", "closed"] | None) -> None:
        """Holds a breaker `open` or `closed` until it is forced to None."""
        ...


class PolicyTester(Protocol):
    """The data plane's decisions, without a request."""

    async def explain(self, principal: Principal, trial: Trial) -> dict[str, Any]:
        """{"allow", "reason", "rule", "rules": as `Authorizer.explain`, "limits": names of those that apply, "guardrails": names}."""
        ...


class ConfigApplier(Protocol):
    """Build, validate, swap, drain. An invalid configuration changes nothing and raises ConfigError."""

    @property
    def version(self) -> int: ...

    def current(self) -> dict[str, Any]:
        """The configuration in force, secrets masked."""
        ...

    async def apply(
        self, text: str, *, source: str, dry_run: bool = False, expected: int | None = None, actor: str = "", restores: int | None = None
    ) -> dict[str, Any]:
        """Applies a YAML or JSON text; returns what changed, whether it counts only until a restart, and of a dry run what `would` be in
        force. actor, restores: for the history. VersionMismatch when the version in force is not the expected one."""
        ...

    async def reload(self, actor: str = "") -> dict[str, Any]:
        """Reads the configuration file again."""
        ...


class KeyStore(Protocol):
    """API keys of the store, as the data plane needs them: found by the SHA-256 of the whole key."""

    def remembered(self, digest: bytes, peer: Peer) -> Principal | None:
        """Like `lookup`, but None also if it would have to wait."""
        ...

    def lookup(self, digest: bytes, key: str, peer: Peer) -> Maybe[Principal | None]:
        """The principal of an active key that `peer` may use, or None; cached both ways, bounded, single flight."""
        ...


class EndpointObserver(Protocol):
    """Receives what the supervisor and the probes learn about an engine; implemented by the routing package's endpoint registry."""

    def engine_starting(self, engine: str, *, awaited: bool = False) -> None:
        """awaited: requests may wait for it, because they asked for it or because it is only being replaced."""
        ...

    def engine_ready(self, engine: str, address: str, slots: int) -> None:
        """It serves at this address. If a shift to the address is under way, all traffic goes there from now on."""
        ...

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        """code: the reason if known, such as `insufficient_memory` when the model does not fit."""
        ...

    def engine_draining(self, engine: str) -> None: ...


class TrafficShift(Protocol):
    """A share of one engine's requests that goes to a second process of it. None goes there before the first `move`."""

    requests: int
    """Attempts that went to the second process."""
    failures: int
    over: Signal[None]
    """Completes when too many attempts have failed there."""

    def move(self, share: float) -> None:
        """Sends it this share of requests, from 0 to 1, from now on."""
        ...

    def end(self) -> None:
        """Sends all traffic to the first process again; requests under way at the second one finish there. Does nothing once the second
        one is in force (`engine_ready`)."""
        ...


class EngineTraffic(EndpointObserver, Protocol):
    """What the supervisor needs from routing to load, unload and replace engines without losing a request."""

    def engine_unloading(self, engine: str) -> None:
        """It ends because it is not needed; a request that comes now waits until it is loaded again."""
        ...

    def engine_unloaded(self, engine: str, reason: str, code: str | None = None, retry_after: float = 0.0) -> None:
        """It is not loaded; the next request triggers a load, after a failed load only once `retry_after` seconds have passed."""
        ...

    def shift(self, engine: str, address: str, slots: int, max_failures: int) -> TrafficShift:
        """Prepares to send a share of the engine's requests to its second process at this address."""
        ...

    async def drained(self, engine: str, address: str) -> None:
        """Returns when no request is under way at this address. It must get no new ones (draining, or replaced)."""
        ...

    def idle_seconds(self, engine: str) -> float | None:
        """How long it has had no request under way or waiting; None if it has one, or if no model routes to it."""
        ...


Change = tuple[int, str, Any]
"""(sequence number, kind, payload): one numbered change on the feed."""


class Feed(Protocol):
    """Numbered changes from the control plane to data workers (hard-parts: processes and the feed)."""

    def publish(self, kind: str, payload: Any) -> int: ...

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Calls back with each change; returns the way to unsubscribe."""
        ...
