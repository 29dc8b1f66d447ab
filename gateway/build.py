"""The composition root: from a configuration to a Snapshot, and the life of everything that outlives one.

The only module that knows engines, policies and admin together. A change is built beside what is in force, validated,
swapped in one assignment, and the old one drains: requests finish on the Snapshot they started with.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.catalogue.library import Library
from engines.catalogue.scan import Place
from engines.supervisor import Supervisor
from gateway.audit.broker import AuditBroker
from gateway.config.convert import PluginSchemas
from gateway.config.load import Loaded, load, parse
from gateway.config.reload import Reloader, Steps
from gateway.control import Control, CountedAudit, touches_policies
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change, EngineClient, Guardrail, Route
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs import ConfigSpec, EngineSpec, GuardrailSpec, ModelSpec, UploadsSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import EventRecord
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain
from gateway.identity.floods import FloodTable
from gateway.limits.local import BucketRegistry, LocalLimiter
from gateway.pipeline.inspect import Guarded
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.routing.build import build_router
from gateway.routing.probe import HttpProbe
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import FleetRouter
from gateway.routing.shedding import PressureMonitor
from gateway.telemetry.metrics import Metrics
from gateway.transport.pool import EndpointClient
from gateway.wire import requests
from policies import guardrails
from policies.limits import LimitRules, charge, estimate
from policies.patterns import matches
from policies.rbac import ModelAccess

GC_THRESHOLDS = (20_000, 20, 20)
"""An exchange leaves no cycle behind, but those under way are enough young objects for a collection every few requests."""
log = logging.getLogger("gatehouse")
PLUGINS = PluginSchemas(guardrails=guardrails.schemas())
"""The settings' schemas of every plug-in, for whoever reads a configuration."""
EXPIRY_SECONDS = 60.0
DEMO_MODELS = Path(__file__).parent.parent / "engines" / "demo" / "artefacts"


def model_places(spec: ConfigSpec, base: Path) -> tuple[Place, ...]:
    """Where model files lie, the first place first: `models` of the state directory, the configured directories, the demo models."""
    directories = (Place((base / directory).resolve(), "directory") for directory in spec.model_dirs)
    return (Place(Path(spec.state_dir).resolve() / "models", "registry"), *directories, Place(DEMO_MODELS.resolve(), "bundled"))


def resolve_models(spec: ConfigSpec, base: Path) -> ConfigSpec:
    """The configuration with every engine's model as an absolute path.

    Looked for beside the configuration file, then in the places of model files. Raises ConfigError.
    """
    shelves = model_places(spec, base)
    for index, shelf in enumerate(place for place in shelves if place.source == "directory"):
        if not shelf.root.is_dir():
            raise ConfigError(f"there is no directory {shelf.root}", path=f"model_dirs[{index}]")
    from_engines = []
    for index, engine in enumerate(spec.engines):
        if engine.runtime == "external" or engine.model is None:
            from_engines.append(engine)
            continue
        places = [base / engine.model, *(place.root / engine.model for place in shelves)]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise ConfigError(f"engine {engine.name!r}: there is no model file {engine.model!r}", path=f"engines[{index}].model")
        from_engines.append(_replace(engine, model=str(found.resolve())))
    return _replace(spec, engines=tuple(from_engines))


R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)


def _replace(spec: S, **changes: Any) -> S:
    return msgspec.structs.replace(spec, **changes)


@dataclass(frozen=True)
class Built:
    """What a configuration became."""

    snapshot: Snapshot
    router: FleetRouter


def key_of(spec: GuardrailSpec) -> bytes:
    """What makes two guardrails the same object: all their settings."""
    return msgspec.json.encode(spec, order="deterministic")


def reads_files(spec: GuardrailSpec) -> bool:
    """Whether a guardrail's settings name a file, which may have changed behind the same name."""
    return any(name.endswith("_file") for name in spec.settings)


class Gateway:
    """Everything of one process: registries that outlive a Snapshot, and the Snapshot in force.

    loaded: the configuration to start with. environ: what its references and overrides are read from, again at each reload.
    """

    def __init__(self, loaded: Loaded, environ: Mapping[str, str]) -> None:
        self.loaded, self.environ = loaded, environ
        self.spec = spec = loaded.spec
        self.base = Path(loaded.file).resolve().parent
        self.version = 0
        self.metrics = Metrics()
        self.plane = DataPlane(self.metrics)
        self.feed = LocalFeed()
        self.clock = SystemClock()
        self.registry = EndpointRegistry(
            self.clock, SystemEntropy(), self._client, self._endpoint_changed, on_wanted=lambda engine: self.supervisor.wanted(engine)
        )
        self.pressure = PressureMonitor(self._shed)
        self.buckets = BucketRegistry()
        self.audit = AuditBroker(spec.audit, spec.state_dir)
        self.control = Control(spec, environ, self.feed)
        self._counted = CountedAudit(self.audit, self.control.usage)
        self.supervisor = Supervisor(Path(spec.state_dir).resolve(), self.registry, self._engine_event)
        self.model_places: tuple[Place, ...] = ()
        self.files = Library(Path(spec.state_dir).resolve(), lambda: self.model_places, self._uploads, self._engine_models, self.clock)
        self._owner = TaskOwner("gateway")
        self._clients: list[EndpointClient] = []
        self._stale = False
        self._floods = FloodTable()
        self.plane.first_denial = self._floods.denied
        self._guardrails: dict[bytes, Guardrail] = {}
        self._guardrail_failures: dict[tuple[str, str], int] = {}
        self.metrics.gauges.append(self._gauges)

    # --- building

    def snapshot(self, spec: ConfigSpec) -> Built:
        """Builds everything that a configuration says, changing nothing that is in force. Raises ConfigError."""
        if not (spec.identity.api_keys.static or self.control.has_keys or spec.insecure):
            raise ConfigError("there is no way to log in: add a key, or say 'insecure: true'", path="identity")
        router = build_router(spec.models, spec.engines, self.registry)
        entries: dict[str, ModelEntry] = {}
        for model in spec.models:
            route = router.route(model.name)
            assert route is not None
            entry = self._entry(spec, model, route)
            entries.update({name: entry for name in (model.name, *model.aliases)})
        snapshot = Snapshot(
            self.version + 1,
            spec,
            chain([ApiKeyAuthenticator(spec.identity.api_keys.static, self.control.keys)]),
            ModelAccess(spec.models),
            LocalLimiter(LimitRules(spec.limits), self.buckets, estimate=estimate, charge=charge),
            self._counted,
            entries,
            partial(requests.parse, max_depth=spec.listen.max_json_depth),
        )
        return Built(snapshot, router)

    def _entry(self, spec: ConfigSpec, model: ModelSpec, route: Route) -> ModelEntry:
        reading = [(g, self._guardrails[key_of(g)]) for g in spec.guardrails if any(matches(pattern, model.name) for pattern in g.models)]
        return ModelEntry(
            model,
            route,
            self.metrics.meter(model.name),
            tuple(built for g, built in reading if "request" in g.on),
            tuple(built for g, built in reading if "response" in g.on),
            model.fallbacks,
        )

    async def _load_guardrails(self, spec: ConfigSpec) -> None:
        """Builds each guardrail once, in a thread (a large list takes long); those whose settings did not change are kept."""
        for wanted in spec.guardrails:
            if key_of(wanted) not in self._guardrails or reads_files(wanted):
                built = await asyncio.to_thread(guardrails.build, wanted, self._read_text)
                self._guardrails[key_of(wanted)] = Guarded(built, wanted.fail_mode == "open", self._guardrail_failed)

    def _read_text(self, name: str) -> str:
        return (self.base / name).read_text(encoding="utf-8")

    def _guardrail_failed(self, name: str, mode: str) -> None:
        key = (name, mode)
        self._guardrail_failures[key] = self._guardrail_failures.get(key, 0) + 1
        self.record("guardrail_failed", name, {"fail_mode": mode})

    def _client(self, engine: EngineSpec, address: str) -> EngineClient:
        if engine.runtime == "external":
            address = address.rstrip("/").removesuffix("/v1")
        client = EndpointClient(address, tls=engine.tls, connect_timeout=engine.timeouts.connect, max_idle=engine.max_idle_connections)
        self._clients = [kept for kept in self._clients if not kept.closed]
        self._clients.append(client)
        return client

    # --- life

    async def start(self) -> None:
        """Opens the audit log, puts the configuration into force, starts probing. Engines are started by `start_engines`."""
        self._loop = asyncio.get_running_loop()
        spec = resolve_models(self.spec, self.base)
        await self.control.start()
        await self.files.start()
        spec = await self.control.merged(spec)
        await self._load_guardrails(spec)
        built = self.snapshot(spec)
        await self.audit.start()
        self._swap(built)
        self.reloader = Reloader(self.loaded, built, self._steps(), self._owner)
        self.feed.subscribe(self._store_changed)
        if spec.watch:
            self.reloader.watch()
        self.registry.start_probing(HttpProbe())
        self.pressure.start()
        self._owner.every(SWEEP_SECONDS, self._sweep, name="sweep")
        self._owner.every(EXPIRY_SECONDS, self.files.expire, name="uploads")
        if spec.insecure:
            log.warning("INSECURE: this configuration switches protection off (insecure: true)")
        self.record("start", "gatehouse", {"config": self.version, "insecure": spec.insecure})

    async def start_engines(self) -> None:
        """Starts the sidecars and waits until each is ready. Raises ConfigError with the reason of the first that is not."""
        await self.supervisor.apply(self.plane.current().spec.engines, wait=True)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    def _swap(self, built: Built) -> None:
        self.registry.activate(built.router)
        self.version = self.metrics.config_version = built.snapshot.version
        self.plane.snapshot = built.snapshot
        self.model_places = model_places(built.snapshot.spec, self.base)
        self.audit.configured(self.version)
        self.feed.publish("config", self.version)

    # --- model files

    def _uploads(self) -> UploadsSpec:
        return self.plane.current().spec.uploads

    def _engine_models(self) -> list[tuple[str, str]]:
        return [(e.name, e.model) for e in self.plane.current().spec.engines if e.model is not None and e.runtime != "external"]

    # --- changes: build, validate, swap, drain

    def _steps(self) -> Steps[Built]:
        return Steps(
            read=lambda: self._noted(lambda: load(self.loaded.file, self.environ, PLUGINS)),
            parse=lambda text: self._noted(lambda: parse(text, file=self.loaded.file, environ=self.environ, schemas=PLUGINS)),
            build=self._prepare,
            swap=self._apply,
            drain=self._retire,
        )

    def _store_changed(self, change: Change) -> None:
        """Limits or guardrails of the store: what is in force is built anew, once for all changes that come meanwhile."""
        if touches_policies(change) and not self._stale:
            self._stale = True
            self._owner.spawn(self._refresh(), name="refresh")

    async def _refresh(self) -> None:
        self._stale = False  # what changes from now on needs another round
        try:
            await self.reloader.refresh("store")
        except ConfigError as error:
            log.error("policies of the store were not put into force, the old ones stay: %s", error)

    def _noted(self, read: Callable[[], R]) -> R:
        """Reads in a thread; a refusal is counted and recorded on the loop."""
        try:
            return read()
        except ConfigError as error:
            self._loop.call_soon_threadsafe(self._refused, error)
            raise

    async def _prepare(self, spec: ConfigSpec) -> Built:
        """Everything new beside the old, the new engines ready. Engines that are no longer wanted run on until the swap."""
        before = self.plane.current().spec
        try:
            self._check_fixed(before, spec)
            spec = await self.control.merged(resolve_models(spec, self.base))
            await self._load_guardrails(spec)
            built = self.snapshot(spec)
            names = {e.name for e in spec.engines}
            await self.supervisor.apply((*spec.engines, *(e for e in before.engines if e.name not in names)), wait=True)
        except ConfigError as error:
            self._refused(error)
            raise
        return built

    def _apply(self, built: Built) -> None:
        self._swap(built)
        self.metrics.reloads["applied"] += 1
        self.record("config_applied", "config", {"version": built.snapshot.version})

    async def _retire(self, old: Built) -> None:
        """The engines that only the old configuration had."""
        engines = self.plane.current().spec.engines
        await self.supervisor.apply(engines, wait=False)
        wanted = {key_of(g) for g in self.plane.current().spec.guardrails}
        self._guardrails = {key: built for key, built in self._guardrails.items() if key in wanted}

    def _refused(self, error: ConfigError) -> None:
        """Counts and records a configuration that was not applied."""
        self.metrics.reloads["refused"] += 1
        self.record("config_refused", "config", {"reason": str(error)}, outcome="refused")

    def _check_fixed(self, before: ConfigSpec, after: ConfigSpec) -> None:
        """What only a restart can change."""
        fixed = {
            "listen.data": (before.listen.data, after.listen.data),
            "listen.admin": (before.listen.admin, after.listen.admin),
            "listen.tls": (before.listen.tls, after.listen.tls),
            "state_dir": (before.state_dir, after.state_dir),
            "store": (before.store, after.store),
            "audit": (before.audit, after.audit),
        }
        for path, (old, new) in fixed.items():
            if old != new:
                raise ConfigError("this setting can only be changed by a restart", path=path)

    async def _sweep(self) -> None:
        self.plane.sweep()
        now = time.monotonic()
        for client in self._clients:
            client.tick(now)
        for flood in self._floods.drain(self.plane.now):
            self.record("denials", flood.peer, {"code": flood.code, "count": flood.count}, outcome="denied")

    async def aclose(self) -> None:
        """Ends engines, probes, connections and at last the audit log. Requests must have drained before."""
        timeout = self.spec.listen.drain_timeout
        await self.supervisor.aclose(timeout)
        await self.plane.tasks.aclose()
        await self.files.aclose()
        self.pressure.close()
        await self.registry.aclose()
        await self._owner.aclose()
        await self.control.aclose()
        if self.plane.snapshot is not None:
            self.record("stop", "gatehouse", {})
        await self.audit.aclose()

    # --- events

    def record(self, event: str, target: str, detail: dict[str, Any], *, actor: str = "gatehouse", outcome: str = "ok") -> None:
        """An audit record for something that is not a request, and the same on the feed."""
        self.audit.event(EventRecord(time.time(), event, actor, target, outcome, detail))
        self.feed.publish("event", {"event": event, "target": target, "actor": actor, "outcome": outcome, **detail})

    def _shed(self, level: int) -> None:
        """The event loop is late or memory is short: classes of work are refused until it is not."""
        log.warning("load shedding: level %d", level)
        self.registry.shedding = level
        self.record("load_shedding", "gatehouse", {"level": level})

    def _endpoint_changed(self, endpoint: str, old: str, new: str, reason: str) -> None:
        log.log(logging.INFO if new == "ready" else logging.WARNING, "endpoint %s: %s -> %s (%s)", endpoint, old, new, reason)
        self.record("endpoint_changed", endpoint, {"from": old, "to": new, "reason": reason})

    def _engine_event(self, kind: str, engine: str, detail: dict[str, Any]) -> None:
        self.record(kind, engine, detail, outcome="failed" if kind in ("engine_failed", "engine_rolled_back") else "ok")

    # --- gauges

    def _gauges(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("gatehouse_endpoint_up", "Whether an endpoint takes requests", labels=["endpoint"])
        busy = GaugeMetricFamily("gatehouse_endpoint_in_flight", "Attempts under way at an endpoint", labels=["endpoint"])
        for view in self.registry.endpoints():
            up.add_metric([view["name"]], 1.0 if view["state"] in ("ready", "half_open") else 0.0)
            busy.add_metric([view["name"]], view["in_flight"])
        breaker = GaugeMetricFamily("gatehouse_breaker_open", "Whether an endpoint's circuit breaker is open", labels=["endpoint"])
        for view in self.registry.endpoints():
            breaker.add_metric([view["name"]], 0.0 if view["breaker"]["state"] == "closed" else 1.0)
        yield from (up, busy, breaker)
        loaded = GaugeMetricFamily("gatehouse_engine_loaded", "Whether a sidecar runs, by its version", labels=["engine", "version"])
        share = GaugeMetricFamily(
            "gatehouse_rollout_share", "Share of an engine's traffic on its new process", labels=["engine", "version"]
        )
        for engine in self.supervisor.engines():
            loaded.add_metric([engine["name"], engine["version"]], 1.0 if engine["state"] == "ready" else 0.0)
            if (rollout := engine["rollout"]) is not None:
                share.add_metric([engine["name"], rollout["version"]], rollout["share"])
        yield from (loaded, share)
        yield GaugeMetricFamily("gatehouse_load_shedding", "Level of load shedding, 0 (none) to 3 (all)", value=self.registry.shedding)
        yield GaugeMetricFamily(
            "gatehouse_audit_accepting", "Whether the audit log accepts records", value=1.0 if self.audit.accepting else 0.0
        )
        yield CounterMetricFamily("gatehouse_audit_records", "Audit records written", value=self.audit.records)
        yield CounterMetricFamily(
            "gatehouse_audit_refused", "Intents refused because the audit log took no records", value=self.audit.refused
        )
        yield CounterMetricFamily("gatehouse_audit_lost", "Audit records lost", value=self.audit.lost)
        yield GaugeMetricFamily(
            "gatehouse_store_available", "Whether the store answers", value=1.0 if self.control.store.available else 0.0
        )
        yield GaugeMetricFamily("gatehouse_keys_cached", "API keys of the store that are remembered", value=float(len(self.control.keys)))
        failures = CounterMetricFamily("gatehouse_guardrail_failures", "Guardrails that failed", labels=["guardrail", "fail_mode"])
        for (name, mode), count in self._guardrail_failures.items():
            failures.add_metric([name, mode], count)
        yield failures
