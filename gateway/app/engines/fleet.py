"""Engines of this process: sidecars, endpoints with their connections, model files, and what is refused when the machine is too busy.

Knows nothing of how a configuration is read or built. A change goes through here in four steps: `plan` (decides), `prepare` (the file's new
engines become ready beside the old), `put_into_force` (at the swap), `retire` (the file's old engines end).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from engines.host.catalogue.library import Library
from engines.host.reconciler import Reconciler, Target, Wanted
from engines.host.supervisor import Supervisor
from engines.runtimes import RUNTIMES, RuntimeRow
from gateway.app.configuration.snapshots import Built
from gateway.app.engines import model_files
from gateway.app.engines.connections import Connections
from gateway.app.events import Events
from gateway.app.telemetry.engine_gauges import EngineTimes
from gateway.config.merge import Merged
from gateway.core.clock import Clock, SystemEntropy
from gateway.core.engine_copies import AT
from gateway.core.errors import ConfigError
from gateway.core.plugins import Table
from gateway.core.slices import in_slices
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSharingSpec, UploadsSpec
from gateway.routing.health import Probe
from gateway.routing.mirror import Mirror
from gateway.routing.probe import HttpProbe
from gateway.routing.registry import EndpointRegistry
from gateway.routing.shedding import PressureMonitor

log = logging.getLogger("gatehouse")
FAILURES = ("engine_failed", "engine_rolled_back", "model_refused")
ROUTINE: Final = ("ready", "draining", "unloaded")
"""States that an endpoint enters because somebody or something wants it to."""
SHOWN: Final = 16
"""Names of many endpoints that a record has."""


async def _nowhere(name: str) -> bool:
    return False


def sidecars(spec: ConfigSpec) -> tuple[EngineSpec, ...]:
    """The engines that this gateway starts itself: of ten thousand, all but a few are others'."""
    return tuple([engine for engine in spec.engines if engine.runtime != "external"])


class Fleet:
    """base: the configuration file's folder. workers: whether other processes serve, which follow this one's registry. Life: `start`,
    `start_engines`, `aclose`."""

    def __init__(
        self,
        spec: ConfigSpec,
        base: Path,
        clock: Clock,
        events: Events,
        runtimes: Table[RuntimeRow] = RUNTIMES,
        *,
        workers: bool = False,
    ) -> None:
        self._events, self._base = events, base
        self._spec = spec
        """The settings in force."""
        self._ending = False
        self._places, self.registry_folder = model_files.places(spec, base), model_files.registry(spec, base)
        self.times = EngineTimes()
        self.connections = Connections()
        self.on_change: Callable[[], None] = lambda: None
        """Called when the settings in force of one of the store's sidecars have changed, or the reason why they are not in force."""
        self.on_endpoint: Callable[[str, str, str], None] = lambda endpoint, old, new: None
        """Called with each change of an endpoint's state."""
        self.on_lacking: Callable[[str], None] = lambda name: None
        """Called with the name of a model that one of the store's engines needs and that is not here, in any thread."""
        self.elsewhere: Callable[[str], Awaitable[bool]] = _nowhere
        """Whether another replica has a model of this name, which can be fetched."""
        self.state_dir = state_dir = Path(spec.state_dir).resolve()
        self.registry = EndpointRegistry(
            clock,
            SystemEntropy(),
            self.connections.client,
            self._endpoint_changed,
            on_wanted=lambda engine: self.supervisor.wanted(engine),
            on_many=self._endpoints_ready,
        )
        self.mirror = Mirror(self.registry) if workers else None
        self.traffic: EndpointRegistry | Mirror = self.mirror or self.registry
        """The registry; with workers, it and theirs, kept in step."""
        self._signatures = model_files.signatures(spec, base)
        self.files = Library(
            state_dir,
            lambda: self._places,
            self._uploads,
            self._models_in_use,
            clock,
            runtimes=runtimes,
            signatures=lambda: self._signatures,
            registry=self.registry_folder,
        )
        self.files.on_refused = lambda name, why: events.record("model_refused", name, {"reason": why}, outcome="failed")
        self.supervisor = Supervisor(state_dir, self.traffic, self._engine_event, runtimes=runtimes, trust=self.files.trust)
        self.reconciler = Reconciler(self.supervisor, self.traffic, self.find_model, lambda: self.on_change(), self._rollout_event)
        self._pressure = PressureMonitor(self._shed)
        self.probe: Probe = HttpProbe()
        """What looks at endpoints; may be wrapped before `start_probing`."""

    # --- life

    async def start(self) -> None:
        """Finds the uploads of an earlier run. Raises OSError."""
        await self.files.start()

    def start_probing(self) -> None:
        self.traffic.start_probing(self.probe)

    async def start_engines(self, built: Built) -> None:
        """Starts the sidecars and waits until each is ready.

        Raises ConfigError with the reason of the first of the file that is not; one of the store that is not only reports it.
        """
        self.pursue(built)
        await self.supervisor.apply(built.file.engines, wait=True, keep=built.stored_engines)
        await self.reconciler.settled()

    def watch_pressure(self) -> None:
        """Sheds load from now on when the loop is late or memory is short."""
        self._pressure.start()

    async def stop_engines(self, timeout: float) -> None:
        self._ending = True
        await self.reconciler.aclose()
        await self.supervisor.aclose(timeout)

    async def aclose(self) -> None:
        """Closes what is left once the engines have been stopped and no request is under way."""
        await self.files.aclose()
        self._pressure.close()
        await self.registry.aclose()

    # --- a change

    def plan(self, merged: Merged) -> Target:
        """What the store's sidecars are to become, and what of their settings is in force until then. Changes nothing."""
        return self.reconciler.plan(
            {
                engine.name: Wanted(merged.revisions["engines", engine.name], engine)
                for engine in merged.spec.engines
                if engine.runtime != "external" and ("engines", engine.name) in merged.revisions
            }
        )

    async def prepare(self, before: Built, after: Built) -> None:
        """Brings up the file's new engines; those that are no longer wanted run on until `retire`. Raises ConfigError."""
        if after.file is not before.file:
            going, wanted = sidecars(before.file), sidecars(after.file)
            await asyncio.sleep(0)
            names = {engine.name for engine in after.file.engines} | before.stored_engines if going else ()
            going = tuple([engine for engine in going if engine.name not in names])
            signatures, self._signatures = self._signatures, model_files.signatures(after.file, self._base)
            try:
                await self.supervisor.apply((*wanted, *going), wait=True, keep=before.stored_engines)
            except BaseException:
                self._signatures = signatures
                raise

    async def enter(self, built: Built) -> None:
        """Does what `put_into_force` need not do itself. Call it right before that."""
        await in_slices(self.registry.entering(built.router))

    def put_into_force(self, built: Built) -> None:
        self.traffic.activate(built.router)
        if built.file.model_dirs != self._spec.model_dirs:
            self._places = model_files.places(built.file, self._base)
        self._spec = built.snapshot.spec

    def pursue(self, built: Built) -> None:
        """Starts, replaces and ends sidecars of the store in the background until they are what the configuration in force says."""
        self.reconciler.pursue(built.sidecars, (engine.name for engine in built.file.engines))

    async def retire(self, before: Built, now: Built) -> None:
        """Ends the engines that only the old file had."""
        if before.file is not now.file:
            await self.supervisor.apply(sidecars(now.file), wait=False, keep=now.stored_engines)

    # --- model files

    def find_model(self, name: str) -> str:
        """The path of a model of the registry. Raises ConfigError."""
        try:
            return str(model_files.find(name, (place.root for place in self._places)))
        except ConfigError:
            self.on_lacking(name)
            raise

    async def check_model(self, name: str) -> None:
        """Raises ConfigError for a model that neither this machine nor another replica has."""
        try:
            await asyncio.to_thread(self.find_model, name)
        except ConfigError:
            if not await self.elsewhere(name):
                raise

    @property
    def sharing(self) -> ModelSharingSpec:
        return self._spec.model_sharing

    def reserve(self) -> int:
        """Bytes of the disk that stay free of model files."""
        return self._spec.uploads.reserve_bytes

    def _uploads(self) -> UploadsSpec:
        return self._spec.uploads

    def _models_in_use(self) -> list[tuple[str, str]]:
        """(engine, model) of those in force, and of a change that is under way."""
        stated = {(e.name, e.model) for e in self._spec.engines if e.model is not None and not e.foreign}
        return sorted(stated | self.supervisor.models() | set(self._models_sent()))

    def models_used(self) -> set[tuple[str, str]]:
        """The same without a look at the disk: what other replicas are told."""
        stated = {(e.name, e.model) for e in self._spec.engines if e.model is not None and not e.foreign}
        placed = ((e.name.partition(AT)[0], e.joined.place) for e in self._spec.engines if e.joined is not None)
        sent = {(name, str(self.registry_folder / place.model)) for name, place in placed if place is not None}
        return stated | self.supervisor.models() | sent

    def _models_sent(self) -> Iterator[tuple[str, str]]:
        """The same of engines that are placed on joined machines."""
        for engine in self._spec.engines:
            if engine.joined is not None and engine.joined.place is not None:
                with suppress(ConfigError):  # it is not here
                    yield engine.name.partition(AT)[0], self.find_model(engine.joined.place.model)

    # --- what is reported

    def _rollout_event(self, event: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        self._events.record(event, target, detail, outcome=outcome)

    def _engine_event(self, kind: str, engine: str, detail: dict[str, Any]) -> None:
        self.times.heard(engine, detail)
        self._events.record(kind, engine, detail, outcome="failed" if kind in FAILURES else "ok")

    def _endpoint_changed(self, endpoint: str, old: str, new: str, reason: str) -> None:
        routine = self._ending or new in ROUTINE or old == "unloaded"
        log.log(logging.INFO if routine else logging.WARNING, "endpoint %s: %s -> %s (%s)", endpoint, old, new, reason)
        self._events.record("endpoint_changed", endpoint, {"from": old, "to": new, "reason": reason})
        self.on_endpoint(endpoint, old, new)

    def _endpoints_ready(self, names: list[str]) -> None:
        log.info("%d endpoints are in force and ready, among them %s", len(names), ", ".join(names[:SHOWN]))
        self._events.record("endpoints_ready", "fleet", {"count": len(names), "among": names[:SHOWN]})

    def _shed(self, level: int) -> None:
        log.warning("load shedding: level %d", level)
        self.registry.shedding = level
        self._events.record("load_shedding", "gatehouse", {"level": level})
