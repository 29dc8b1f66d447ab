"""Snapshots of the process that has the store: the file's settings and the store's, and what its sidecars are to become."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engines.host.reconciler import Target
from gateway.app.configuration.assembly import Assembler
from gateway.app.configuration.parts import NONE, Parts, PartsBuilder
from gateway.app.identity import access
from gateway.app.identity.countries import Countries
from gateway.app.limits.shared import SharedLimitsPart
from gateway.app.store.link import StoreLink
from gateway.caches.registry import AnswerCaches
from gateway.config.expand import HostPorts, Machines, expanded
from gateway.config.merge import Merged
from gateway.core.errors import ConfigError
from gateway.core.ports import AuditLog, Limiter
from gateway.core.proofs import Claim
from gateway.core.slices import in_slices
from gateway.core.snapshot import Snapshot
from gateway.core.specs import ConfigSpec
from gateway.limits.estimates import Estimates, bounds_of
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from gateway.limits.stock import Restock
from gateway.pipeline.canaries import Trials
from gateway.routing.build import FleetRouter
from gateway.routing.registry import EndpointRegistry
from gateway.telemetry.metrics import Metrics
from policies.limits import LimitRules, nothing

NO_LOGINS = (b"identity.api_keys", b"identity.gateway_tokens")
"""What the keys of authenticators begin with that do not help where nobody has logged in otherwise."""


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
    stated: ConfigSpec
    """The settings in force before names were resolved and pools extended to copies (gateway.config.expand)."""

    @property
    def stored_engines(self) -> frozenset[str]:
        """Names of the engines that the store adds; their sidecars are the reconciler's work."""
        return frozenset(name for kind, name in self.merged.revisions if kind == "engines")


@dataclass(frozen=True)
class Plan:
    """What is to be built. file, merged, sidecars: as in `Built`. places: where the names of engines lead. machines: who brings some."""

    version: int
    file: ConfigSpec
    merged: Merged
    sidecars: Target = field(default_factory=Target)
    places: HostPorts = field(default_factory=dict)
    machines: Machines = field(default_factory=dict)

    def in_force(self) -> ConfigSpec:
        """The settings that can be in force now: sidecars of the store keep theirs until their processes have followed."""
        known, spec = self.sidecars.specs(), self.merged.spec
        if not known:
            return spec
        return msgspec.structs.replace(spec, engines=tuple(known.get(engine.name, engine) for engine in spec.engines))


class SnapshotBuilder:
    """Builds Snapshots over the registries that outlive them. Life: `aclose`."""

    def __init__(
        self,
        registry: EndpointRegistry,
        metrics: Metrics,
        link: StoreLink,
        audit: AuditLog,
        parts: PartsBuilder,
        countries: Countries,
        restock: Restock,
        claim: Claim,
        caches: AnswerCaches,
        trials: Trials,
    ) -> None:
        self._link, self._restock = link, restock
        self.shared_limits: SharedLimitsPart | None = None
        """Where limits are counted in Redis; to be set before the first build."""
        self.withdrawn: Callable[[ConfigSpec], ConfigSpec] = lambda spec: spec
        """Takes the weights of engines that are withdrawn (gateway.app.engines.canary_book); to be set before the first build."""
        self.buckets = BucketRegistry(durable=True)
        """Those of this process; not in force where workers serve."""
        self._estimates, self._metrics = Estimates(), metrics
        self._parts, self.login_gauges = parts, parts.login_gauges
        self._assembler = Assembler(registry, metrics, audit, parts, self._limiter, self._salts, countries, claim, caches, trials)

    @property
    def salts(self) -> bytes:
        """The secret of the salts of prefixes (gateway.core.isolation)."""
        return self._salts()

    async def aclose(self) -> None:
        """Closes all plug-ins. Requests must have ended before."""
        await self._assembler.aclose()

    async def build(self, plan: Plan, before: Built | None) -> Built:
        """Builds everything new beside what is in force and starts its plug-ins. Raises ConfigError; then all of it is undone."""
        stated = plan.in_force()
        spec = expanded(self.withdrawn(stated), plan.places, plan.machines)
        await asyncio.sleep(0)
        await in_slices(access.models_there(plan.file.roles, spec.models, strict=before is None or before.file is not plan.file))
        known = NONE if before is None else before.parts
        made = await self._assembler.assemble(plan.version, spec, known, lambda parts: self._insist_on_logins(spec, parts))
        return Built(made.snapshot, made.router, plan.file, plan.merged, made.parts, plan.sidecars, stated)

    def enter(self, built: Built) -> None:
        """It is in force from now on."""
        self._parts.enter(built.parts)

    async def check(self, file: ConfigSpec, merged: Merged, before: Built) -> None:
        """What `build` would refuse, as far as that shows without starting anything. Raises ConfigError."""
        await in_slices(access.models_there(file.roles, merged.spec.models, strict=True))
        await self._assembler.try_out(merged.spec, before.parts)

    def _insist_on_logins(self, spec: ConfigSpec, parts: Parts) -> None:
        keys = spec.identity.api_keys
        if not (
            keys.static
            or keys.rely_on_store
            or self._link.has_keys
            or spec.insecure
            or any(not key.startswith(NO_LOGINS) for key in parts.logins)
        ):
            raise ConfigError("there is no way to log in: add a key, or say 'insecure: true'", path="identity")

    def _limiter(self, spec: ConfigSpec, rules: LimitRules, version: int, places: bool) -> Limiter:
        self._estimates.bounds = bounds_of(spec.models)
        if self.shared_limits is not None:
            return self.shared_limits.limiter(spec, rules, places)
        return LocalLimiter(
            rules,
            self.buckets,
            estimate=nothing if places else self._estimates.estimate,
            learn=self._estimates.learn,
            restock=self._restock,
            noted=self._metrics.not_enforced,
        )

    def _salts(self) -> bytes:
        return self._link.store.derived("prefix salts")
