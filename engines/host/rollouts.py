"""Sidecars of the store's engines: a new one is started, a changed one replaced, a deleted one ended, each by itself.

The engines of the file start together with a change of the file, which is refused when one of them fails. Those of the store must not
hold up one another, nor a limit that was changed at the same moment: what needs no process is in force at once, and an engine's new
settings follow when its new process has taken over. When that fails, the old process and its settings stay, and the reason is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from gateway.core.errors import ConfigError
from gateway.core.ports import EndpointObserver
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.engines")


class Sidecars(Protocol):
    """What of the supervisor is needed."""

    def specs(self) -> dict[str, EngineSpec]:
        """The settings of every engine it has."""
        ...

    async def put(self, spec: EngineSpec) -> None:
        """Starts, replaces or amends one engine. Raises ConfigError; then it is as it was before."""
        ...

    async def remove(self, engine: str) -> None:
        """Drains an engine and forgets it."""
        ...


@dataclass(frozen=True)
class Wanted:
    """What the store says of one engine, its model's file found."""

    revision: int
    spec: EngineSpec


@dataclass(frozen=True)
class Failed:
    """Why a revision is not in force. `spec` is the one that was tried; None: its model was not found."""

    revision: int
    reason: str
    spec: EngineSpec | None = None


class Rollouts:
    """Brings the sidecars to what the store says, in tasks of its own. Everything here runs on the event loop.

    find: a model's path by its name, raises ConfigError. changed: called when an engine's settings in force have changed, or why they
    have not. report: (event, engine, detail, outcome) for the audit log and the feed. Life: `aclose`.
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
        self._wanted: dict[str, Wanted] = {}
        self._in_force: dict[str, Wanted] = {}
        self._next: tuple[dict[str, Wanted], dict[str, Wanted]] = ({}, {})
        self._failed: dict[str, Failed] = {}
        self._mine: set[str] = set()
        """Engines that were started here: what the store no longer has of them is ended here."""
        self._rolling: dict[str, Awaitable[None]] = {}
        self._tasks = TaskOwner("rollouts")

    # --- what is in force

    def plan(self, engines: Mapping[str, Wanted]) -> dict[str, EngineSpec]:
        """What of these sidecars (as the store has them) is to be in force now: the new settings where they need no other process, or
        where there is none yet; else those that run. `pursue` then puts the plan into force and sees to the rest."""
        running = self._sidecars.specs()
        wanted: dict[str, Wanted] = {}
        planned: dict[str, Wanted] = {}
        for name, given in engines.items():
            spec = running.get(name)
            kept = None if spec is None else self._in_force.get(name, Wanted(0, spec))
            found = self._resolved(name, given, spec)
            if found is None:
                planned[name] = kept or given
                continue
            wanted[name] = found
            same = spec is None or spec.process_settings == found.spec.process_settings
            planned[name] = found if kept is None or same else kept
        self._next = (wanted, planned)
        return {name: one.spec for name, one in planned.items()}

    def _resolved(self, name: str, given: Wanted, running: EngineSpec | None) -> Wanted | None:
        try:
            found = Wanted(given.revision, msgspec.structs.replace(given.spec, model=self._find(given.spec.model or "")))
        except ConfigError as error:
            self._fail(name, Failed(given.revision, error.message), running)
            return None
        failed = self._failed.get(name)
        if failed is not None and (failed.revision, failed.spec) != (found.revision, found.spec):
            del self._failed[name]
        return found

    def revision(self, engine: str) -> int | None:
        """The revision in force of a sidecar of the store; None: none, or none that serves."""
        found, failed = self._in_force.get(engine), self._failed.get(engine)
        if found is None or not found.revision or (failed is not None and failed.revision == found.revision):
            return None
        return found.revision

    def has(self, engine: str) -> bool:
        """Whether it is a sidecar of the store."""
        return engine in self._in_force

    def reason(self, engine: str) -> str:
        """Why the newest revision is not in force; "" when it is, or will be."""
        failed = self._failed.get(engine)
        return "" if failed is None else failed.reason

    # --- bringing it about

    def pursue(self, own: frozenset[str]) -> None:
        """The plan is in force: starts what it left to be done. own: engines of the file, which are not ended here."""
        self._wanted, self._in_force = self._next
        self._failed = {name: failed for name, failed in self._failed.items() if name in self._in_force}
        self._mine -= own
        running = self._sidecars.specs()
        for name in (*self._wanted, *(self._mine - set(self._wanted) - set(self._in_force))):
            if name not in self._rolling and self._due(name, running.get(name)):
                self._rolling[name] = self._tasks.spawn(self._roll(name), name=name)

    def retry(self) -> None:
        """What has failed is tried again."""
        self._failed.clear()

    async def settled(self) -> None:
        """Returns when nothing is under way."""
        while self._rolling:
            await next(iter(self._rolling.values()))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def _due(self, name: str, running: EngineSpec | None) -> bool:
        wanted = self._wanted.get(name)
        if wanted is None:
            return name in self._mine and name not in self._in_force
        failed = self._failed.get(name)
        if failed is not None and (failed.revision, failed.spec) == (wanted.revision, wanted.spec):
            return False
        return running != wanted.spec

    async def _roll(self, name: str) -> None:
        """One engine, until it is as it is wanted: that may change meanwhile."""
        try:
            while self._due(name, self._sidecars.specs().get(name)):
                wanted = self._wanted.get(name)
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
