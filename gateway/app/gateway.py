"""All parts of one process, wired together: what each is given, in which order they start and end. Each part owns one thing:

`store_link` the store · `replicas` the others on it · `fleet` engines and endpoints · `builder` Snapshots and their plug-ins ·
`changes` the configuration in force · `plane` the requests · `audit` the log · `events` what happens outside requests ·
`Gauges` what a scrape reads.

The listeners and the signals are `process.Process`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from engines.host.handover import HeldEngines
from gateway.app import interpreter
from gateway.app.changes import Changes
from gateway.app.events import Events
from gateway.app.fleet import Fleet
from gateway.app.gauges import Gauges
from gateway.app.parts import PartsBuilder
from gateway.app.plugins import OURS, Plugins
from gateway.app.replica import replica_id
from gateway.app.replicas import Replicas
from gateway.app.shipping import Shipping, recovery
from gateway.app.snapshots import Built, SnapshotBuilder
from gateway.app.store_link import StoreLink
from gateway.app.traffic_gauges import TrafficGauges
from gateway.audit.broker import AuditBroker
from gateway.config.load import Loaded
from gateway.core.clock import SystemClock
from gateway.core.feed import LocalFeed
from gateway.core.tasks import TaskOwner
from gateway.identity.floods import FloodTable
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.telemetry import logging as gatehouse_logging
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage import CountedAudit

log = logging.getLogger("gatehouse")
EXPIRY_SECONDS = 60.0
"""Between two looks for abandoned uploads."""
RECOVERY_SECONDS = 2.0
"""Between two looks for writers of the audit log that no process has."""


class Gateway:
    """workers: whether other processes serve (gateway.app.workers). Life: `start`, `start_engines`, `aclose`. Raises ConfigError when the
    settings of the store or the audit log cannot be used."""

    def __init__(self, loaded: Loaded, environ: Mapping[str, str], plugins: Plugins = OURS, *, workers: bool = False) -> None:
        spec, base = loaded.spec, Path(loaded.file).resolve().parent
        self.plugins, self.spec = plugins, spec
        """What the process was started with, for the settings that only a restart changes."""
        self.replica = replica_id(Path(spec.state_dir), environ, spec.replica)
        schemas = plugins.schemas()
        self.metrics = Metrics()
        self.scrape: Callable[[], bytes] = self.metrics.scrape
        """All metrics; with workers, theirs too."""
        self.plane = DataPlane(self.metrics)
        self.feed = LocalFeed()
        self.audit = AuditBroker(spec.audit, spec.state_dir, writer=self.replica)
        self._recovery = recovery(spec, self.replica)
        self.shipping = Shipping(spec, self.audit, plugins.sinks)
        self.events = Events(self.audit, self.feed)
        self.store_link = StoreLink(spec, environ, self.feed, plugins)
        self.fleet = Fleet(spec, base, SystemClock(), self.events, plugins.runtimes, workers=workers)
        self.replicas = Replicas(self.store_link, self.fleet, self.replica, self.events.record, spec.redis)
        self._owner = TaskOwner("gateway")
        self._floods = FloodTable()
        self.plane.first_denial = self._floods.denied
        counted = CountedAudit(self.audit, self.store_link.usage)
        parts = PartsBuilder(plugins, self.store_link.keys, base, self.events.record, lambda: self.scrape())
        self.builder = SnapshotBuilder(self.fleet.registry, self.metrics, self.store_link, counted, parts)
        on_swap: list[Callable[[Built], None]] = [self.fleet.put_into_force, self._serve, self._log_as_configured]
        self.changes = Changes(
            loaded, environ, schemas, self.builder, self.fleet, self.store_link, on_swap, self.events, self.metrics, self._owner
        )
        self._telemetry = spec.telemetry
        traffic = TrafficGauges(self.plane, self.fleet.registry, self.audit, self.shipping, self.store_link.keys, parts)
        gauges = Gauges(self.fleet.supervisor, self.store_link, self.replica, self.replicas.members)
        self.metrics.gauges += [traffic.collect, gauges.collect, self.replicas.hints.collect]

    # --- life

    async def start(self) -> None:
        """Opens the store and the audit log, puts the configuration into force, starts probing. Engines are started by `start_engines`."""
        await self.store_link.start()
        await self.fleet.start()
        first = await self.changes.start()
        await self.shipping.start()
        await self.audit.start()
        self.events.open()
        self.changes.begin(first)
        self.feed.subscribe(self.changes.heard)
        self.fleet.start_probing()
        self._owner.every(SWEEP_SECONDS, self._sweep, name="sweep")
        self._owner.every(EXPIRY_SECONDS, self.fleet.files.expire, name="uploads")
        self._owner.every(RECOVERY_SECONDS, self._recover, name="audit writers")
        spec = first.snapshot.spec
        log.info("this is the replica %s", self.replica)
        if not self.changes.somebody_can_log_in():
            log.warning("no key can log in yet: every request is refused (401) until the store has a key")
        if spec.redis is not None and spec.limits:
            log.warning("each replica counts limits for itself: in this version redis carries word of changes, not limits")
        if spec.insecure:
            log.warning("INSECURE: this configuration switches protection off (insecure: true)")
        self.events.record("start", "gatehouse", {"config": first.snapshot.version, "insecure": spec.insecure, "replica": self.replica})

    def adopt(self, engines: HeldEngines) -> None:
        """Takes over the sidecars of the program before this one. Call before `start`."""
        self.fleet.supervisor.adopt(engines)
        self.fleet.reconciler.adopt(one.spec.name for one in engines.sidecars)

    async def start_engines(self) -> None:
        """Starts the sidecars and waits until each is ready. Raises ConfigError with the reason of the first of the file that is not."""
        await self.fleet.start_engines(self.changes.in_force)
        interpreter.tune(self._owner)
        self.fleet.watch_pressure()

    async def aclose(self, *, engines: bool = True) -> None:
        """Ends engines, probes, connections and at last the audit log. Requests must have drained before. engines: whether the sidecars end
        too; not if another program has taken them over."""
        snapshot = self.plane.snapshot
        if engines:
            await self.fleet.stop_engines((self.spec if snapshot is None else snapshot.spec).listen.drain_timeout)
        else:
            await self.fleet.reconciler.aclose()
        await self.plane.tasks.aclose()
        await self.fleet.aclose()
        await self._owner.aclose()
        await self.builder.aclose()
        await self.replicas.aclose()
        await self.store_link.aclose()
        if engines:
            self.events.record("stop", "gatehouse", {})
        await self.audit.aclose()
        await self.shipping.aclose()

    # --- the configuration in force

    def _serve(self, built: Built) -> None:
        version = built.snapshot.version
        self.metrics.config_version = version
        self.plane.snapshot = built.snapshot
        self.audit.configured(version)
        self.feed.publish("config", version)

    def _log_as_configured(self, built: Built) -> None:
        wanted = built.snapshot.spec.telemetry
        if wanted != self._telemetry:
            self._telemetry = wanted
            gatehouse_logging.setup(wanted.log_level, wanted.log_format)

    async def _recover(self) -> None:
        await asyncio.to_thread(self._recovery.look)

    async def _sweep(self) -> None:
        self.plane.sweep()
        self.fleet.connections.tick()
        for flood in self._floods.drain(self.plane.now):
            self.events.record("denials", flood.peer, {"code": flood.code, "count": flood.count}, outcome="denied")
