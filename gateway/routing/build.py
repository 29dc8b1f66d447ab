"""From settings to routes: checks that the settings fit together, and keeps every route that need not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.core.errors import ConfigError
from gateway.core.plugins import SelectorContext, SelectorRow, Table, built
from gateway.core.price_rules import device_rate
from gateway.core.slices import Steps, at_once
from gateway.core.specs import BreakerSpec, EngineSpec, ModelSpec, PoolMemberSpec
from gateway.routing import ROWS
from gateway.routing.endpoints import Endpoint
from gateway.routing.registry import EndpointRegistry
from gateway.routing.ring import Ring
from gateway.routing.router import PoolRoute
from gateway.routing.selectors import Member, Only, Selector, ring_of

MOST_NARROW: Final = 64
"""Routes over parts of one pool, for requests with labels."""
SELECTORS: Final = Table(SelectorRow, ROWS)
"""The built-in routing policies."""
_Members = dict[str, tuple[Endpoint, EngineSpec, BreakerSpec]]


class FleetRouter:
    """All routes of a snapshot, by public name and alias."""

    def __init__(self, routes: Iterable[PoolRoute], members: Mapping[str, tuple[Endpoint, EngineSpec, BreakerSpec]]) -> None:
        self.routes = {route.model: route for route in routes}
        self.members = members
        """Endpoint name -> (endpoint, its settings, its breaker's settings), put into force by activation."""
        self._names: dict[str, PoolRoute] = dict(self.routes)
        for route in self.routes.values():
            for alias in route.spec.aliases:
                self._names[alias] = route

    def route(self, model: str) -> PoolRoute | None:
        """The route of a model's name or alias."""
        return self._names.get(model)


class _Before:
    """The routes in force. A build keeps what has not changed: of a hundred thousand members, it makes only the changed ones anew."""

    def __init__(self, active: object) -> None:
        self.routes: Mapping[str, PoolRoute] = active.routes if isinstance(active, FleetRouter) else {}
        self.members: Mapping[str, tuple[Endpoint, EngineSpec, BreakerSpec]] = active.members if isinstance(active, FleetRouter) else {}

    def same(self, engine: EngineSpec, endpoint: Endpoint, breaker: BreakerSpec) -> tuple[Endpoint, EngineSpec, BreakerSpec]:
        known = self.members.get(engine.name)
        same = known is not None and known[0] is endpoint and known[1] is engine and known[2] == breaker
        return known if known is not None and same else (endpoint, engine, breaker)

    def member(self, of: tuple[Member, ...], index: int, engine: EngineSpec, endpoint: Endpoint) -> Member | None:
        """The member at this place of a pool, if its settings and its engine's are unchanged."""
        known = self.members.get(engine.name)
        if index >= len(of) or known is None or known[1] is not engine:
            return None
        return of[index] if of[index].endpoint is endpoint else None


def build_router(
    models: tuple[ModelSpec, ...], engines: tuple[EngineSpec, ...], registry: EndpointRegistry, selectors: Table[SelectorRow] = SELECTORS
) -> FleetRouter:
    """A router over the registry's endpoints; changes nothing until `registry.activate(router)`. Raises ConfigError with the path."""
    return at_once(router_steps(models, engines, registry, selectors))


def router_steps(
    models: tuple[ModelSpec, ...], engines: tuple[EngineSpec, ...], registry: EndpointRegistry, selectors: Table[SelectorRow] = SELECTORS
) -> Steps[FleetRouter]:
    """Like `build`, in steps, for a large fleet. A build must be activated before the next begins, as it keeps routes that are in force."""
    yield from _check_names(models)
    known = yield from _engines(engines)
    members: _Members = {}
    routes = []
    before = _Before(registry.active)
    yield
    for number, spec in enumerate(models):
        if spec.pipeline is not None:
            continue  # its steps take the routes of other models
        previous = before.routes.get(spec.name)
        pool = yield from _pool(spec, number, known, members, registry, before)
        if previous is not None and (yield from _unchanged(previous, spec, pool)):
            routes.append(previous)
        else:
            if previous is not None:
                pool = yield from _apart(pool, previous.members)
            narrow: list[PoolRoute] = []
            for part in _parts(pool, number):
                selector, _ = yield from _selector(spec, number, part, registry, selectors, None)
                narrow.append(PoolRoute(spec, part, registry, selector))
            selector, ring = yield from _selector(spec, number, pool, registry, selectors, previous)
            route = PoolRoute(spec, pool, registry, selector, tuple(narrow))
            route.ring = ring
            routes.append(route)
        yield
    return FleetRouter(routes, members)


def _unchanged(route: PoolRoute, spec: ModelSpec, pool: tuple[Member, ...]) -> Steps[bool]:
    """Whether a route made of these would differ only in its counters and its queue."""
    if route.spec != spec or len(route.members) != len(pool):
        return False
    for at, (mine, theirs) in enumerate(zip(route.members, pool, strict=True)):
        if mine is not theirs and mine.settings != theirs.settings:
            return False
        if at % 64 == 63:
            yield
    return True


def _apart(pool: tuple[Member, ...], others: tuple[Member, ...]) -> Steps[tuple[Member, ...]]:
    """Copies of the members, since each pool counts for itself."""
    made: list[Member] = []
    for at, member in enumerate(pool):
        made.append(member.alike(at) if at < len(others) and others[at] is member else member)
        if at % 64 == 63:
            yield
    return tuple(made)


def _parts(pool: tuple[Member, ...], number: int) -> list[tuple[Member, ...]]:
    """The parts of a pool that are cleared for some set of labels, each with members of its own; neither the whole pool nor none of it.

    A label that no member names may only be seen by members that are cleared for all labels."""
    named = frozenset(label for member in pool for label in member.clearance or ())
    singly = {frozenset(m.index for m in pool if m.clearance is None or label in m.clearance) for label in (*named, None)}
    found: set[frozenset[int]] = set()
    for one in singly:
        found |= {one, *(one & other for other in found)}
        if len(found) > MOST_NARROW + 2:
            message = f"the engines have clearances that differ in more than {MOST_NARROW} ways; use fewer labels"
            raise ConfigError(message, path=f"models[{number}].pool")
    found -= {frozenset(), frozenset(range(len(pool)))}
    return [tuple(pool[index].alike(at) for at, index in enumerate(sorted(part))) for part in sorted(found, key=sorted)]


def _selector(
    spec: ModelSpec,
    number: int,
    pool: tuple[Member, ...],
    registry: EndpointRegistry,
    selectors: Table[SelectorRow],
    previous: PoolRoute | None,
) -> Steps[tuple[Selector, Ring | None]]:
    """The policy over a pool, with its ring; both of the previous route, if members and weights are the same."""
    routing, ring = spec.routing, None
    if len(pool) == 1:
        return Only(pool, routing.bound, registry.entropy), None
    path = f"models[{number}].routing.policy"
    try:
        row = selectors[routing.policy]
        path = f"models[{number}].routing.settings"
        if row.ring:
            known = None if previous is None else previous.ring
            same = known is not None and previous is not None and ring_of(previous.members) == ring_of(pool)
            ring = known if same else (yield from Ring.steps(*ring_of(pool)))
        context = SelectorContext(name=spec.name, members=pool, bound=routing.bound, entropy=registry.entropy, ring=ring)
        selector: Selector = built(row.build, row.settings, routing.settings, context)
    except ConfigError as error:
        raise ConfigError(error.message, path=path) from None
    return selector, ring


def request_headers(spec: EngineSpec, path: str) -> bytes:
    """The header lines that an engine adds to every request: its key and its extra headers."""
    if not spec.headers and spec.api_key is None:
        return b""
    lines = dict(spec.headers)
    if spec.api_key is not None:
        lines["authorization"] = f"Bearer {spec.api_key.reveal()}"
    for name, value in lines.items():
        if not name or not name.isascii() or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name):
            raise ConfigError(f"{name!r} is not a header name", path=path)
        if any(c in "\r\n\0" for c in value) or not value.isascii():
            raise ConfigError(f"the value of {name} has characters that a header cannot carry", path=path)
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")


def _engines(engines: tuple[EngineSpec, ...]) -> Steps[dict[str, EngineSpec]]:
    known: dict[str, EngineSpec] = {}
    for number, engine in enumerate(engines):
        if engine.name in known:
            raise ConfigError(f"two engines are named {engine.name}", path=f"engines[{number}].name")
        if engine.runtime == "external" and not engine.url and engine.joined is None:
            raise ConfigError(f"the external engine {engine.name} needs a url", path=f"engines[{number}].url")
        known[engine.name] = engine
        if number % 256 == 255:
            yield
    return known


def _check_names(models: tuple[ModelSpec, ...]) -> Steps[None]:
    names: set[str] = set()
    for number, spec in enumerate(models):
        for at, name in enumerate((spec.name, *spec.aliases)):
            if name in names:
                place = f"aliases[{at - 1}]" if at else "name"
                raise ConfigError(f"two models are named {name}", path=f"models[{number}].{place}")
            names.add(name)
        yield
    for number, spec in enumerate(models):
        for at, fallback in enumerate(spec.fallbacks):
            if fallback not in names or fallback == spec.name:
                raise ConfigError(f"the fallback {fallback} is not another model", path=f"models[{number}].fallbacks[{at}]")


def _pool(
    spec: ModelSpec, number: int, engines: dict[str, EngineSpec], members: _Members, registry: EndpointRegistry, before: _Before
) -> Steps[tuple[Member, ...]]:
    """The members, some perhaps those of the route in force (`_apart`)."""
    pool: list[Member] = []
    previous = before.routes.get(spec.name)
    others = () if previous is None or previous.spec != spec else previous.members
    there: set[str] = set()
    for at, entry in enumerate(spec.pool):
        path = f"models[{number}].pool[{at}]"
        wanted = entry if isinstance(entry, PoolMemberSpec) else PoolMemberSpec(engine=entry)
        engine = engines.get(wanted.engine)
        if engine is None:
            raise ConfigError(f"there is no engine named {wanted.engine}", path=path)
        if engine.name in there:
            raise ConfigError(f"{engine.name} is in the pool twice", path=path)
        there.add(engine.name)
        endpoint = _member_endpoint(engine, spec.routing.breaker, members, registry, before)
        if (weight := wanted.weight * engine.weight) <= 0:
            pass
        elif (same := before.member(others, len(pool), engine, endpoint)) is not None:
            pool.append(same)
        else:
            headers = request_headers(engine, path)
            rate = None if engine.cost is None else device_rate(engine.cost)
            name = wanted.model or spec.upstream_model or _with_adapter(spec, engine, path)
            salting, seen = _salting(engine), clearance(engine)
            counting = "tokenize" if engine.foreign else "input_tokens"
            pool.append(Member(endpoint, len(pool), weight, engine.timeouts, name, headers, salting, rate, seen, engine.apis, counting))
        if at % 16 == 15:
            yield
    if not pool:
        raise ConfigError(f"the pool of {spec.name} is empty", path=f"models[{number}].pool")
    return tuple(pool)


def _with_adapter(spec: ModelSpec, engine: EngineSpec, path: str) -> str | None:
    """The model's own name, for an engine with LoRA adapters, which applies the adapter of that name. The client may have written an alias,
    or a model that fell back to this one. None for engines without adapters."""
    adapters = engine.options.get("adapters")
    if not adapters or engine.foreign:
        return None
    known = [adapter.get("name") for adapter in adapters]
    adapter = spec.name.partition(":")[2]
    if adapter and adapter not in known:
        raise ConfigError(f"{engine.name} has no adapter {adapter!r} (its options name: {', '.join(map(str, known))})", path=path)
    return spec.name


def clearance(engine: EngineSpec) -> frozenset[str] | None:
    """The data labels for which an engine is cleared; None: all."""
    given = engine.clearance
    if given is None:
        return frozenset() if engine.runtime == "external" else None
    return None if "*" in given else frozenset(given)


def _salting(engine: EngineSpec) -> str:
    """How an engine is told the isolation domain of a request: `header`, a body field's name, or `none`."""
    return engine.prefix_salt if engine.foreign else "header"


def _member_endpoint(engine: EngineSpec, breaker: BreakerSpec, members: _Members, registry: EndpointRegistry, before: _Before) -> Endpoint:
    """The engine's endpoint. When several pools share it, the breaker settings that open soonest count."""
    if engine.name in members:
        endpoint, _, other = members[engine.name]
        members[engine.name] = (endpoint, engine, min(breaker, other, key=lambda spec: spec.failures))
        return endpoint
    endpoint = registry.endpoint(engine, breaker)
    members[engine.name] = before.same(engine, endpoint, breaker)
    return endpoint
