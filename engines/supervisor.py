"""Starts sidecars, watches them, starts them again, drains them. Who runs where is decided elsewhere; this only keeps it true.

Each sidecar is a child whose standard input is its lifeline: when this process dies, the pipe closes and the sidecar ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.placer import Placer
from engines.process import SidecarProcess
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.ports import EndpointObserver
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.engines")
MAX_SOCKET_PATH = 99
DRAIN_SECONDS = 30.0


class Supervisor:
    """Owns all sidecars of this machine. Implements the ports ModelControl and, for engines, FleetView."""

    def __init__(
        self,
        state_dir: Path,
        observer: EndpointObserver,
        on_event: Callable[[str, str, dict[str, Any]], None],
        placer: Placer | None = None,
    ) -> None:
        self._state_dir, self._observer, self._on_event = state_dir, observer, on_event
        self._placer = placer or Placer()
        self._processes: dict[str, SidecarProcess] = {}
        self._specs: dict[str, EngineSpec] = {}
        self._owner = TaskOwner("supervisor")
        self._generation = 0
        self._changing = asyncio.Lock()

    # --- configuration

    def specs(self) -> dict[str, EngineSpec]:
        return dict(self._specs)

    async def apply(self, engines: tuple[EngineSpec, ...], *, wait: bool) -> None:
        """Makes the running sidecars those of a configuration: starts new ones, replaces changed ones, drains removed ones.

        wait: return only when every new one is ready; raises ConfigError with the first one's reason when one fails.
        """
        async with self._changing:
            wanted = {e.name: e for e in engines if e.runtime != "external"}
            fresh = [e for name, e in wanted.items() if self._specs.get(name) != e]
            removed = [name for name in self._specs if name not in wanted]
            await asyncio.gather(*(self._retire(self._processes.pop(name)) for name in removed))
            for name in removed:
                del self._specs[name]
            started = [self._start(spec) for spec in fresh if spec.name not in self._processes]
            if wait:
                try:
                    await asyncio.gather(*(process.first_ready() for process in started))
                except ConfigError:
                    await self._discard(started)
                    raise
            for spec in fresh:
                if self._specs[spec.name] != spec:
                    await self._replace(spec)

    async def _discard(self, started: list[SidecarProcess]) -> None:
        """A change that failed leaves nothing of it running, and is tried again when it comes again."""
        for process in started:
            self._processes.pop(process.spec.name, None)
            self._specs.pop(process.spec.name, None)
        await asyncio.gather(*(process.stop(0.0) for process in started))

    def _start(self, spec: EngineSpec) -> SidecarProcess:
        process = self._make(spec)
        self._processes[spec.name] = process
        self._specs[spec.name] = spec
        self._observer.engine_starting(spec.name)
        self._owner.spawn(process.keep(), name=spec.name)
        return process

    def _make(self, spec: EngineSpec) -> SidecarProcess:
        self._generation += 1
        return SidecarProcess(spec, self._socket(spec.name), self._state_dir, self._observer, self._on_event, self._placer)

    def _socket(self, name: str) -> Path:
        """A socket path that is new for each process and short enough for the kernel."""
        short = hashlib.sha256(f"{self._state_dir}/{name}".encode()).hexdigest()[:8]
        plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:24]
        path = self._state_dir / "run" / f"{plain}-{short}-{self._generation}.sock"
        if len(str(path).encode()) > MAX_SOCKET_PATH:
            key = hashlib.sha256(str(self._state_dir).encode()).hexdigest()[:12]
            path = Path(tempfile.gettempdir()) / f"gatehouse-{key}" / path.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        return path

    async def _replace(self, spec: EngineSpec) -> None:
        """Starts the new process beside the old one, moves the traffic, drains the old one. On failure the old one stays."""
        old = self._processes[spec.name]
        new = self._make(spec)
        new.silent = True  # until it is ready: the old one serves
        self._owner.spawn(new.keep(), name=f"{spec.name}+")
        try:
            await new.first_ready()
        except ConfigError:
            await new.stop(0.0, silent=True)
            raise
        self._processes[spec.name], self._specs[spec.name] = new, spec
        self._owner.spawn(old.stop(DRAIN_SECONDS, silent=True), name=f"{spec.name}-")

    async def _retire(self, process: SidecarProcess) -> None:
        self._observer.engine_draining(process.spec.name)
        await process.stop(DRAIN_SECONDS)

    # --- ModelControl

    def _known(self, engine: str) -> EngineSpec:
        spec = self._specs.get(engine)
        if spec is None:
            raise GatehouseError(f"There is no engine {engine!r} that Gatehouse started.", code="not_found", status=404)
        return spec

    async def load(self, engine: str) -> None:
        """Starts an engine that is unloaded; returns when it is ready. Does nothing when it runs."""
        spec = self._known(engine)
        async with self._changing:
            if self._processes[engine].wanted:
                return
            await self._start(spec).first_ready()

    async def unload(self, engine: str) -> None:
        """Drains and stops an engine; it stays known and can be loaded again."""
        self._known(engine)
        async with self._changing:
            await self._retire(self._processes[engine])

    async def reload(self, engine: str) -> None:
        """Replaces the process of an engine by a new one without losing a request."""
        spec = self._known(engine)
        async with self._changing:
            await self._replace(spec)

    async def drain(self, endpoint: str) -> None:
        self._observer.engine_draining(endpoint)

    async def resume(self, endpoint: str) -> None:
        process = self._processes.get(endpoint)
        if process is not None and process.state == "ready":
            self._observer.engine_ready(endpoint, process.address, process.spec.start_slots)

    # --- FleetView

    def engines(self) -> list[dict[str, Any]]:
        return [process.describe() for process in self._processes.values()]

    async def aclose(self, timeout: float = DRAIN_SECONDS) -> None:
        """Drains all sidecars at once, ends those that take longer than `timeout` seconds."""
        await asyncio.gather(*(process.stop(timeout) for process in self._processes.values()))
        await self._owner.aclose()
