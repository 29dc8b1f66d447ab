"""New processes for running engines: all engines of one change, or none.

prepare:    each new process starts beside its old one, gets ready and answers its warm-up before any of them gets traffic.
shift:      shares of the traffic move step by step (engines.host.shift_plan); engines that are done first wait for the others.
stop-first: if both processes do not fit into memory and it is allowed, the old one ends before the new one starts.
promote:    the new processes come into force at once; the old ones end when their last requests have ended.

Whatever fails on the way is undone: the old processes get all traffic back, the new ones end, and EngineChangeFailed says why.
`abort` undoes it on an operator's behalf, at the next moment at which nothing is half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engines.host.process import SidecarProcess, within
from engines.host.shift_plan import Observed, ShiftPlan
from engines.host.warmup import WarmupFailed, warm
from gateway.core.clock import Clock
from gateway.core.errors import EngineChangeFailed
from gateway.core.ports import EngineTraffic, TrafficShift
from gateway.core.specs import EngineSpec

log = logging.getLogger("gatehouse.engines")
OnEvent = Callable[[str, str, dict[str, Any]], None]


class House(Protocol):
    """What a change needs from the supervisor."""

    traffic: EngineTraffic
    on_event: OnEvent
    clock: Clock

    def candidate(self, spec: EngineSpec, old: SidecarProcess | None) -> SidecarProcess:
        """Starts a new process that nobody is told about until it is promoted."""
        ...

    def install(self, process: SidecarProcess) -> None:
        """Makes it the engine's process."""
        ...

    def retire(self, process: SidecarProcess) -> None:
        """Ends, in the background, a process that gets no new requests, once its last one has ended."""
        ...

    def end(self, process: SidecarProcess) -> None:
        """Ends, in the background and at any stage, a process that has no traffic."""
        ...

    async def empty(self, process: SidecarProcess) -> None:
        """Waits until a process that gets no new requests has none left, then ends it; bounded."""
        ...

    async def restore(self, spec: EngineSpec) -> None:
        """Starts an engine again with its old settings and waits for it; bounded."""
        ...


class Replacement:
    """One engine's new process on its way to replace the old one."""

    def __init__(self, house: House, old: SidecarProcess, spec: EngineSpec) -> None:
        self._house, self.old, self.spec = house, old, spec
        self.old_spec = old.spec
        self.steps = ShiftPlan(spec.rollout, house.clock.monotonic())
        self.started_at = house.clock.wall()
        self.phase = "loading"
        self.shift: TrafficShift | None = None
        self.stopped_first = False
        self.peers: Sequence[Replacement] = (self,)
        """All replacements of the same change: they come into force, or go back, together."""
        self.over = asyncio.Event()
        """Set when it is in force, or everything is as before."""
        self.aborted: str | None = None
        """Who or what takes it back."""
        self._wake: Callable[[], None] | None = None
        self.new = house.candidate(spec, old)

    def view(self) -> dict[str, Any]:
        """The replacement as operators see it. since: when it began, in seconds since the epoch."""
        shift = self.shift
        return {
            "phase": self.phase,
            "version": self.spec.version,
            "from_version": self.old_spec.version,
            **self.steps.view(),
            "since": self.started_at,
            "requests": shift.requests if shift is not None else 0,
            "failures": shift.failures if shift is not None else 0,
        }

    async def prepare(self) -> None:
        """Waits until the new process is ready and warm. Raises EngineChangeFailed."""
        try:
            await self.new.first_ready()
            self.phase = "warming"
            await warm(self.new.served_at, self.new.row, self.spec, self.new.health)
        except EngineChangeFailed:
            self._unless_aborted()
            raise
        except WarmupFailed as error:
            self._unless_aborted()
            raise self._rolled_back(f"its new process did not pass the warm-up: {error}") from None
        self._unless_aborted()

    def abort(self, reason: str) -> None:
        """Takes it back, unless that is under way. A new process that is still loading is ended, so that nobody waits for it."""
        if self.aborted is not None or self.phase == "rolling back":
            return
        self.aborted = reason
        if self._wake is not None:
            self._wake()
        if self.phase in ("loading", "warming", "replacing"):  # later it has traffic and is emptied first
            self._house.end(self.new)

    def _unless_aborted(self) -> None:
        if self.aborted is not None:
            raise self._rolled_back(self.aborted)

    def begin(self, wake: Callable[[], None]) -> None:
        """Starts to move traffic. wake: called when a decision may be due early."""
        self.phase, self._wake = "shifting", wake
        if self.old.state != "ready":
            return  # nothing to move: it comes into force together with the others
        self.shift = self._house.traffic.shift(self.spec.name, self.new.served_at, self.new.slots, self.spec.rollout.max_failures)
        self.shift.over.add_callback(wake)
        self.new.on_lost = self.old.on_lost = wake

    def step(self) -> bool:
        """Takes one decision. Returns False when the last share has had its time. Raises EngineChangeFailed to roll back."""
        self._unless_aborted()
        if self.shift is None:
            return False
        decision = self.steps.decide(self._observed())
        if decision == "back":
            raise self._rolled_back(self.steps.reason)
        if decision == "moved":
            self.shift.move(self.steps.share)
            self._house.on_event("engine_rollout", self.spec.name, {"version": self.spec.version, **self.steps.view()})
        return decision != "done"

    def _observed(self) -> Observed:
        failures, requests = (self.shift.failures, self.shift.requests) if self.shift is not None else (0, 0)
        lost = None if self.new.state == "ready" else self.new.reason or f"it is {self.new.state}"
        return Observed(self._house.clock.monotonic(), failures, requests, lost, self.old.state == "ready")

    def check(self) -> None:
        """Checks once more before it comes into force: the others may have taken a while. Raises EngineChangeFailed."""
        self._unless_aborted()
        seen = self._observed()
        if seen.lost is not None or seen.failures > self.spec.rollout.max_failures:
            self.steps.decide(seen)
            raise self._rolled_back(self.steps.reason)

    def promote(self) -> None:
        """Makes the new process the engine's. Synchronous, so that all of a change come into force together."""
        detail = {"version": self.spec.version, "from_version": self.old_spec.version, "sha256": self.new.health.get("sha256")}
        counts = {} if self.shift is None else {"requests": self.shift.requests, "failures": self.shift.failures}
        self._house.install(self.new)
        self.new.promote()
        self.phase = "in force"
        if self.shift is not None:
            self.shift.end()
        if not self.stopped_first:
            self._house.retire(self.old)
        self._house.on_event("engine_replaced", self.spec.name, {**detail, **counts, "stopped_first": self.stopped_first})

    async def stop_first(self) -> None:
        """Replaces a process that does not fit beside the old one; requests wait in their queues meanwhile. Raises EngineChangeFailed if
        the new one does not come; the old one has then been restarted."""
        traffic, name = self._house.traffic, self.spec.name
        self._unless_aborted()
        self.phase, self.stopped_first = "replacing", True
        traffic.engine_unloading(name)
        await self._house.empty(self.old)
        self._unless_aborted()
        traffic.engine_starting(name, awaited=True)
        self.new = self._house.candidate(self.spec, None)
        await self.prepare()
        self.check()
        self.promote()

    async def give_up(self, reason: str) -> None:
        """Restores everything as it was."""
        if self.shift is not None:
            self.shift.end()
        self.phase = "rolling back"
        self._house.on_event(
            "engine_rolled_back", self.spec.name, {"version": self.spec.version, "to_version": self.old_spec.version, "reason": reason}
        )
        if not self.stopped_first:
            self._house.retire(self.new)
            return
        self._house.traffic.engine_unloading(self.spec.name)
        await self._house.empty(self.new)
        self._house.traffic.engine_starting(self.spec.name, awaited=True)
        await self._house.restore(self.old_spec)

    def _rolled_back(self, reason: str) -> EngineChangeFailed:
        return EngineChangeFailed(f"engine {self.spec.name!r}: rolled back: {reason}", code="rolled_back")


async def replace(made: Sequence[Replacement], stop_first: bool, clock: Clock) -> None:
    """Replaces all of them, or none. stop_first: the setting `rollout.stop_first` for all of them. Raises EngineChangeFailed."""
    begun = list(made)
    try:
        short = await _prepared(made, stop_first)
        for one in short:
            await one.new.stop(0.0, silent=True)
        beside = [one for one in made if one not in short]
        await _move(beside, clock)
        for one in short:
            await one.stop_first()
        for one in beside:
            one.check()
    except EngineChangeFailed as error:
        log.warning("%s", error)
        await asyncio.gather(*(one.give_up(error.message) for one in begun))
        raise
    except asyncio.CancelledError:
        for one in begun:
            if one.shift is not None:
                one.shift.end()
        raise
    for one in beside:
        one.promote()


async def _prepared(made: Sequence[Replacement], stop_first: bool) -> list[Replacement]:
    """Waits until all are ready and warm. Returns those whose old process must be stopped first for want of memory. Raises
    EngineChangeFailed."""
    outcomes = await asyncio.gather(*(one.prepare() for one in made), return_exceptions=True)
    short = []
    for one, outcome in zip(made, outcomes, strict=True):
        if (
            isinstance(outcome, EngineChangeFailed)
            and outcome.code == "insufficient_memory"
            and (stop_first or one.spec.rollout.stop_first)
        ):
            short.append(one)
        elif isinstance(outcome, EngineChangeFailed) and outcome.code == "insufficient_memory":
            raise EngineChangeFailed(
                f"{outcome.message}; it must fit beside the process that it replaces, or that one must be stopped first (stop_first)",
                code=outcome.code,
            )
        elif isinstance(outcome, BaseException):
            raise outcome
    return short


async def _move(made: Sequence[Replacement], clock: Clock) -> None:
    """Moves all traffic, each engine by its own steps; one that is done first keeps its last share. Raises EngineChangeFailed."""
    news = asyncio.Event()
    for one in made:
        one.begin(news.set)
    moving = list(made)
    while moving := [one for one in moving if one.step()]:
        due = min(one.steps.until for one in moving)
        await within(news.wait(), max(0.0, due - clock.monotonic()))
        news.clear()
