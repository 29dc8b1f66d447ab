"""Starts, watches, restarts, replaces and unloads sidecars.

Each sidecar is a child whose standard input is its lifeline: when this process dies, the pipe closes and the sidecar ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from engines.host.catalogue.trust import Trust
from engines.host.handover import HeldEngines
from engines.host.lifecycle import backoff, on_demand
from engines.host.memory_ledger import MemoryLedger
from engines.host.process import SidecarProcess, within
from engines.host.replacement import OnEvent, Replacement, replace
from engines.host.sockets import Sockets
from engines.runtimes import RUNTIMES, RuntimeRow
from gateway.core.clock import Clock, SystemClock
from gateway.core.engine_copies import is_copy
from gateway.core.errors import EngineChangeFailed, GatehouseError
from gateway.core.plugins import Table
from gateway.core.ports import EngineTraffic
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.engines")
DRAIN_SECONDS = 30.0
RESTORE_SECONDS = 120.0
"""How long a failed change waits for an engine that it had stopped. The engine is restarted until it runs in any case."""
ABORT_SECONDS = DRAIN_SECONDS + RESTORE_SECONDS + 30.0
"""How long an abort waits for the change to end: it may have to restart a process that was stopped first."""
IDLE_SECONDS = 0.5
"""Between two checks for idle engines."""
FOR_GOOD = 1e9
"""Seconds: a copy comes when whoever scales its engine says so, and not for a request."""
ROOM_IDLE_SECONDS = 10.0
"""Only engines idle for this long make room for another, so that two that do not fit together do not evict each other in turn."""


class Supervisor:
    """Owns all sidecars of this machine. Implements `replacement.House`, most of the port ModelControl and, for engines, FleetView.

    on_event: (kind, engine, detail) for the audit log and the feed. trust: which models may be loaded; None: all.
    """

    def __init__(
        self,
        state_dir: Path,
        traffic: EngineTraffic,
        on_event: OnEvent,
        ledger: MemoryLedger | None = None,
        clock: Clock | None = None,
        runtimes: Table[RuntimeRow] = RUNTIMES,
        trust: Trust | None = None,
    ) -> None:
        self._state_dir, self.traffic, self.on_event = state_dir, traffic, on_event
        self._runtimes, self._trust = runtimes, trust
        self._sockets = Sockets(state_dir)
        self.clock: Clock = clock or SystemClock()
        self._ledger = ledger or MemoryLedger(runtimes=runtimes)
        self._processes: dict[str, SidecarProcess] = {}
        self._specs: dict[str, EngineSpec] = {}
        self._candidates: set[SidecarProcess] = set()
        self._replacing: dict[str, Replacement] = {}
        self._load_failures: dict[str, tuple[int, EngineChangeFailed]] = {}
        self._owner = TaskOwner("supervisor")
        self._generation = 0
        self._closing = self._looking = False
        self._applying = asyncio.Lock()
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def _changing(self, engines: Iterable[str]) -> AsyncIterator[None]:
        """Serialises changes of each of these engines. Locks are taken in name order, so two changes never deadlock."""
        async with AsyncExitStack() as stack:
            for engine in sorted(set(engines)):
                await stack.enter_async_context(self._locks.setdefault(engine, asyncio.Lock()))
            yield

    # --- replacing the program

    def busy(self) -> str | None:
        """Why the sidecars cannot be handed over now, or None."""
        if self._closing:
            return "the engines are being stopped"
        changing = sorted({*(name for name, lock in self._locks.items() if lock.locked()), *(p.spec.name for p in self._candidates)})
        return f"engine {changing[0]!r} is being changed, or its old process finishes requests" if changing else None

    def hand_over(self) -> HeldEngines:
        """What the program that replaces this one needs to `adopt` the sidecars. Call only if nothing is `busy`."""
        wanted = [process for process in self._processes.values() if process.wanted]
        idle = self._specs.keys() - {process.spec.name for process in wanted}
        return HeldEngines(
            sidecars=[held for process in wanted if (held := process.hand_over()) is not None],
            unloaded=[self._specs[name] for name in sorted(idle) if not on_demand(self._specs[name])],
            generation=self._generation,
        )

    def let_go(self) -> HeldEngines:
        """As `hand_over`, for good: the sidecars are not ended with this program."""
        held = self.hand_over().kept()
        for process in self._processes.values():
            process.let_go = True
        return held

    def adopt(self, held: HeldEngines) -> None:
        """Takes over the sidecars that the program before this one has started. Call before the first `apply`."""
        self._generation = held.generation
        for spec in held.unloaded:
            self._specs[spec.name] = spec
            if is_copy(spec.name):
                self._rest(spec.name, "not needed now")
            else:
                self.traffic.engine_down(spec.name, "unloaded by an operator")
        for one in held.sidecars:
            process = SidecarProcess(
                self._runtimes[one.spec.runtime], one.spec, Path(one.socket), self._state_dir, self.traffic, self.on_event, self._ledger,
                proven=True, held=one, trust=self._trust,
            )  # fmt: skip
            self._processes[one.spec.name], self._specs[one.spec.name] = process, one.spec
            self._owner.spawn(process.keep(), name=one.spec.name)

    # --- configuration

    def specs(self) -> dict[str, EngineSpec]:
        return dict(self._specs)

    def runs(self, engine: str) -> bool:
        """Whether its process is there, or starts, and has not been asked to end."""
        process = self._processes.get(engine)
        return process is not None and process.wanted

    def models(self) -> set[tuple[str, str]]:
        """(engine, path of its model) of every known engine and of every process that starts, runs or ends."""
        processes = (process.spec for process in (*self._processes.values(), *self._candidates))
        return {(spec.name, spec.model) for spec in (*self._specs.values(), *processes) if spec.model is not None}

    async def apply(self, engines: tuple[EngineSpec, ...], *, wait: bool, keep: Collection[str] = (), again: bool = False) -> None:
        """Applies a configuration's engines: starts new ones (except lazy ones), replaces those whose process settings changed, updates
        all other settings in place, drains removed ones.

        keep: engines that stay although they are not listed (see `put`). wait: return only when every new one is ready. again: one whose
        first load fails is started again after a growing pause, as others are that have been ready once: nobody could ask for it.
        Raises EngineChangeFailed with the first reason; nothing has changed then.
        """
        self._look_for_idle()
        async with self._applying:
            wanted = {e.name: e for e in engines if e.runtime != "external"}
            changed = [e for name, e in wanted.items() if self._specs.get(name) != e]
            removed = [name for name in self._specs if name not in wanted and name not in keep]
            async with self._changing([*removed, *(e.name for e in changed)]):
                await self._apply(changed, wait, again)
                await asyncio.gather(*(self._remove(name) for name in removed))

    async def put(self, spec: EngineSpec) -> None:
        """Applies one engine, independently of other changes. Returns when it is in force. Raises EngineChangeFailed."""
        self._look_for_idle()
        async with self._changing([spec.name]):
            await self._apply([spec], True, False)

    async def remove(self, engine: str) -> None:
        """Drains an engine and forgets it. Does nothing if the engine is unknown."""
        async with self._changing([engine]):
            if engine in self._specs:
                await self._remove(engine)

    async def _apply(self, changed: list[EngineSpec], wait: bool, again: bool) -> None:
        changed = [e for e in changed if self._specs.get(e.name) != e]
        running = {name for name, process in self._processes.items() if process.wanted}
        replaced = [e for e in changed if e.name in running and self._specs[e.name].process_settings != e.process_settings]
        fresh = [e for e in changed if e.name not in running and self._comes_now(e)]
        amended = [e for e in changed if e not in replaced and e not in fresh]
        before = {e.name: self._specs[e.name] for e in fresh if e.name in self._specs}
        started = [self._start(spec, proven=again) for spec in fresh]
        try:
            if wait:
                await asyncio.gather(*(process.first_ready() for process in started))
            await self._replace(replaced)
        except EngineChangeFailed:
            await self._discard(started, before)
            raise
        for spec in amended:
            self._amend(spec)

    def _comes_now(self, spec: EngineSpec) -> bool:
        """Whether the change starts an engine that is not running: an eager one that is new or was lazy before, and no copy."""
        if is_copy(spec.name):
            return False
        known = self._specs.get(spec.name)
        return spec.lifecycle.load == "eager" and (known is None or known.lifecycle.load == "lazy")

    def _amend(self, spec: EngineSpec) -> None:
        """Updates settings that need no new process; all settings if the engine is not loaded."""
        process = self._processes.get(spec.name)
        self._specs[spec.name] = spec
        if process is not None:
            process.spec = spec
        if (process is None or not process.wanted) and on_demand(spec):
            self._load_failures.pop(spec.name, None)
            self.traffic.engine_unloaded(spec.name, "not loaded yet")
        elif (process is None or not process.wanted) and is_copy(spec.name):
            self._rest(spec.name, "not needed now")

    async def _discard(self, started: list[SidecarProcess], before: dict[str, EngineSpec]) -> None:
        """Stops what a failed change has started, so that the same change can be tried again."""
        for process in started:
            self._processes.pop(process.spec.name, None)
            self._specs.pop(process.spec.name, None)
        await asyncio.gather(*(process.stop(0.0) for process in started))
        for spec in before.values():
            self._amend(spec)

    async def _remove(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            self.traffic.engine_draining(name)
            await self.empty(process)
            self.traffic.engine_down(name, "removed from the configuration")
        self._specs.pop(name)
        self._load_failures.pop(name, None)

    def _start(self, spec: EngineSpec, *, awaited: bool = False, proven: bool = False) -> SidecarProcess:
        beside_others = any(process.state == "ready" for process in self._processes.values())
        process = self._make(spec, proven=proven, gently=beside_others and not awaited and not proven)
        self._processes[spec.name] = process
        self._specs[spec.name] = spec
        self.traffic.engine_starting(spec.name, awaited=awaited)
        self._owner.spawn(process.keep(), name=spec.name)
        return process

    def _make(self, spec: EngineSpec, **how: Any) -> SidecarProcess:
        self._generation += 1
        row, socket = self._runtimes[spec.runtime], self._sockets.new(spec.name, self._generation)
        return SidecarProcess(row, spec, socket, self._state_dir, self.traffic, self.on_event, self._ledger, trust=self._trust, **how)

    # --- replacing: engines.host.replacement.House

    async def _replace(self, specs: Sequence[EngineSpec], *, stop_first: bool = False) -> None:
        """Starts new processes for running engines, all or none. Their locks are held. Raises EngineChangeFailed."""
        made = [Replacement(self, self._processes[spec.name], spec) for spec in specs]
        for one in made:
            one.peers = made
        self._replacing.update({one.spec.name: one for one in made})
        try:
            await replace(made, stop_first, self.clock)
        finally:
            for one in made:
                self._replacing.pop(one.spec.name, None)
                one.over.set()

    def candidate(self, spec: EngineSpec, old: SidecarProcess | None) -> SidecarProcess:
        process = self._make(spec, silent=True, beside=old.plan if old is not None else None, gently=old is not None)
        self._candidates.add(process)
        self._owner.spawn(self._keep(process), name=f"{spec.name}+")
        return process

    async def _keep(self, process: SidecarProcess) -> None:
        try:
            await process.keep()
        finally:
            self._candidates.discard(process)

    def install(self, process: SidecarProcess) -> None:
        self._processes[process.spec.name], self._specs[process.spec.name] = process, process.spec
        self._candidates.discard(process)

    def retire(self, process: SidecarProcess) -> None:
        process.silent = True  # if it dies now, nobody needs to know
        self._candidates.add(process)
        self._owner.spawn(self._retired(process), name=f"{process.spec.name}-")

    async def _retired(self, process: SidecarProcess) -> None:
        """Nobody waits for this: a stream may run to the end of its time."""
        await self.empty(process, max(DRAIN_SECONDS, process.spec.timeouts.total))
        self._candidates.discard(process)

    def end(self, process: SidecarProcess) -> None:
        self._owner.spawn(process.stop(0.0, silent=True), name=f"{process.spec.name}-")

    async def empty(self, process: SidecarProcess, seconds: float = DRAIN_SECONDS) -> None:
        await within(self.traffic.drained(process.spec.name, process.served_at), seconds)
        await process.stop(DRAIN_SECONDS, silent=True)

    async def restore(self, spec: EngineSpec) -> None:
        process = self._start(spec, awaited=True, proven=True)
        if not await within(process.first_ready(), RESTORE_SECONDS):
            log.error("engine %s: the old process could not be started again yet: %s", spec.name, process.reason)

    # --- ModelControl

    def _known(self, engine: str) -> EngineSpec:
        spec = self._specs.get(engine)
        if spec is None:
            raise GatehouseError(f"There is no engine {engine!r} that Gatehouse started.", code="not_found", status=404)
        return spec

    async def load(self, engine: str) -> None:
        """Starts an unloaded engine and returns when it is ready. Does nothing if it runs. Raises EngineChangeFailed."""
        self._known(engine)
        await self._own(self._load(engine), "load")

    async def unload(self, engine: str, *, force: bool = False, reason: str = "unloaded by an operator") -> None:
        """Drains and stops an engine; it stays known and can be loaded again. Raises GatehouseError if it is pinned, unless forced."""
        if self._known(engine).lifecycle.pinned and not force:
            raise _pinned(engine)
        await self._own(self._unload(engine, reason), "unload")

    async def reload(self, engines: Sequence[str], *, stop_first: bool = False, force: bool = False) -> None:
        """Replaces the processes of engines without losing a request, all or none. Starts those that are not running."""
        for engine in engines:
            if self._known(engine).lifecycle.pinned and stop_first and not force:
                raise _pinned(engine)
        await self._own(self._reload(engines, stop_first), "reload")

    async def abort(self, engines: Sequence[str], reason: str) -> None:
        """Takes back the changes that are replacing these engines' processes, including the other engines of those changes. Returns when
        everything is as before, or after `ABORT_SECONDS`. Raises GatehouseError if none of the engines is being replaced."""
        found = [one for engine in engines if (one := self._replacing.get(engine)) is not None]
        if not found:
            raise GatehouseError("No engine is being replaced: there is nothing to abort.", code="no_rollout", status=409)
        for peer in {id(peer): peer for one in found for peer in one.peers}.values():
            peer.abort(reason)
        await asyncio.gather(*(within(one.over.wait(), ABORT_SECONDS) for one in found))

    async def _own(self, work: Any, name: str) -> None:
        """Runs work to its end even if the caller goes away."""
        await asyncio.shield(self._owner.spawn(work, name=name))

    async def _load(self, engine: str) -> None:
        known = self._specs.get(engine)
        group = [] if known is None or known.lifecycle.group is None else [GROUP + known.lifecycle.group]
        async with self._changing([*group, engine]):
            process, spec = self._processes.get(engine), self._specs.get(engine)
            if spec is None or (process is not None and process.wanted):
                return
            try:
                await self._take_turn(spec)
                await self._come(spec)
            except EngineChangeFailed as error:
                self._load_failed(spec, error)
                raise
            self._load_failures.pop(engine, None)

    async def _come(self, spec: EngineSpec) -> None:
        """Starts an engine. If it does not fit, engines that are loaded on demand make room, the longest idle first."""
        while True:
            try:
                return await self._start(spec, awaited=on_demand(spec)).first_ready()
            except EngineChangeFailed as error:
                if error.code != "insufficient_memory" or not await self._make_room(spec):
                    raise

    async def _take_turn(self, spec: EngineSpec) -> None:
        """Unloads the other engines of the group; their requests under way are finished first. The group's lock is held."""
        group = spec.lifecycle.group
        others = [name for name, other in self._specs.items() if group is not None and name != spec.name and other.lifecycle.group == group]
        await asyncio.gather(*(self._unload(name, f"makes way for {spec.name}, of the same group") for name in others))

    async def _make_room(self, spec: EngineSpec) -> bool:
        """Unloads one on-demand engine that is idle and not pinned. Returns False if there is none."""
        idle = []
        for name, other in self._specs.items():
            process = self._processes.get(name)
            free = process is not None and process.state == "ready" and not self._locks.setdefault(name, asyncio.Lock()).locked()
            if free and on_demand(other) and not other.lifecycle.pinned and self._still_idle(name, ROOM_IDLE_SECONDS):
                idle.append((self.traffic.idle_seconds(name) or 0.0, name))
        if not idle:
            return False
        self.traffic.engine_starting(spec.name, awaited=on_demand(spec))  # whoever waits for it keeps waiting
        await self._unload(max(idle)[1], f"makes room for {spec.name}", idle=ROOM_IDLE_SECONDS)
        return True

    def _load_failed(self, spec: EngineSpec, error: EngineChangeFailed) -> None:
        """Tells those who wait why; the next request may ask again after a pause that grows."""
        failures = 1 + self._load_failures.get(spec.name, (0, error))[0]
        self._load_failures[spec.name] = (failures, error)
        if on_demand(spec) and not self._closing:
            reason = self._processes[spec.name].reason_code or error.code
            self.traffic.engine_unloaded(spec.name, error.message, reason, LOAD_PAUSE * backoff(failures))
        elif is_copy(spec.name) and not self._closing:
            self._rest(spec.name, error.message, self._processes[spec.name].reason_code or error.code)

    async def _unload(self, engine: str, reason: str, *, idle: float | None = None) -> None:
        """idle: unload only if nobody has needed it for this many seconds."""
        async with self._changing([engine]):
            process, spec = self._processes.get(engine), self._specs.get(engine)
            if process is None or spec is None or not process.wanted or not self._still_idle(engine, idle):
                return
            if on_demand(spec):
                self.traffic.engine_unloading(engine)
            else:
                self.traffic.engine_draining(engine)
            await self.empty(process)
            self.on_event("engine_unloaded", engine, {"version": spec.version, "reason": reason})
            if on_demand(spec):
                self.traffic.engine_unloaded(engine, reason)
            elif is_copy(engine):
                self._rest(engine, reason)
            else:
                self.traffic.engine_down(engine, reason)

    def _rest(self, copy: str, reason: str, code: str | None = None) -> None:
        self.traffic.engine_unloaded(copy, reason, code, FOR_GOOD)

    async def _reload(self, engines: Sequence[str], stop_first: bool) -> None:
        async with self._changing(engines):
            running = [engine for engine in engines if (process := self._processes.get(engine)) is not None and process.wanted]
            await self._replace([self._specs[engine] for engine in running], stop_first=stop_first)
        for engine in engines:
            if engine not in running:
                await self._load(engine)

    async def drain(self, endpoint: str) -> None:
        self.traffic.engine_draining(endpoint)

    async def resume(self, endpoint: str) -> None:
        process = self._processes.get(endpoint)
        if process is not None and process.state == "ready":
            self.traffic.engine_ready(endpoint, process.served_at, process.slots)

    # --- on demand

    def wanted(self, engine: str) -> None:
        """Loads an engine that a request waits for. Routing asks once per load."""
        if not self._closing:
            self._owner.spawn(self._load_wanted(engine), name=f"{engine}: wanted")

    async def _load_wanted(self, engine: str) -> None:
        self.on_event("engine_wanted", engine, {})
        try:
            await self._load(engine)
        except EngineChangeFailed as error:
            log.warning("%s", error)

    def _look_for_idle(self) -> None:
        if not self._looking:
            self._looking = True
            self._owner.every(IDLE_SECONDS, self.unload_idle, name="idle engines")

    async def unload_idle(self) -> None:
        """Unloads every engine that has been idle for its `lifecycle.idle_ttl` and is not pinned."""
        due = []
        for name, spec in self._specs.items():
            ttl = spec.lifecycle.idle_ttl
            process = self._processes.get(name)
            if ttl > 0 and not spec.lifecycle.pinned and process is not None and process.state == "ready" and self._still_idle(name, ttl):
                due.append(self._unload(name, f"idle for {ttl:g} s", idle=ttl))
        await asyncio.gather(*due)

    def _still_idle(self, engine: str, seconds: float | None) -> bool:
        idle = self.traffic.idle_seconds(engine) if seconds is not None else None
        return seconds is None or (idle is not None and idle >= seconds)

    # --- FleetView

    def engines(self) -> list[dict[str, Any]]:
        return [self._view(spec) for spec in self._specs.values()]

    def _view(self, spec: EngineSpec) -> dict[str, Any]:
        process, replacing = self._processes.get(spec.name), self._replacing.get(spec.name)
        failure = self._load_failures.get(spec.name)
        unloaded = {"name": spec.name, "runtime": spec.runtime, "version": spec.version, "state": "stopped", "reason": "not loaded yet"}
        shown = process.describe() if process is not None else unloaded
        if failure is not None and not (process is not None and process.wanted):
            shown |= {"reason": failure[1].message}
        life = spec.lifecycle
        return {
            **shown,
            "lifecycle": {"load": life.load, "idle_ttl": life.idle_ttl, "pinned": life.pinned},
            "idle_seconds": self.traffic.idle_seconds(spec.name),
            "rollout": replacing.view() if replacing is not None else None,
        }

    async def aclose(self, timeout: float = DRAIN_SECONDS) -> None:
        """Drains all sidecars at once and ends those that take longer than `timeout` seconds."""
        self._closing = True
        for name, process in self._processes.items():
            if process.state == "ready":
                self.traffic.engine_draining(name)  # before a probe finds that it accepts no more connections
        everything = {*self._processes.values(), *self._candidates}
        await asyncio.gather(*(process.stop(timeout) for process in everything))
        await self._owner.aclose()
        self._sockets.clear()


GROUP = " group "
"""Before the name of a group, in the names of locks: no engine has such a name, and it comes before all of them."""
LOAD_PAUSE = 10.0
"""Factor on `lifecycle.backoff` for failed loads: the next attempt comes after 5 s, then 10, 20 ... 300."""


def _pinned(engine: str) -> GatehouseError:
    message = f"The engine {engine!r} is pinned (lifecycle.pinned): it is only stopped with force."
    return GatehouseError(message, code="pinned", status=409)
