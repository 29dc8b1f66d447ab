"""The composition root: from a configuration to a Snapshot, and the life of everything that outlives one.

The only module that knows engines, policies and admin together. A change is built beside what is in force, validated,
swapped in one assignment, and the old one drains: requests finish on the Snapshot they started with.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from engines.host.reconciler import Reconciler, Target, Wanted
from engines.host.supervisor import Supervisor
from gateway.app.assembly import NONE, Assembly, Built
from gateway.app.control import Control, Whole, touches_configuration
from gateway.app.plugins import OURS, Plugins
from gateway.app.remote import check_upstream, find_model
from gateway.audit.broker import AuditBroker
from gateway.config.load import Loaded, load, parse
from gateway.config.merge import Which
from gateway.config.reload import Reloader, Steps
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import ConfigError, EngineChangeFailed
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change, EngineClient
from gateway.core.slices import at_once, in_slices
from gateway.core.specs import ConfigSpec, EngineSpec, UploadsSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import EventRecord
from gateway.identity.floods import FloodTable
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.routing.build import router_steps
from gateway.routing.probe import HttpProbe
from gateway.routing.registry import EndpointRegistry
from gateway.routing.shedding import PressureMonitor
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage import CountedAudit
from gateway.transport.pool import EndpointClient

GC_THRESHOLDS = (20_000, 20, 20)
"""An exchange leaves no cycle behind, however it ends, but those under way are enough young objects for a collection every few requests."""
COLLECT_SECONDS = 5.0
"""How often the youngest objects are collected all the same, in some 100 microseconds: the store (SQLAlchemy) and the admin API leave
forty objects a second in cycles, which would pile up for minutes."""
SWITCH_SECONDS = 0.0005
"""For how long a thread (the store's, the audit log's, one that reads a file) may keep the interpreter from the event loop; Python's own
5 ms are the whole of a request's time."""
log = logging.getLogger("gatehouse")
EXPIRY_SECONDS = 60.0
DEMO_MODELS = Path(__file__).parents[2] / "engines" / "demo" / "artefacts"


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


class Gateway:
    """Everything of one process: registries that outlive a Snapshot, and the Snapshot in force.

    loaded: the configuration to start with. environ: what its references and overrides are read from, again at each reload.
    """

    def __init__(self, loaded: Loaded, environ: Mapping[str, str], plugins: Plugins = OURS) -> None:
        self.plugins = plugins
        self._schemas = plugins.schemas()
        self.loaded = self._read = loaded
        self.environ = environ
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
        self.audit = AuditBroker(spec.audit, spec.state_dir)
        self.control = Control(spec, environ, self.feed, self._schemas)
        self._counted = CountedAudit(self.audit, self.control.usage)
        self.supervisor = Supervisor(Path(spec.state_dir).resolve(), self.registry, self._engine_event)
        self.model_places: tuple[Place, ...] = ()
        self.files = Library(Path(spec.state_dir).resolve(), lambda: self.model_places, self._uploads, self._engine_models, self.clock)
        self._owner = TaskOwner("gateway")
        self._clients: list[EndpointClient] = []
        self._built: Built | None = None
        self._resolved: tuple[ConfigSpec, ConfigSpec] | None = None
        """What the file said last, and the same with its models found."""
        self._stale = False
        self._floods = FloodTable()
        self.plane.first_denial = self._floods.denied
        self.assembly = Assembly(self.registry, self.metrics, self.control, self._counted, self.base, self.record, plugins)
        self.reconciler = Reconciler(self.supervisor, self.registry, self._find, self._changed, self._rollout_event)
        self.metrics.gauges.append(self._gauges)

    # --- building

    def snapshot(self, spec: ConfigSpec) -> Built:
        """Builds everything that a configuration without a store says, changing nothing that is in force. Raises ConfigError."""
        parts = self.assembly.parts_at_once(spec)
        return at_once(self.assembly.steps(self.version + 1, Whole(spec), spec, spec, parts, Target()))

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
        self._resolve(self.spec)
        await self.control.start()
        await self.files.start()
        built = await self._beside(self.spec)
        spec = built.snapshot.spec
        await self.audit.start()
        self._swap(built)
        self.reloader = Reloader(self.loaded, built, self._steps(), self._owner)
        self.feed.subscribe(self._store_changed)
        if spec.watch:
            self.reloader.watch()
        self.registry.start_probing(HttpProbe())
        self._owner.every(SWEEP_SECONDS, self._sweep, name="sweep")
        self._owner.every(EXPIRY_SECONDS, self.files.expire, name="uploads")
        if not self.somebody_can_log_in():
            log.warning("no key can log in yet: every request is refused (401) until the store has a key")
        if spec.insecure:
            log.warning("INSECURE: this configuration switches protection off (insecure: true)")
        self.record("start", "gatehouse", {"config": self.version, "insecure": spec.insecure})

    async def start_engines(self) -> None:
        """Starts the sidecars and waits until each is ready. Raises ConfigError with the reason of the first of the file that is not; one
        of the store says so itself."""
        file = self._in_force().file
        self.reconciler.pursue(self._in_force().sidecars, frozenset(engine.name for engine in file.engines))
        await self.supervisor.apply(file.engines, wait=True, keep=self._stored())
        await self.reconciler.settled()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._owner.every(COLLECT_SECONDS, self._collect, name="collect")
        sys.setswitchinterval(SWITCH_SECONDS)
        self.pressure.start()

    def _swap(self, built: Built) -> None:
        self.registry.activate(built.router)
        if self._built is None or built.file is not self._built.file:
            self.model_places = model_places(built.file, self.base)
        self._built = built
        self.version = self.metrics.config_version = built.snapshot.version
        self.plane.snapshot = built.snapshot
        self.audit.configured(self.version)
        self.feed.publish("config", self.version)

    # --- model files

    def _uploads(self) -> UploadsSpec:
        return self.plane.current().spec.uploads

    def _engine_models(self) -> list[tuple[str, str]]:
        """Those in force, and those of a change that is under way."""
        stated = {(e.name, e.model) for e in self.plane.current().spec.engines if e.model is not None and e.runtime != "external"}
        return sorted(stated | self.supervisor.models())

    # --- changes: build, validate, swap, drain

    def _steps(self) -> Steps[Built]:
        return Steps(
            read=lambda: self._noted(self._load),
            parse=lambda text: self._noted(lambda: self._parse(text)),
            check=self._check,
            build=self._prepare,
            swap=self._apply,
            drain=self._retire,
        )

    def _parse(self, text: str) -> ConfigSpec:
        """A text that somebody sent; its `${file:...}` are those beside the configuration's file."""
        return parse(text, file="the text", environ=self.environ, schemas=self._schemas, folder=self.base)

    def _store_changed(self, change: Change) -> None:
        if touches_configuration(change):
            self._changed()

    def _changed(self) -> None:
        """What the store adds to the configuration: what is in force is built anew, once for all changes that come meanwhile."""
        if not self._stale:
            self._stale = True
            self._owner.spawn(self._refresh(), name="refresh")

    async def _refresh(self) -> None:
        self._stale = False  # what changes from now on needs another round
        try:
            await self.reloader.refresh("store")
        except ConfigError as error:
            log.error("changes of the store were not put into force, what was before stays: %s", error)

    def _load(self) -> Loaded:
        self._read = load(self.loaded.file, self.environ, self._schemas)
        return self._read

    def place(self, error: ConfigError) -> ConfigError:
        """The error of what the file says, with the place in the file as it was read last."""
        if isinstance(error, EngineChangeFailed) and error.path is None:
            names = [engine.name for engine in self._read.spec.engines]
            error.path = f"engines[{names.index(error.engine)}]" if error.engine in names else None
        self._read.place(error)
        return error

    def _noted(self, read: Callable[[], R]) -> R:
        """Reads in a thread; a refusal is counted and recorded on the loop."""
        try:
            return read()
        except ConfigError as error:
            self._loop.call_soon_threadsafe(self._refused, error)
            raise

    async def _check(self, spec: ConfigSpec) -> None:
        """What a change would be refused for before an engine is started. Changes nothing, thrown away. Raises ConfigError."""
        self._check_change(self._in_force().snapshot.spec, spec)
        whole = await self.control.merged(await asyncio.to_thread(resolve_models, spec, self.base))
        await self.assembly.parts(whole.spec, self._in_force().parts)
        await in_slices(router_steps(whole.spec.models, whole.spec.engines, self.registry, self.plugins.selectors))

    async def _prepare(self, spec: ConfigSpec) -> Built:
        """Everything new beside the old, the file's new engines ready. Engines that are no longer wanted run on until the swap."""
        before = self._in_force()
        try:
            self._check_change(before.snapshot.spec, spec)
            built = await self._beside(spec)
            if built.file is not before.file:
                names = {e.name for e in built.file.engines} | self._stored()
                going = (e for e in before.file.engines if e.name not in names)
                await self.supervisor.apply((*built.file.engines, *going), wait=True, keep=self._stored())
        except ConfigError as error:
            self._refused(self.place(error) if spec is self._read.spec else error)
            raise
        return built

    async def _beside(self, spec: ConfigSpec) -> Built:
        """What the file says with what the store adds, built in slices beside what is in force. Raises ConfigError."""
        file = self._resolve(spec)
        whole = await self.control.merged(file)
        target = self.reconciler.plan(
            {
                e.name: Wanted(whole.revisions["engines", e.name], e)
                for e in whole.spec.engines
                if e.runtime != "external" and ("engines", e.name) in whole.revisions
            }
        )
        planned = target.specs()
        wanted = _replace(whole.spec, engines=tuple(planned.get(e.name, e) for e in whole.spec.engines)) if planned else whole.spec
        parts = await self.assembly.parts(wanted, NONE if self._built is None else self._built.parts)
        return await in_slices(self.assembly.steps(self.version + 1, whole, wanted, file, parts, target))

    def _resolve(self, spec: ConfigSpec) -> ConfigSpec:
        """The file's part with its models found. What has failed of the store is tried again with a file that was read anew."""
        if self._resolved is None or self._resolved[0] is not spec:
            self._resolved = (spec, resolve_models(spec, self.base))
            self.reconciler.retry()
        return self._resolved[1]

    def _find(self, model: str) -> str:
        """The path of a model of the registry. Raises ConfigError."""
        return str(find_model(model, (place.root for place in self.model_places or model_places(self.spec, self.base))))

    async def check(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """Whether an engine or a model of the store could be put into force, as far as can be said without starting anything: it is
        merged and built beside what is in force, and thrown away. Raises ConfigError with a path within the resource."""
        file = self._in_force().file
        before, after = await self.control.merged(file), await self.control.candidate(file, kind, name, body)
        if (error := after.left_out.get((kind, name))) is not None:
            raise error
        for (other, which), error in after.left_out.items():
            if (other, which) not in before.left_out:
                raise ConfigError(f"then {which!r} of the {other} could not be used: {error}", path="name")
        if kind == "engines":
            engine = next(e for e in after.spec.engines if e.name == name)
            if engine.url is not None:
                await check_upstream(engine.url, self.spec.store.upstreams)
            else:
                await asyncio.to_thread(self._find, engine.model or "")
        await in_slices(router_steps(after.spec.models, after.spec.engines, self.registry, self.plugins.selectors))

    def _in_force(self) -> Built:
        assert self._built is not None, "the gateway has not been started"
        return self._built

    def _stored(self) -> frozenset[str]:
        """Names of the store's engines: their sidecars are the reconciler's work."""
        return frozenset(name for kind, name in self._in_force().whole.revisions if kind == "engines")

    def stored(self) -> Collection[Which]:
        """The engines and models of the store that are in force."""
        return self._in_force().whole.revisions.keys()

    def revision(self, which: Which) -> int | None:
        """The revision of an engine or model of the store that is in force."""
        if which[0] == "engines" and self.reconciler.has(which[1]):
            return self.reconciler.revision(which[1])
        return self._in_force().whole.revisions.get(which)

    def reason(self, which: Which) -> str:
        """Why the newest revision of an engine or model of the store is not in force; "" when it is, or will be."""
        error = self._in_force().whole.left_out.get(which)
        if error is not None:
            return str(error)
        return self.reconciler.reason(which[1]) if which[0] == "engines" else ""

    def _rollout_event(self, event: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        if self.plane.snapshot is not None:  # before that, nothing is recorded: the audit log is not open
            self.record(event, target, detail, outcome=outcome)

    def _apply(self, built: Built) -> None:
        before = self._in_force().whole.left_out
        self._swap(built)
        self.reconciler.pursue(built.sidecars, frozenset(engine.name for engine in built.file.engines))
        self.metrics.reloads["applied"] += 1
        self.record("config_applied", "config", {"version": built.snapshot.version})
        for (kind, name), error in built.whole.left_out.items():
            if str(before.get((kind, name), "")) != str(error):
                self.record("left_out", f"{kind}/{name}", {"reason": str(error)}, outcome="refused")

    async def _retire(self, old: Built) -> None:
        """The engines that only the old file had."""
        file = self._in_force().file
        if old.file is not file:
            await self.supervisor.apply(file.engines, wait=False, keep=self._stored())

    def _refused(self, error: ConfigError) -> None:
        """Counts and records a configuration that was not applied."""
        self.metrics.reloads["refused"] += 1
        self.record("config_refused", "config", {"reason": str(error)}, outcome="refused")

    def somebody_can_log_in(self) -> bool:
        """Whether there is a key (one of the file that is in force, or one that the store has ever shown) or another way to log in."""
        identity = self.plane.current().spec.identity
        return bool(identity.api_keys.static or identity.plugins) or self.control.has_keys

    def _check_change(self, before: ConfigSpec, after: ConfigSpec) -> None:
        """What only a restart can change: the first administrator's key of the store, too, is made at the start only."""
        keys = after.identity.api_keys
        if keys != before.identity.api_keys and not (keys.static or self.control.has_keys or after.insecure or after.identity.plugins):
            raise ConfigError(
                "the store has no key, so nobody could log in any more; make one first (`gatehouse keys create`)",
                path="identity.api_keys.rely_on_store",
            )
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

    async def _collect(self) -> None:
        gc.collect(0)

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
        await self.reconciler.aclose()
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
        state = GaugeMetricFamily("gatehouse_breaker_state", "1 for the state that a breaker is in", labels=["endpoint", "state"])
        for view in self.registry.endpoints():
            breaker.add_metric([view["name"]], 0.0 if view["breaker"]["state"] == "closed" else 1.0)
            for name in ("closed", "half_open", "open"):
                state.add_metric([view["name"], name], 1.0 if view["breaker"]["state"] == name else 0.0)
        queued = GaugeMetricFamily("gatehouse_queued", "Requests that wait for a slot", labels=["model"])
        for entry in set(self.plane.snapshot.models.values()) if self.plane.snapshot is not None else ():  # aliases share an entry
            queued.add_metric([entry.name], entry.route.queued)
        yield from (up, busy, breaker, state, queued)
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
        for (name, mode), count in self.assembly.guardrail_failures.items():
            failures.add_metric([name, mode], count)
        yield failures
