"""From settings to a Snapshot, beside what is in force: router, models, guardrails, limits, identity.

Nothing here changes what is in force. A build runs in steps (gateway.core.slices), so that requests go on while a large fleet is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.host.reconciler import Target
from gateway.app.control import Control, Whole
from gateway.app.plugins import Plugins
from gateway.core.errors import ConfigError
from gateway.core.plugins import AuthenticatorContext
from gateway.core.ports import Authenticator, Route
from gateway.core.secret import Secret
from gateway.core.slices import Steps
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ConfigSpec, GuardrailSpec, ModelSpec, Spec
from gateway.identity.chain import chain
from gateway.limits.local import BucketRegistry, LocalLimiter
from gateway.pipeline.inspect import Guarded
from gateway.routing.build import router_steps
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import FleetRouter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage import CountedAudit
from gateway.wire import requests
from policies.limits import LimitRules, charge, estimate
from policies.patterns import matches
from policies.rbac import ModelAccess


@dataclass(frozen=True)
class Parts:
    """The plug-ins that a configuration uses, by their paths and settings (`key_of`), in the configuration's order."""

    guardrails: dict[bytes, Guarded]
    logins: dict[bytes, Authenticator]
    """In the order in which they are asked."""

    def living(self) -> list[tuple[str, object]]:
        """(path, plug-in) of each, for `Lives.hold`."""
        guardrails = [(f"guardrails[{number}]", guarded.guardrail) for number, guarded in enumerate(self.guardrails.values())]
        return [*(("identity", login) for login in self.logins.values()), *guardrails]


NONE: Final = Parts({}, {})


@dataclass(frozen=True)
class Built:
    """What a configuration became. file: the part of it that the file says, with its models found. parts: the plug-ins that it uses.
    sidecars: what the store's sidecars are to become."""

    snapshot: Snapshot
    router: FleetRouter
    file: ConfigSpec
    whole: Whole
    parts: Parts
    sidecars: Target


def key_of(settings: object) -> bytes:
    """What makes two plug-ins the same object: all their settings."""
    return msgspec.json.encode(settings, order="deterministic", enc_hook=_revealed)


def _revealed(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"{type(value).__name__} is not a setting")


def reads_files(settings: Mapping[str, Any] | Spec) -> bool:
    """Whether settings name a file, which may have changed behind the same name."""
    names = settings.__struct_fields__ if isinstance(settings, Spec) else settings
    return any(name.endswith("_file") for name in names)


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
        plugins: Plugins,
    ) -> None:
        self._registry, self._metrics, self._control, self._audit = registry, metrics, control, audit
        self._base, self._record, self._plugins = base, record, plugins
        self._buckets = BucketRegistry()
        self.guardrail_failures: dict[tuple[str, str], int] = {}

    def steps(self, version: int, whole: Whole, spec: ConfigSpec, file: ConfigSpec, parts: Parts, sidecars: Target) -> Steps[Built]:
        """spec: `whole` as it can be in force now. Raises ConfigError."""
        keys = spec.identity.api_keys
        if not (keys.static or keys.rely_on_store or self._control.has_keys or spec.insecure or len(parts.logins) > 1):
            raise ConfigError("there is no way to log in: add a key, or say 'insecure: true'", path="identity")
        router = yield from router_steps(spec.models, spec.engines, self._registry, self._plugins.selectors)
        reading = [(g, parts.guardrails[key_of(g)]) for g in spec.guardrails]
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
            chain(tuple(parts.logins.values())),
            access,
            LocalLimiter(LimitRules(spec.limits), self._buckets, estimate=estimate, charge=charge),
            self._audit,
            entries,
            partial(requests.parse, max_depth=spec.listen.max_json_depth),
        )
        return Built(snapshot, router, file, whole, parts, sidecars)

    def _entry(self, reading: list[tuple[GuardrailSpec, Guarded]], model: ModelSpec, route: Route) -> ModelEntry:
        mine = [(g, built) for g, built in reading if any(matches(pattern, model.name) for pattern in g.models)]
        return ModelEntry(
            model,
            route,
            self._metrics.meter(model.name),
            tuple(built for g, built in mine if "request" in g.on),
            tuple(built for g, built in mine if "response" in g.on),
        )

    # --- plug-ins

    async def parts(self, spec: ConfigSpec, old: Parts = NONE) -> Parts:
        """Builds each plug-in once, guardrails in a thread (a large list takes long); those whose settings did not change are kept."""
        guardrails: dict[bytes, Guarded] = {}
        for number, wanted in enumerate(spec.guardrails):
            key = key_of(wanted)
            known = None if reads_files(wanted.settings) else old.guardrails.get(key)
            guardrails[key] = await asyncio.to_thread(self._guardrail, number, wanted) if known is None else known
        return Parts(guardrails, self._logins(spec, old))

    def parts_at_once(self, spec: ConfigSpec) -> Parts:
        """The same without a loop."""
        return Parts({key_of(g): self._guardrail(number, g) for number, g in enumerate(spec.guardrails)}, self._logins(spec, NONE))

    def _guardrail(self, number: int, spec: GuardrailSpec) -> Guarded:
        """One, guarded against its own failures. Raises ConfigError."""
        try:
            return Guarded(self._plugins.guardrail(spec, self._read_text), spec.fail_mode == "open", self._failed)
        except ConfigError as error:
            raise ConfigError(f"the guardrail {spec.name!r}: {error.message}", path=f"guardrails[{number}].settings") from None

    def _logins(self, spec: ConfigSpec, old: Parts) -> dict[bytes, Authenticator]:
        found: dict[bytes, Authenticator] = {}
        for path, row, settings in self._plugins.logins(spec.identity):
            key = path.encode() + key_of(settings)
            known = None if reads_files(settings) else old.logins.get(key)
            context = AuthenticatorContext(name=row.name, read=self._read_text, keys=self._control.keys)
            found[key] = known or self._plugins.authenticator(path, row, settings, context)
        return found

    def _read_text(self, name: str) -> str:
        return (self._base / name).read_text(encoding="utf-8")

    def _failed(self, name: str, mode: str) -> None:
        key = (name, mode)
        self.guardrail_failures[key] = self.guardrail_failures.get(key, 0) + 1
        self._record("guardrail_failed", name, {"fail_mode": mode})
