"""From settings to a Snapshot, beside what is in force: router, models, guardrails, limits, identity.

Nothing here changes what is in force. A build runs in steps (gateway.core.slices), so that requests go on while a large fleet is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engines.host.reconciler import Target
from gateway.app.control import Control, Whole
from gateway.core.errors import ConfigError
from gateway.core.ports import Guardrail, Route
from gateway.core.slices import Steps
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ConfigSpec, GuardrailSpec, ModelSpec
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain
from gateway.limits.local import BucketRegistry, LocalLimiter
from gateway.pipeline.inspect import Guarded
from gateway.routing.build import router_steps
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import FleetRouter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage import CountedAudit
from gateway.wire import requests
from policies import guardrails
from policies.limits import LimitRules, charge, estimate
from policies.patterns import matches
from policies.rbac import ModelAccess

Guardrails = dict[bytes, Guardrail]
"""Those that were built, by all of their settings (`key_of`)."""


@dataclass(frozen=True)
class Built:
    """What a configuration became. file: the part of it that the file says, with its models found. guardrails: all that it uses.
    sidecars: what the store's sidecars are to become."""

    snapshot: Snapshot
    router: FleetRouter
    file: ConfigSpec
    whole: Whole
    guardrails: Guardrails
    sidecars: Target


def key_of(spec: GuardrailSpec) -> bytes:
    """What makes two guardrails the same object: all their settings."""
    return msgspec.json.encode(spec, order="deterministic")


def reads_files(spec: GuardrailSpec) -> bool:
    """Whether a guardrail's settings name a file, which may have changed behind the same name."""
    return any(name.endswith("_file") for name in spec.settings)


class Assembly:
    """Builds Snapshots over the registries that outlive them.

    base: the folder that guardrails' files are relative to. record: (event, target, detail) for the audit log.
    """

    def __init__(
        self,
        registry: EndpointRegistry,
        metrics: Metrics,
        control: Control,
        audit: CountedAudit,
        base: Path,
        record: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._registry, self._metrics, self._control, self._audit = registry, metrics, control, audit
        self._base, self._record = base, record
        self._buckets = BucketRegistry()
        self.guardrail_failures: dict[tuple[str, str], int] = {}

    def steps(self, version: int, whole: Whole, spec: ConfigSpec, file: ConfigSpec, guards: Guardrails, sidecars: Target) -> Steps[Built]:
        """spec: `whole` as it can be in force now. Raises ConfigError."""
        keys = spec.identity.api_keys
        if not (keys.static or keys.rely_on_store or self._control.has_keys or spec.insecure):
            raise ConfigError("there is no way to log in: add a key, or say 'insecure: true'", path="identity")
        router = yield from router_steps(spec.models, spec.engines, self._registry)
        reading = [(g, guards[key_of(g)]) for g in spec.guardrails]
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
        snapshot = Snapshot(
            version,
            spec,
            chain([ApiKeyAuthenticator(keys.static, self._control.keys)]),
            access,
            LocalLimiter(LimitRules(spec.limits), self._buckets, estimate=estimate, charge=charge),
            self._audit,
            entries,
            partial(requests.parse, max_depth=spec.listen.max_json_depth),
        )
        return Built(snapshot, router, file, whole, guards, sidecars)

    def _entry(self, reading: list[tuple[GuardrailSpec, Guardrail]], model: ModelSpec, route: Route) -> ModelEntry:
        mine = [(g, built) for g, built in reading if any(matches(pattern, model.name) for pattern in g.models)]
        return ModelEntry(
            model,
            route,
            self._metrics.meter(model.name),
            tuple(built for g, built in mine if "request" in g.on),
            tuple(built for g, built in mine if "response" in g.on),
        )

    # --- guardrails

    async def guardrails(self, spec: ConfigSpec, old: Guardrails) -> Guardrails:
        """Builds each guardrail once, in a thread (a large list takes long); those whose settings did not change are kept."""
        found: Guardrails = {}
        for number, wanted in enumerate(spec.guardrails):
            key = key_of(wanted)
            known = None if reads_files(wanted) else old.get(key)
            try:
                found[key] = known if known is not None else await asyncio.to_thread(self.guardrail, wanted)
            except ConfigError as error:
                raise ConfigError(f"the guardrail {wanted.name!r}: {error.message}", path=f"guardrails[{number}].settings") from None
        return found

    def guardrail(self, spec: GuardrailSpec) -> Guardrail:
        """One, guarded against its own failures. Raises ConfigError."""
        return Guarded(guardrails.build(spec, self._read_text), spec.fail_mode == "open", self._failed)

    def _read_text(self, name: str) -> str:
        return (self._base / name).read_text(encoding="utf-8")

    def _failed(self, name: str, mode: str) -> None:
        key = (name, mode)
        self.guardrail_failures[key] = self.guardrail_failures.get(key, 0) + 1
        self._record("guardrail_failed", name, {"fail_mode": mode})
