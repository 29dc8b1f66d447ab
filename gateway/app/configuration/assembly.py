"""From settings to a Snapshot, beside what is in force: router, models, guardrails, limits, identity. The same in every process.

Nothing here changes what is in force. A build runs in slices (gateway.core.slices), so that requests go on while a large fleet is built.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Final

from gateway.app.caches.answer_versions import version_of
from gateway.app.configuration.ownership import Owned, PluginOwner
from gateway.app.configuration.parts import NONE, Parts, PartsBuilder, key_of
from gateway.app.guardrails.moderation import moderation_steps
from gateway.app.identity.access import AccessBuilder
from gateway.app.identity.countries import Countries
from gateway.app.pipelines.steps import Pipelines, StepsRoute
from gateway.caches.registry import AnswerCaches
from gateway.config.convert import nearest
from gateway.core.caching import AnswerCache
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError
from gateway.core.isolation import Salts
from gateway.core.labels import Labels
from gateway.core.ports import AuditLog, Limiter, Route
from gateway.core.price_rules import device_price
from gateway.core.prices import LineUp, Price
from gateway.core.proofs import Claim
from gateway.core.rollouts import Watch
from gateway.core.shapes import ShapeGuard
from gateway.core.slices import Steps, in_slices, portions
from gateway.core.snapshot import Inspector, ModelEntry, Reach, Reaches, Snapshot
from gateway.core.specs import ConfigSpec, EngineSpec, GuardrailSpec, LimitSpec, ModelSpec
from gateway.core.tools import ToolGuard
from gateway.identity.chain import chain
from gateway.identity.networked import Networked
from gateway.identity.proving import Proving
from gateway.pipeline.canaries import Trials
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.hooks import HookedAudit
from gateway.routing.build import FleetRouter, router_steps
from gateway.routing.keys import key_function
from gateway.routing.registry import EndpointRegistry
from gateway.telemetry.metrics import Metrics
from gateway.wire import table
from policies.limits import LimitRules, rules_of
from policies.pattern_index import PatternIndex
from policies.patterns import matches
from policies.prices import not_listed, of_models, unmatched
from policies.public_prices import table as table_of_prices

log = logging.getLogger("gatehouse.config")
AT_ONCE: Final = 64
"""Guardrails that are looked at between two pauses of a build."""
MOST_NAMED: Final = 16
"""Prices without a model that are named in the log."""
_Reading = tuple[GuardrailSpec, Guarded, ToolGuard | None]


@dataclass(frozen=True)
class _Chosen:
    """The guardrails of a model, in the configuration's order."""

    request: tuple[Guarded, ...]
    response: tuple[Guarded, ...]
    request_tools: tuple[ToolGuard, ...]
    response_tools: tuple[ToolGuard, ...]
    shapes: tuple[ShapeGuard, ...]
    holds: bool
    reach: Reaches


class _Guards:
    """What guardrails each model has. Models that no guardrail names, other than by `*`, have the same ones, and share them."""

    def __init__(self, reading: list[_Reading], parts: PartsBuilder, named: list[tuple[str, int]], general: list[int]) -> None:
        """named: patterns other than `*`, with the place of their guardrail. general: the places of guardrails for all models."""
        self._reading, self._parts, self._general = reading, parts, general
        self._index, self._named = PatternIndex(pattern for pattern, _ in named), named
        self._shared: _Chosen | None = None
        self._shapes: dict[int, ShapeGuard | None] = {}

    def of(self, model: str) -> Steps[_Chosen]:
        places = {self._named[found][1] for found in self._index.fits(model)}
        if places:
            return (yield from self._choose(sorted(places.union(self._general))))
        if self._shared is None:
            self._shared = yield from self._choose(self._general)
        return self._shared

    def _choose(self, places: list[int]) -> Steps[_Chosen]:
        shapes: list[ShapeGuard] = []
        mine: dict[str, list[Guarded]] = {"request": [], "response": []}
        judges: list[tuple[GuardrailSpec, ToolGuard]] = []
        for number, place in enumerate(places, 1):
            spec, guarded, judge = self._reading[place]
            if place not in self._shapes:
                self._shapes[place] = self._parts.shape(spec, guarded)
            shape = self._shapes[place]
            if shape is not None and "response" in spec.on:
                shapes.append(shape)
            if judge is not None:
                judges.append((spec, judge))
            elif shape is None:
                for direction, found in mine.items():
                    if direction in spec.on:
                        found.append(guarded)
            if number % AT_ONCE == 0:
                yield
        request_tools = tuple(judge for spec, judge in judges if "request" in spec.on)
        response_tools = tuple(judge for spec, judge in judges if "response" in spec.on)
        response = tuple(mine["response"])
        holds = any(guarded.holds for guarded in response)
        request, forms = tuple(mine["request"]), tuple(shapes)
        reach = (Reach[Inspector](request), Reach[Inspector](response), Reach(request_tools), Reach(response_tools), Reach(forms))
        for one in reach:
            yield from one.preparing()
        return _Chosen(request, response, request_tools, response_tools, forms, holds, reach)


def _guards(reading: list[_Reading], parts: PartsBuilder) -> Steps[_Guards]:
    named: list[tuple[str, int]] = []
    general: list[int] = []
    for place, (spec, _, _) in enumerate(reading):
        if "*" in spec.models:
            general.append(place)
        else:
            named += [(pattern, place) for pattern in spec.models]
        if place % AT_ONCE == 0:
            yield
    return _Guards(reading, parts, named, general)


@dataclass(frozen=True)
class Assembled:
    """What settings became: the Snapshot, its router, its plug-ins."""

    snapshot: Snapshot
    router: FleetRouter
    parts: Parts


class Assembler:
    """Builds Snapshots over the registries that outlive them. Life: `aclose`.

    audit: where outcomes go. limiter: makes the Limiter of settings and their version over the rules of their limits, or over
    those of places in queues. salts: the secret of
    the salts (gateway.core.isolation), and of nonces. claim: uses up proofs. caches, trials: of the process."""

    def __init__(
        self,
        registry: EndpointRegistry,
        metrics: Metrics,
        audit: AuditLog,
        parts: PartsBuilder,
        limiter: Callable[[ConfigSpec, LimitRules, int, bool], Limiter],
        salts: Callable[[], bytes],
        countries: Countries,
        claim: Claim,
        caches: AnswerCaches,
        trials: Trials,
    ) -> None:
        self._caches, self._trials = caches, trials
        self._registry, self._metrics, self._audit, self._parts = registry, metrics, audit, parts
        self._limiter, self._salts, self._claim = limiter, salts, claim
        self._countries, self._networks = countries, countries.networks
        self._rules: dict[bool, tuple[tuple[LimitSpec, ...], LimitRules]] = {}
        self._access = AccessBuilder(self._networks.country)
        self.plugins = PluginOwner()

    async def aclose(self) -> None:
        """Closes all plug-ins. Requests must have ended before."""
        await self.plugins.aclose()

    async def assemble(
        self, version: int, spec: ConfigSpec, before: Parts = NONE, check: Callable[[Parts], None] = lambda parts: None
    ) -> Assembled:
        """Builds everything new beside what is in force and starts its plug-ins. Raises ConfigError, also what `check` raises once the
        plug-ins have started; then all of it is undone."""
        database = await self._countries.read(spec)
        parts = await self._parts.build(spec, before)
        owned = await self.plugins.own(parts.living())
        try:
            check(parts)
            made = await in_slices(self._steps(version, spec, parts, owned))
            self._countries.use(spec, database)
            return made
        except BaseException:
            owned.release()
            raise

    async def try_out(self, spec: ConfigSpec, before: Parts) -> None:
        """What `assemble` would refuse, as far as that shows without starting anything. Raises ConfigError."""
        await self._countries.read(spec)
        parts = await self._parts.build(spec, before)
        await in_slices(moderation_steps(spec, _asking(await in_slices(self._reading(spec, parts)), self._parts), self._parts))
        await in_slices(router_steps(spec.models, spec.engines, self._registry, self._parts.selectors))

    def _steps(self, version: int, spec: ConfigSpec, parts: Parts, owned: Owned) -> Steps[Assembled]:
        router = yield from router_steps(spec.models, spec.engines, self._registry, self._parts.selectors)
        reading = yield from self._reading(spec, parts)
        prices = yield from _prices(spec)
        _check_table(spec)
        for label, pattern in _unmatched_labels(spec):
            log.warning("no model fits %r, which has the label %r", pattern, label)
        yield
        asking = _asking(reading, self._parts)
        yield
        moderations = yield from moderation_steps(spec, asking, self._parts)
        yield
        guards = yield from _guards(reading, self._parts)
        entries: dict[str, ModelEntry] = {}
        salts = Salts(self._salts())
        secret = salts.secret("answers")
        for model in spec.models:
            route: Route | None = router.route(model.name) if model.pipeline is None else StepsRoute(model, entries)
            assert route is not None
            cache = None if model.cache is None else self._cache(model, spec, version, secret)
            price = prices.get(model.name) if model.pipeline is None else None  # its steps have theirs
            entry = yield from self._entry(guards, model, route, price, cache)
            entries.update({name: entry for name in (model.name, *model.aliases)})
            yield
        for model in spec.models:
            if model.fallbacks:
                entry = entries[model.name]
                entry.stand_by(tuple(entries[name].in_place_of(entry) for name in model.fallbacks))
                yield
        authorizer = yield from self._access.steps(spec)
        parser = table.Parser(spec.listen.max_json_depth, spec.listen.max_json_nodes)
        networks = self._networks
        tenants = {tenant: rules for tenant, given in spec.network.tenants.items() if (rules := networks.rules(given)) is not None}
        identity, prover = chain(tuple(parts.logins.values())), None
        if spec.identity.dpop is not None:
            identity = prover = Proving(identity, spec.identity.dpop, SystemClock(), self._salts(), self._claim)
        limiter, queued = yield from self._limiters(version, spec)
        snapshot = Snapshot(
            version,
            spec,
            Networked(identity, networks, tenants),
            authorizer,
            limiter,
            HookedAudit(self._audit, tuple(parts.hooks.values())) if parts.hooks else self._audit,
            entries,
            parser.parse,
            salts,
            owned,
            parser.parse_steps,
            networks.rules(spec.listen.networks),
            networks.rules(spec.listen.admin_networks),
            prover,
            queued,
            moderations,
            Labels(spec.labels, matches) if spec.labels else None,
            parts.prefilter,
        )
        return Assembled(snapshot, router, parts)

    def _limiters(self, version: int, spec: ConfigSpec) -> Steps[tuple[Limiter, Limiter | None]]:
        """The limiter of what is counted, and that of places in queues. Parts made of unchanged limits are used again."""
        found: list[LimitRules] = []
        for places in (False, True):
            known = self._rules.get(places)
            if known is None or len(known[0]) != len(spec.limits) or not all(map(is_, known[0], spec.limits)):
                known = self._rules[places] = (spec.limits, (yield from rules_of(spec.limits, places)))
            found.append(known[1])
            yield
        counted, queued = found
        return self._limiter(spec, counted, version, False), self._limiter(spec, queued, version, True) if queued else None

    def _reading(self, spec: ConfigSpec, parts: Parts) -> Steps[list[_Reading]]:
        reading: list[_Reading] = []
        for number, guard in enumerate(spec.guardrails, 1):
            guarded = parts.guardrails[key_of(guard)]
            reading.append((guard, guarded, self._parts.judge(guard, guarded)))
            if number % AT_ONCE == 0:
                yield
        return reading

    def _entry(
        self,
        guards: _Guards,
        model: ModelSpec,
        route: Route,
        prices: LineUp | None,
        cache: AnswerCache | None,
    ) -> Steps[ModelEntry]:
        chosen = yield from guards.of(model.name)
        return ModelEntry(
            model,
            route,
            self._metrics.meter(model.name),
            chosen.request,
            chosen.response,
            holds=chosen.holds,
            prices=prices,
            request_tools=chosen.request_tools,
            response_tools=chosen.response_tools,
            response_shapes=chosen.shapes,
            cache=cache,
            watch=self._watch(model),
            reach=chosen.reach,
        )

    def _cache(self, model: ModelSpec, spec: ConfigSpec, version: int, secret: bytes) -> AnswerCache | None:
        semantic = None if model.cache is None else model.cache.semantic
        embeds = b"" if semantic is None else b"".join(version_of(one, spec, version) for one in spec.models if one.name == semantic.model)
        return self._caches.of(model, version_of(model, spec, version), secret, spec.caches.semantic.tenants, embeds)

    def _watch(self, model: ModelSpec) -> Watch | None:
        if model.pipeline is not None:
            return Pipelines(self._trials.shadows.plane, model, self._trials.steps.of(model.name))
        shadow = model.shadow
        if shadow is None or shadow.key == "request":
            return self._trials.of(model, None)
        return self._trials.of(model, key_function(shadow.key, model.prefix_sharing))


def _asking(reading: list[_Reading], parts: PartsBuilder) -> list[tuple[int, GuardrailSpec, Guarded]]:
    """The guardrails that ask models, with their numbers."""
    return [(number, guard, guarded) for number, (guard, guarded, _) in enumerate(reading) if parts.row(guard).asks]


def _prices(spec: ConfigSpec) -> Steps[dict[str, LineUp]]:
    """The prices of the models that have some. Logs prices that belong to no model."""
    by_time = yield from _device_prices(spec)
    names = [model.name for model in spec.models]
    found = yield from of_models(spec.prices, names, by_time)
    missing = unmatched(spec.prices, names)
    for pattern in missing[:MOST_NAMED]:
        log.warning("no model is named %r, which has a price; %s", pattern, nearest(pattern, names))
    if len(missing) > MOST_NAMED:
        log.warning("no model is named as %d other prices say", len(missing) - MOST_NAMED)
    return found


def _device_prices(spec: ConfigSpec) -> Steps[dict[str, Price]]:
    """What models cost by the time of their engines' devices, for those whose engines have rates."""
    rated: dict[str, EngineSpec] = {}
    for some in portions(spec.engines):
        rated.update([(engine.name, engine) for engine in some if engine.cost is not None])
        yield
    found: dict[str, Price] = {}
    for model in spec.models if rated else ():
        names = [member if isinstance(member, str) else member.engine for member in model.pool]
        price = device_price([rated[name] for name in names if name in rated])
        if price is not None:
            found[model.name] = price
        yield
    return found


def _unmatched_labels(spec: ConfigSpec) -> list[tuple[str, str]]:
    """(label, pattern) for patterns that no model fits: perhaps a mistake, or a model that the store will have."""
    names = [model.name for model in spec.models]
    return [(label, one) for label, given in spec.labels.items() for one in given.models if not any(matches(one, name) for name in names)]


def _check_table(spec: ConfigSpec) -> None:
    """Says how old the public table of prices is, where it counts. Raises ConfigError for a name that it does not have."""
    taken = [price for price in spec.prices if price.table is not None]
    if not taken:
        return
    log.warning("prices of the public table are those of %s: check them against what the vendors charge you", table_of_prices().date)
    if missing := not_listed(taken):
        index = next(number for number, price in enumerate(spec.prices) if price.table and (price.listed_as or price.model) == missing[0])
        path = f"prices[{index}].{'model' if spec.prices[index].listed_as is None else 'listed_as'}"
        raise ConfigError(f"the public table has no model {missing[0]!r}; {nearest(missing[0], table_of_prices().rows)}", path=path)
