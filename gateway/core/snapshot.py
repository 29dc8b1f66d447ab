"""The Snapshot: an immutable configuration with everything built from it. A request pins one for its whole life.

Objects that must survive a reload (connection pools, breakers, buckets, meters) belong to registries outside, keyed by identity and
settings; a Snapshot only refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from gateway.core.caching import AnswerCache
from gateway.core.isolation import Salts
from gateway.core.labels import Labels
from gateway.core.moderation import Moderations
from gateway.core.network import Rules
from gateway.core.ports import AuditLog, Authenticator, Authorizer, Limiter, Route, StreamMatcher
from gateway.core.prices import LineUp
from gateway.core.proofs import Prover
from gateway.core.pseudonyms import Layer
from gateway.core.rollouts import Watch
from gateway.core.shapes import ShapeGuard
from gateway.core.slices import Steps, at_once
from gateway.core.specs import ConfigSpec, ModelSpec
from gateway.core.tools import ToolGuard
from gateway.core.types import Headers, InferenceRequest, Principal, Usage, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe


class Meter(Protocol):
    """Where the exchanges of one model are counted."""

    retries: int

    def record(self, operation: str, status: int, outcome: str, overhead_us: float, seconds: float, usage: Usage | None) -> None: ...

    def first_chunk(self, seconds: float) -> None: ...

    def waited(self, seconds: float) -> None: ...


class Inspector(Protocol):
    """A guardrail as a model's entry has it: behind its failure boundary (gateway.pipeline.guarded.Guarded). Nothing here raises but
    errors that interrupt the request.

    monitor: its verdicts are recorded and nothing is done. holds: it cannot follow a stream. concerns: whether it reads a caller's
    requests; None: everybody's. reads: whose texts of a request it reads (`RequestTexts.sources`); None: all. layered: it gives pseudonyms.
    label: what the action `label` gives to a request; "": none. triggered: `Snapshot.prefilter` looks for its trigger.
    patterned: it looks for patterns, which an escape can hide.
    """

    name: str
    monitor: bool
    reads: frozenset[str] | None
    holds: bool
    concerns: Callable[[Principal], bool] | None
    layered: bool
    label: str
    triggered: bool
    patterned: bool

    def allowed(self, ns: int) -> None:
        """Counts texts that a scan for the triggers of all guardrails has cleared; `ns`: this one's share of its time."""
        ...

    def check(self, texts: Sequence[str], layer: Layer | None = None, labels: frozenset[str] = UNLABELLED) -> Maybe[Verdict]:
        """layer: of this exchange, where the guardrail gives pseudonyms to a request. labels: of the texts."""
        ...

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Layer | None:
        """As gateway.core.pseudonyms.Pseudonymous has it; None where the guardrail failed and may."""
        ...

    def done_with(self, verdict: str) -> str:
        """What is done after a verdict: pass, rewrite, block or hold."""
        ...

    def gives(self, verdict: Verdict) -> bool:
        """Whether a request gets `label` for this verdict."""
        ...

    def note(self, where: str, hash_body: Callable[[bytes], str]) -> Any:
        """A note (gateway.pipeline.guarded.Note) for the audit record. where: request or response."""
        ...

    def stream(self, note: Any = None, text: int = 0) -> StreamMatcher | None:
        """A matcher behind the same boundary. note: takes what it finds in the text with this number."""
        ...


_MOST_SEEN: Final = 4096
AT_ONCE: Final = 64
"""Guardrails that are looked at between two pauses."""
NO_MODERATIONS: Final = Moderations()


class Prefilter(Protocol):
    """One scan in the place of several guardrails' checks."""

    def clear(self, texts: Sequence[str]) -> bool:
        """Whether every guardrail that is `triggered` allows the texts for certain. False says nothing."""
        ...

    def shared(self, texts: Sequence[str]) -> Sequence[str]:
        """Texts that are not clear, for the checks of guardrails that are `triggered`: what each would make of the texts is made once."""
        ...

    def clear_json(self, values: Sequence[bytes]) -> bool:
        """The same for every string that stands in some JSON values."""
        ...


class Scoped(Protocol):
    """concerns: whose requests are meant; None: everybody's. It may have `literals`, the names of the only tenants that it is true for."""

    @property
    def concerns(self) -> Callable[[Principal], bool] | None: ...


G = TypeVar("G", bound=Scoped)


def _limited(guardrails: Sequence[Scoped]) -> bool:
    """Whether one of them does not concern everybody."""
    return any(guardrail.concerns is not None for guardrail in guardrails)


class Reach(Generic[G]):
    """Some guardrails, and which of them concern a caller. Those that name their tenants are not looked at for other tenants.

    limited: one of them does not concern everybody."""

    __slots__ = ("_always", "_of", "all", "limited")

    def __init__(self, all: tuple[G, ...]) -> None:
        self.all, self.limited = all, _limited(all)
        self._always: list[int] | None = None
        self._of: dict[str, list[int]] = {}

    def preparing(self) -> Steps[None]:
        """Does in steps what the first call of `of` would do."""
        always: list[int] = []
        by_tenant: dict[str, list[int]] = {}
        for place, guardrail in enumerate(self.all):
            tenants: Sequence[str] | None = getattr(guardrail.concerns, "literals", None)
            if tenants is None:
                always.append(place)
            else:
                for tenant in set(tenants):
                    by_tenant.setdefault(tenant, []).append(place)
            if place % AT_ONCE == AT_ONCE - 1:
                yield
        self._always, self._of = always, by_tenant

    def of(self, principal: Principal) -> tuple[G, ...]:
        if self._always is None:
            at_once(self.preparing())
        assert self._always is not None
        found: list[G] = []
        for place in sorted([*self._always, *self._of.get(principal.tenant, ())]):
            guardrail = self.all[place]
            concerns = guardrail.concerns
            if concerns is None or concerns(principal):
                found.append(guardrail)
        return tuple(found)


def _others(guardrails: tuple[G, ...], known: tuple[G, ...]) -> tuple[G, ...]:
    """Those that are not among the known ones."""
    among = set(known)
    return tuple([guardrail for guardrail in guardrails if guardrail not in among])


Reaches = tuple[Reach[Inspector], Reach[Inspector], Reach[ToolGuard], Reach[ToolGuard], Reach[ShapeGuard]]
"""Of a model's guardrails: for requests and responses, tools in either, the form of answers."""


class ModelEntry:
    """One public model, ready to serve, with everything that the pipeline needs.

    header: `x-gatehouse-model: NAME\\r\\n`. routing_header: name of the header that the routing key is read from, or None.
    fallbacks: the models that may answer in its place, in order, each as `in_place_of` makes it. holds: one of the response's guardrails
    reads whole texts only, so that streams are held until they end. prices: what its requests cost, if it has a price. scoped: some
    guardrails concern only some callers' requests (`seen_by`). request_tools, response_tools: the guardrails that judge tools.
    response_shapes: those that judge the form of answers. cache: of its answers; None where none are kept. reach: of these guardrails,
    if it was made before. counts_prompts: engines are asked for the tokens of prompts that limits count. watch: sees the attempts at its
    engines, if anybody does.
    """

    __slots__ = (
        "_reach",
        "_seen",
        "cache",
        "counts_prompts",
        "fallbacks",
        "header",
        "holds",
        "meter",
        "name",
        "prices",
        "request_guardrails",
        "request_tools",
        "response_guardrails",
        "response_shapes",
        "response_tools",
        "route",
        "routing_header",
        "scoped",
        "spec",
        "watch",
    )

    def __init__(
        self,
        spec: ModelSpec,
        route: Route,
        meter: Meter,
        request_guardrails: tuple[Inspector, ...] = (),
        response_guardrails: tuple[Inspector, ...] = (),
        fallbacks: tuple[ModelEntry, ...] = (),
        *,
        holds: bool = False,
        prices: LineUp | None = None,
        request_tools: tuple[ToolGuard, ...] = (),
        response_tools: tuple[ToolGuard, ...] = (),
        response_shapes: tuple[ShapeGuard, ...] = (),
        cache: AnswerCache | None = None,
        watch: Watch | None = None,
        reach: Reaches | None = None,
    ) -> None:
        self.watch = watch
        self.cache, self.counts_prompts = cache, route.counts_prompts
        self.spec, self.name, self.route, self.meter = spec, spec.name, route, meter
        self.header = b"x-gatehouse-model: %b\r\n" % spec.name.encode()
        self.request_guardrails, self.response_guardrails = request_guardrails, response_guardrails
        self.fallbacks, self.holds, self.prices = fallbacks, holds, prices
        if reach is None:
            limited = _limited(request_guardrails) or _limited(response_guardrails)
            limited = limited or _limited(request_tools) or _limited(response_tools) or _limited(response_shapes)
        else:
            limited = any([one.limited for one in reach])
        self.scoped: bool = limited or any([fallback.scoped for fallback in fallbacks])
        self._seen: dict[tuple[str, tuple[str, ...]], ModelEntry] = {}
        self._reach = reach
        self.request_tools, self.response_tools, self.response_shapes = request_tools, response_tools, response_shapes
        key = spec.routing.key
        if key == "session":
            self.routing_header: bytes | None = b"x-session-id"
        else:
            self.routing_header = key[7:].lower().encode() if key.startswith("header:") else None

    def stand_by(self, fallbacks: tuple[ModelEntry, ...]) -> None:
        """Sets the fallbacks, each as `in_place_of` makes it."""
        self.fallbacks = fallbacks
        self.scoped = self.scoped or any([fallback.scoped for fallback in fallbacks])

    def seen_by(self, principal: Principal) -> ModelEntry:
        """The entry with the guardrails that concern this caller; made once for each tenant and set of roles."""
        key = (principal.tenant, principal.roles)
        found = self._seen.get(key)
        if found is None:
            if self._reach is None:
                self._reach = (
                    Reach(self.request_guardrails),
                    Reach(self.response_guardrails),
                    Reach(self.request_tools),
                    Reach(self.response_tools),
                    Reach(self.response_shapes),
                )
            requests, responses, request_tools, response_tools, shapes = self._reach
            request, response = requests.of(principal), responses.of(principal)
            fallbacks = tuple([fallback.seen_by(principal) for fallback in self.fallbacks])
            holds = any([g.holds for g in response])
            found = ModelEntry(
                self.spec,
                self.route,
                self.meter,
                request,
                response,
                fallbacks,
                holds=holds,
                prices=self.prices,
                request_tools=request_tools.of(principal),
                response_tools=response_tools.of(principal),
                response_shapes=shapes.of(principal),
                cache=self.cache,
                watch=self.watch,
            )
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[key] = found
        return found

    def in_place_of(self, asked: ModelEntry) -> ModelEntry:
        """This model as a fallback for the one asked for. Answers pass the guardrails of both models. Requests have already passed those of
        the model asked for, so only the others are left."""
        return ModelEntry(
            self.spec,
            self.route,
            self.meter,
            _others(self.request_guardrails, asked.request_guardrails),
            asked.response_guardrails + _others(self.response_guardrails, asked.response_guardrails),
            holds=self.holds or asked.holds,
            prices=self.prices,
            request_tools=_others(self.request_tools, asked.request_tools),
            response_tools=asked.response_tools + _others(self.response_tools, asked.response_tools),
            response_shapes=asked.response_shapes + _others(self.response_shapes, asked.response_shapes),
            cache=self.cache,
            watch=self.watch,
        )


class Snapshot:
    """One configuration in force. `models` maps public names and aliases. `parse` is wire's codec, bounded by this configuration.

    parse_steps: the same for large bodies, in steps that leave the loop free.
    salts: keep callers from sharing cached prefixes.
    networks, admin_networks: who is let in by the two listeners; None: everybody.
    places: counts places in queues; None where no limit bounds them. prover: reads proofs at the token endpoint; None where no token can
    be bound to a key. moderations: who answers requests for moderation. labels: of data; None where there are none.
    prefilter: one scan for the triggers of all guardrails that have one.
    owned: keeps the plug-ins that were built for this Snapshot open for as long as something refers to the Snapshot.
    """

    __slots__ = (
        "admin_networks",
        "audit",
        "authorizer",
        "identity",
        "labels",
        "limiter",
        "models",
        "moderations",
        "networks",
        "owned",
        "parse",
        "parse_steps",
        "places",
        "prefilter",
        "prover",
        "salts",
        "spec",
        "version",
    )

    def __init__(
        self,
        version: int,
        spec: ConfigSpec,
        identity: Authenticator,
        authorizer: Authorizer,
        limiter: Limiter,
        audit: AuditLog,
        models: dict[str, ModelEntry],
        parse: Callable[[bytes, bytes, Headers], InferenceRequest],
        salts: Salts,
        owned: object = None,
        parse_steps: Callable[[bytes, bytes, Headers], Steps[InferenceRequest]] | None = None,
        networks: Rules | None = None,
        admin_networks: Rules | None = None,
        prover: Prover | None = None,
        places: Limiter | None = None,
        moderations: Moderations = NO_MODERATIONS,
        labels: Labels | None = None,
        prefilter: Prefilter | None = None,
    ) -> None:
        self.prefilter = prefilter
        self.version, self.spec = version, spec
        self.identity, self.authorizer, self.limiter, self.audit = identity, authorizer, limiter, audit
        self.models, self.parse, self.salts, self.owned = models, parse, salts, owned
        self.parse_steps, self.places = parse_steps, places
        self.networks, self.admin_networks, self.prover = networks, admin_networks, prover
        self.moderations, self.labels = moderations, labels
