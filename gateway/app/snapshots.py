"""From settings to a Snapshot, beside what is in force: router, models, guardrails, limits, identity.

Nothing here changes what is in force. A build runs in slices (gateway.core.slices), so that requests go on while a large fleet is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import msgspec

from engines.host.reconciler import Target
from gateway.app.ownership import Owned, PluginOwner
from gateway.app.parts import NONE, Parts, PartsBuilder, key_of
from gateway.app.store_link import StoreLink
from gateway.config.merge import Merged
from gateway.core.errors import ConfigError
from gateway.core.isolation import Salts
from gateway.core.ports import Route
from gateway.core.slices import Steps, in_slices
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ConfigSpec, GuardrailSpec, ModelSpec
from gateway.identity.chain import chain
from gateway.limits.local import BucketRegistry, LocalLimiter
from gateway.pipeline.hooks import HookedAudit
from gateway.pipeline.inspect import Guarded
from gateway.routing.build import router_steps
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import FleetRouter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage import CountedAudit
from gateway.wire import table
from policies.limits import LimitRules, charge, estimate
from policies.patterns import matches
from policies.rbac import ModelAccess


@dataclass(frozen=True)
class Built:
    """What a configuration became. file: the file's part of it, with its models found. merged: that with the store's part. guardrails: all
    that it uses. sidecars: what the store's sidecars are to become."""

    snapshot: Snapshot
    router: FleetRouter
    file: ConfigSpec
    merged: Merged
    parts: Parts
    sidecars: Target

    @property
    def stored_engines(self) -> frozenset[str]:
        """Names of the engines that the store adds; their sidecars are the reconciler's work."""
        return frozenset(name for kind, name in self.merged.revisions if kind == "engines")


@dataclass(frozen=True)
class Plan:
    """What is to be built. file, merged, sidecars: as in `Built`."""

    version: int
    file: ConfigSpec
    merged: Merged
    sidecars: Target = field(default_factory=Target)

    def in_force(self) -> ConfigSpec:
        """The settings that can be in force now: sidecars of the store keep theirs until their processes have followed."""
        known, spec = self.sidecars.specs(), self.merged.spec
        if not known:
            return spec
        return msgspec.structs.replace(spec, engines=tuple(known.get(engine.name, engine) for engine in spec.engines))


class SnapshotBuilder:
    """Builds Snapshots over the registries that outlive them. Life: `aclose`."""

    def __init__(self, registry: EndpointRegistry, metrics: Metrics, link: StoreLink, audit: CountedAudit, parts: PartsBuilder) -> None:
        self._registry, self._metrics, self._link, self._audit, self._parts = registry, metrics, link, audit, parts
        self._buckets = BucketRegistry()
        self.plugins = PluginOwner()

    async def aclose(self) -> None:
        """Closes all plug-ins. Requests must have ended before."""
        await self.plugins.aclose()

    async def build(self, plan: Plan, before: Built | None) -> Built:
        """Builds everything new beside what is in force and starts its plug-ins. Raises ConfigError; then all of it is undone."""
        spec = plan.in_force()
        parts = await self._parts.build(spec, NONE if before is None else before.parts)
        owned = await self.plugins.own(parts.living())
        try:
            return await in_slices(self._steps(plan, spec, parts, owned))
        except BaseException:
            owned.release()
            raise

    async def check(self, merged: Merged, before: Built) -> None:
        """What `build` would refuse, as far as that shows without starting anything. Raises ConfigError."""
        await self._parts.build(merged.spec, before.parts)
        await in_slices(router_steps(merged.spec.models, merged.spec.engines, self._registry, self._parts.selectors))

    def _steps(self, plan: Plan, spec: ConfigSpec, parts: Parts, owned: Owned) -> Steps[Built]:
        keys = spec.identity.api_keys
        if not (keys.static or keys.rely_on_store or self._link.has_keys or spec.insecure or len(parts.logins) > 1):
            raise ConfigError("there is no way to log in: add a key, or say 'insecure: true'", path="identity")
        router = yield from router_steps(spec.models, spec.engines, self._registry, self._parts.selectors)
        reading = [(guard, parts.guardrails[key_of(guard)]) for guard in spec.guardrails]
        entries: dict[str, ModelEntry] = {}
        for model in spec.models:
            route = router.route(model.name)
            assert route is not None
            entry = self._entry(reading, model, route)
            entries.update({name: entry for name in (model.name, *model.aliases)})
            yield
        for model in spec.models:
            if model.fallbacks:
                entry = entries[model.name]
                entry.fallbacks = tuple(entries[name].in_place_of(entry) for name in model.fallbacks)
                yield
        access = ModelAccess(spec.models)
        yield
        depth, nodes = spec.listen.max_json_depth, spec.listen.max_json_nodes
        snapshot = Snapshot(
            plan.version,
            spec,
            chain(tuple(parts.logins.values())),
            access,
            LocalLimiter(LimitRules(spec.limits), self._buckets, estimate=estimate, charge=charge),
            HookedAudit(self._audit, tuple(parts.hooks.values())) if parts.hooks else self._audit,
            entries,
            partial(table.parse, max_depth=depth, max_nodes=nodes),
            Salts(self._link.store.derived("prefix salts")),
            owned,
            partial(table.parse_steps, max_depth=depth, max_nodes=nodes),
        )
        return Built(snapshot, router, plan.file, plan.merged, parts, plan.sidecars)

    def _entry(self, reading: list[tuple[GuardrailSpec, Guarded]], model: ModelSpec, route: Route) -> ModelEntry:
        mine = [(spec, guarded) for spec, guarded in reading if any(matches(pattern, model.name) for pattern in spec.models)]
        response = tuple(guarded for spec, guarded in mine if "response" in spec.on)
        return ModelEntry(
            model,
            route,
            self._metrics.meter(model.name),
            tuple(guarded for spec, guarded in mine if "request" in spec.on),
            response,
            holds=any(guarded.holds for guarded in response),
        )
