"""The Snapshot: an immutable configuration with everything built from it. A request pins one for its whole life.

Objects that must survive a reload (connection pools, breakers, buckets, meters) belong to registries outside, keyed by identity and
settings; a Snapshot only refers to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.isolation import Salts
from gateway.core.network import Rules
from gateway.core.ports import AuditLog, Authenticator, Authorizer, Guardrail, Limiter, Route
from gateway.core.prices import LineUp
from gateway.core.slices import Steps
from gateway.core.specs import ConfigSpec, ModelSpec
from gateway.core.types import Headers, InferenceRequest, Usage


class Meter(Protocol):
    """Where the exchanges of one model are counted."""

    retries: int

    def record(self, operation: str, status: int, outcome: str, overhead_us: float, seconds: float, usage: Usage | None) -> None: ...

    def first_chunk(self, seconds: float) -> None: ...


class ModelEntry:
    """One public model, ready to serve, with everything that the pipeline needs.

    header: `x-gatehouse-model: NAME\\r\\n`. routing_header: name of the header that the routing key is read from, or None.
    fallbacks: the models that may answer in its place, in order, each as `in_place_of` makes it. holds: one of the response's guardrails
    reads whole texts only, so that streams are held until they end. prices: what its requests cost, if it has a price.
    """

    __slots__ = (
        "fallbacks",
        "header",
        "holds",
        "meter",
        "name",
        "prices",
        "request_guardrails",
        "response_guardrails",
        "route",
        "routing_header",
        "spec",
    )

    def __init__(
        self,
        spec: ModelSpec,
        route: Route,
        meter: Meter,
        request_guardrails: tuple[Guardrail, ...] = (),
        response_guardrails: tuple[Guardrail, ...] = (),
        fallbacks: tuple[ModelEntry, ...] = (),
        *,
        holds: bool = False,
        prices: LineUp | None = None,
    ) -> None:
        self.spec, self.name, self.route, self.meter = spec, spec.name, route, meter
        self.header = b"x-gatehouse-model: %b\r\n" % spec.name.encode()
        self.request_guardrails, self.response_guardrails = request_guardrails, response_guardrails
        self.fallbacks, self.holds, self.prices = fallbacks, holds, prices
        key = spec.routing.key
        if key == "session":
            self.routing_header: bytes | None = b"x-session-id"
        else:
            self.routing_header = key[7:].lower().encode() if key.startswith("header:") else None

    def in_place_of(self, asked: ModelEntry) -> ModelEntry:
        """This model as a fallback for the one asked for. Answers pass the guardrails of both models. Requests have already passed those of
        the model asked for, so only the others are left."""
        return ModelEntry(
            self.spec,
            self.route,
            self.meter,
            tuple(g for g in self.request_guardrails if g not in asked.request_guardrails),
            (*asked.response_guardrails, *(g for g in self.response_guardrails if g not in asked.response_guardrails)),
            holds=self.holds or asked.holds,
            prices=self.prices,
        )


class Snapshot:
    """One configuration in force. `models` maps public names and aliases. `parse` is wire's codec, bounded by this configuration.

    parse_steps: the same for large bodies, in steps that leave the loop free.
    salts: keep callers from sharing cached prefixes.
    networks, admin_networks: who is let in by the two listeners; None: everybody.
    owned: keeps the plug-ins that were built for this Snapshot open for as long as something refers to the Snapshot.
    """

    __slots__ = (
        "admin_networks",
        "audit",
        "authorizer",
        "identity",
        "limiter",
        "models",
        "networks",
        "owned",
        "parse",
        "parse_steps",
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
    ) -> None:
        self.version, self.spec = version, spec
        self.identity, self.authorizer, self.limiter, self.audit = identity, authorizer, limiter, audit
        self.models, self.parse, self.salts, self.owned = models, parse, salts, owned
        self.parse_steps = parse_steps
        self.networks, self.admin_networks = networks, admin_networks
