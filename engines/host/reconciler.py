"""Brings the sidecars to what the store says: starts new engines, replaces changed ones, ends deleted ones, each independently.

The file's engines start together with a change of the file, which is refused when one of them fails. The store's engines must not delay
one another, nor a limit changed at the same moment: what needs no new process is in force at once, and an engine's new settings follow
when its new process has taken over. If that fails, the old process and its settings stay, and the reason is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from gateway.core.errors import ConfigError
from gateway.core.ports import EndpointObserver
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.engines")


class Sidecars(Protocol):
    """The part of the supervisor that the reconciler uses."""

    def specs(self) -> dict[str, EngineSpec]:
        """The settings of every engine it has."""
        ...

    async def put(self, spec: EngineSpec) -> None:
        """Starts, replaces or amends one engine. Raises ConfigError and leaves the engine as it was."""
        ...

    async def remove(self, engine: str) -> None:
        """Drains an engine and forgets it."""
        ...


@dataclass(frozen=True)
class Wanted:
    """One engine as the store has it. In a `Target` its model is the path of the file."""

    revision: int
    spec: EngineSpec


@dataclass(frozen=True)
class Failed:
    """Why a revision is not in force. spec: the settings that were tried; None if the model was not found."""

    revision: int
    reason: str
    spec: EngineSpec | None = None


@dataclass(frozen=True)
class Target:
    """What `Reconciler.plan` decided; `Reconciler.pursue` puts it into force.

    wanted: what each engine is to become. in_force: what is in force until then. missing: engines whose model was not found.
    """

    wanted: Mapping[str, Wanted] = field(default_factory=dict)
    in_force: Mapping[str, Wanted] = field(default_factory=dict)
    missing: Mapping[str, Failed] = field(default_factory=dict)

    def specs(self) -> dict[str, EngineSpec]:
        """The settings in force by engine."""
        return {name: one.spec for name, one in self.in_force.items()}


class Reconciler:
    """Brings the sidecars to what the store says, in tasks of its own. Runs on the event loop. Life: `aclose`.

    find: returns a model's path by its name, or raises ConfigError. changed: called when an engine's settings in force, or the reason
    why they are not, have changed. report: (event, engine, detail, outcome) for the audit log and the feed.
    """

    def __init__(
        self,
        sidecars: Sidecars,
        observer: EndpointObserver,
        find: Callable[[str], str],
        changed: Callable[[], None],
        report: Callable[[str, str, dict[str, Any], str], None],
    ) -> None:
        self._sidecars, self._observer, self._find, self._changed, self._report = sidecars, observer, find, changed, report
        self._target = Target()
        self._failed: dict[str, Failed] = {}
        self._mine: set[str] = set()
        """Engines started here, to be ended here once the store no longer has them."""
        self._rolling: dict[str, Awaitable[None]] = {}
        self._tasks = TaskOwner("reconciler")

    # --- what is in force

    def plan(self, engines: Mapping[str, Wanted]) -> Target:
        """Decides what is in force of the store's sidecars until their processes have followed: the new settings if they need no other
        process or there is none yet, else those that run. Changes nothing."""
        running = self._sidecars.specs()
        wanted: dict[str, Wanted] = {}
        in_force: dict[str, Wanted] = {}
        missing: dict[str, Failed] = {}
        for name, given in engines.items():
            spec = running.get(name)
            kept = None if spec is None else self._target.in_force.get(name, Wanted(0, spec))
            try:
                found = Wanted(given.revision, msgspec.structs.replace(given.spec, model=self._find(given.spec.model or "")))
            except ConfigError as error:
                missing[name] = Failed(given.revision, error.message)
                in_force[name] = kept or given
                continue
            wanted[name] = found
            same = spec is None or spec.process_settings == found.spec.process_settings
            in_force[name] = found if kept is None or same else kept
        return Target(wanted, in_force, missing)

    def revision(self, engine: str) -> int | None:
        """The revision in force of one of the store's sidecars; None if none is, or none that serves."""
        found, failed = self._target.in_force.get(engine), self._failed.get(engine)
        if found is None or not found.revision or (failed is not None and failed.revision == found.revision):
            return None
        return found.revision

    def has(self, engine: str) -> bool:
        """Whether the engine is one of the store's sidecars."""
        return engine in self._target.in_force

    def reason(self, engine: str) -> str:
        """Why the newest revision is not in force; "" if it is, or will be."""
        failed = self._failed.get(engine)
        return "" if failed is None else failed.reason

    def adopt(self, engines: Iterable[str]) -> None:
        """These run already; those that are the store's are ended here once it no longer has them."""
        self._mine.update(engines)

    # --- following it

    def pursue(self, target: Target, own: Iterable[str]) -> None:
        """Puts a target into force and starts what it leaves to be done. own: the file's engines, which are not ended here; looked through
        only if there are sidecars of the store."""
        self._target = target
        running = self._sidecars.specs()
        self._failed = {name: failed for name, failed in self._failed.items() if self._still_failed(name, failed)}
        for name, failed in target.missing.items():
            self._fail(name, failed, running.get(name))
        if self._mine:
            self._mine.difference_update(own)
        for name in (*target.wanted, *(self._mine - set(target.wanted) - set(target.in_force))):
            if name not in self._rolling and self._due(name, running.get(name)):
                self._rolling[name] = self._tasks.spawn(self._roll(name), name=name)

    def _still_failed(self, name: str, failed: Failed) -> bool:
        """Whether a failure is about the settings that are wanted now."""
        wanted = self._target.wanted.get(name)
        if wanted is None:
            return name in self._target.missing
        return (failed.revision, failed.spec) == (wanted.revision, wanted.spec)

    def retry(self) -> None:
        """Lets the next `pursue` try again what failed."""
        self._failed.clear()

    async def settled(self) -> None:
        """Waits until nothing is under way."""
        while self._rolling:
            await next(iter(self._rolling.values()))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def _due(self, name: str, running: EngineSpec | None) -> bool:
        wanted = self._target.wanted.get(name)
        if wanted is None:
            return name in self._mine and name not in self._target.in_force
        failed = self._failed.get(name)
        if failed is not None and (failed.revision, failed.spec) == (wanted.revision, wanted.spec):
            return False
        return running != wanted.spec

    async def _roll(self, name: str) -> None:
        """Changes one engine until it matches its target, which may move meanwhile."""
        try:
            while self._due(name, self._sidecars.specs().get(name)):
                wanted = self._target.wanted.get(name)
                if wanted is None:
                    self._mine.discard(name)
                    self._failed.pop(name, None)
                    await self._sidecars.remove(name)
                    continue
                self._mine.add(name)
                try:
                    await self._sidecars.put(wanted.spec)
                except ConfigError as error:
                    self._fail(name, Failed(wanted.revision, error.message, wanted.spec), self._sidecars.specs().get(name))
                else:
                    self._failed.pop(name, None)
                self._changed()
        finally:
            self._rolling.pop(name, None)

    def _fail(self, name: str, failed: Failed, running: EngineSpec | None) -> None:
        if self._failed.get(name) == failed:
            return
        self._failed[name] = failed
        log.error("engine %s of the store: revision %d is not in force: %s", name, failed.revision, failed.reason)
        if running is None:
            self._observer.engine_down(name, failed.reason)
        kept = None if running is None else running.version
        self._report("rollout_failed", f"engines/{name}", {"revision": failed.revision, "reason": failed.reason, "kept": kept}, "failed")
