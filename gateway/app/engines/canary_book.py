"""Engines on trial: compares their figures with the bounds of the trial, and withdraws engines that miss them.

A withdrawal is a resource of the store, so it is in force on every replica and after a restart. It sets the engine's weight in the model's
pool to 0 when a configuration is built (`applied`). Nothing but a person takes it back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from math import inf
from typing import Any, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.app.store.following import Followed
from gateway.core.errors import AlreadyExists, NotFound, StoreUnavailable
from gateway.core.rollouts import CanaryFigures, Side
from gateway.core.specs import ConfigSpec, ModelSpec, PoolMemberSpec
from gateway.core.specs.rollouts import CanarySpec
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner
from policies.canaries import verdict

log = logging.getLogger("gatehouse")
KIND: Final = "withdrawals"
LOOK_SECONDS: Final = 1.0
"""Between two looks at the figures."""
STORE_SECONDS: Final = 2.0
MOST: Final = 512
"""Parts of a window: longer ones have longer parts."""
Which = tuple[str, str]
"""Model and engine."""


class Window:
    """What came in the last seconds of one trial, in parts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.parts: deque[tuple[float, Side, Side]] = deque()

    def add(self, now: float, canary: Side, others: Side) -> None:
        if self.parts and now - self.parts[-1][0] < self.seconds / MOST:
            self.parts[-1][1].add(canary)
            self.parts[-1][2].add(others)
        elif canary.answers or others.answers:
            self.parts.append((now, canary, others))
        while self.parts and self.parts[0][0] < now - self.seconds:
            self.parts.popleft()

    def sums(self) -> tuple[Side, Side]:
        canary, others = Side(), Side()
        for _, one, other in self.parts:
            canary.add(one)
            others.add(other)
        return canary, others


class CanaryBook:
    """Trials, in the process with the store. told: the figures of all processes that serve, by their id. record: (event, target, detail).
    Life: `start`, then `look` every LOOK_SECONDS and `heard` for the feed; the owner ends its tasks."""

    def __init__(
        self,
        store: ControlStore,
        spec: Callable[[], ConfigSpec],
        refresh: Callable[[], None],
        record: Callable[..., None],
        owner: TaskOwner,
    ) -> None:
        self._store, self._spec, self._refresh, self._record = store, spec, refresh, record
        self._stored: dict[Which, dict[str, Any]] = {}
        self._pending: dict[Which, dict[str, Any]] = {}
        """Withdrawals that are in force here but not yet in the store."""
        self._alone: set[Which] = set()
        """Pending ones of which the log has said that."""
        self._windows: dict[Which, Window] = {}
        self._anew: dict[Which, float] = {}
        """When it was put back: what came before is no longer held against it."""
        self._last: dict[tuple[str, str], tuple[float, CanaryFigures]] = {}
        """By process and model: when figures were last asked for, and what they were."""
        self._followed = Followed(store, KIND, self._take, owner)
        self.start, self.heard = self._followed.start, self._followed.heard
        self._began = False

    def begin(self) -> None:
        """A configuration is in force: changes from now on put another one into force."""
        self._began = True

    @property
    def withdrawn(self) -> dict[Which, dict[str, Any]]:
        return {**self._pending, **self._stored}

    def _take(self, found: list[Resource]) -> None:
        before = self.withdrawn.keys()
        self._stored = {(str(one.body["model"]), str(one.body["engine"])): {**one.body, "at": one.created} for one in found}
        for which in self._stored.keys() & self._pending.keys():
            del self._pending[which]
        for which in before - self.withdrawn.keys():  # what was seen before a person put it back is no longer held against it
            self._forget(which)
        if self._began and before != self.withdrawn.keys():
            self._refresh()

    def _forget(self, which: Which) -> None:
        self._windows.pop(which, None)
        self._anew[which] = time.monotonic()

    # --- the configuration

    def applied(self, spec: ConfigSpec) -> ConfigSpec:
        """The settings with the weights of what is withdrawn at 0, wherever others are left."""
        gone = self.withdrawn
        if not gone:
            return spec
        return msgspec.structs.replace(spec, models=tuple(_without(model, gone) for model in spec.models))

    # --- what is judged

    async def look(self, told: dict[str, dict[str, CanaryFigures]], silent: Collection[str] = (), asked: float | None = None) -> None:
        """Judges every trial by what is new. told: figures by process and model. silent: processes that have not told theirs this time.
        asked: when they were asked (time.monotonic)."""
        now, specs = time.monotonic(), {model.name: model.canary for model in self._spec().models if model.canary is not None}
        for model, spec in specs.items():
            which = (model, spec.engine)
            window = self._windows.get(which)
            if window is None or window.seconds != spec.window:
                window = self._windows[which] = Window(spec.window)
            window.add(now, *self._news(told, model, spec, now if asked is None else asked))
            if which not in self.withdrawn:
                await self._judge(which, spec, window)
        for which in self._windows.keys() - {(model, spec.engine) for model, spec in specs.items()}:
            del self._windows[which]
            self._anew.pop(which, None)
        self._last = {key: last for key, last in self._last.items() if (key[0] in told or key[0] in silent) and key[1] in specs}
        self._alone.intersection_update(self._pending)
        for which in list(self._pending):
            await self._write(which)

    def _news(self, told: dict[str, dict[str, CanaryFigures]], model: str, spec: CanarySpec, asked: float) -> tuple[Side, Side]:
        canary, others = Side(), Side()
        anew = self._anew.get((model, spec.engine), -inf)
        for process, figures in told.items():
            one = figures.get(model)
            if one is None or one.engine != spec.engine:
                continue
            since, before = self._last.get((process, model), (inf, one))
            if since == inf or before.engine != one.engine or one.canary.answers < before.canary.answers:
                before = CanaryFigures(one.engine)
            if since > anew:
                canary.add(one.canary.since(before.canary))
                others.add(one.others.since(before.others))
            self._last[process, model] = (asked, msgspec.structs.replace(one, canary=copied(one.canary), others=copied(one.others)))
        return canary, others

    async def _judge(self, which: Which, spec: CanarySpec, window: Window) -> None:
        canary, others = window.sums()
        why = verdict(spec, canary, others)
        if not why:
            return
        model, engine = which
        detail = {"model": model, "engine": engine, "reason": why, "requests": canary.answers, "errors": canary.errors}
        self._pending[which] = {**detail, "at": time.time()}
        log.error("the engine %s gets no more requests of %s: %s", engine, model, why)
        self._refresh()
        self._record("canary_withdrawn", model, detail, outcome="failed")

    async def _write(self, which: Which) -> None:
        model, engine = which
        body = {key: value for key, value in self._pending[which].items() if key != "at"}
        try:
            async with asyncio.timeout(STORE_SECONDS), self._followed.lock:
                made = await self._store.create(KIND, name_of(which), body, actor="gatehouse")
                self._stored[which] = {**body, "at": made.created}
                self._pending.pop(which, None)
        except AlreadyExists:
            self._followed.refresh()  # another replica was faster
        except (StoreUnavailable, TimeoutError):
            if which in self._alone:  # it is tried every few seconds
                return
            self._alone.add(which)
            log.warning("the withdrawal of %s from %s is not in the store yet: it is in force on this replica alone", engine, model)

    # --- for operators

    def views(self) -> dict[str, tuple[CanarySpec, dict[str, Any] | None, Side, Side]]:
        """The trials by model: why the engine is withdrawn, None while it is not; what came in the window, of it and of the others. An
        engine that was withdrawn and is no longer on trial has defaults for its trial's settings."""
        found, gone = {}, self.withdrawn
        for model in self._spec().models:
            spec = model.canary
            if spec is None and (left := _gone(model, gone)):
                spec = CanarySpec(engine=left[0])
            if spec is not None:
                window = self._windows.get((model.name, spec.engine))
                sides = (Side(), Side()) if window is None else window.sums()
                found[model.name] = (spec, gone.get((model.name, spec.engine)), *sides)
        return dict(sorted(found.items()))

    @property
    def any(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._pending) or any(model.canary is not None for model in self._spec().models)

    async def resume(self, model: str, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Puts a model's engine back; what it was withdrawn for. Raises NotFound, StoreUnavailable."""
        trial = next((one.canary.engine for one in self._spec().models if one.name == model and one.canary is not None), "")
        mine = sorted(one for one in self.withdrawn if one[0] == model)  # several, if others were on trial before
        which = (model, trial) if (model, trial) in mine else next(iter(mine), None)
        if which is None:
            raise NotFound(f"No engine of a model {model[:128]!r} is withdrawn.")
        gone = self.withdrawn[which]
        async with self._followed.lock:
            if which in self._stored:
                try:
                    await self._store.delete(KIND, name_of(which), actor=actor, dry_run=dry_run)
                except NotFound:
                    pass  # another replica was faster
            if not dry_run:
                self._stored.pop(which, None)
                self._pending.pop(which, None)
                self._forget(which)
        if not dry_run:
            self._refresh()
        return gone

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        found = GaugeMetricFamily("gatehouse_canary_withdrawn", "1: an engine on trial was withdrawn", labels=["model", "engine"])
        gone = self.withdrawn
        for model in self._spec().models:
            trial = () if model.canary is None else (model.canary.engine,)
            for engine in sorted({*trial, *_gone(model, gone)}):
                found.add_metric([model.name, engine], float((model.name, engine) in gone))
        yield found


def _gone(model: ModelSpec, gone: Collection[Which]) -> list[str]:
    """The engines of a model's pool that are withdrawn, by name."""
    return (
        sorted(one for one in (one if isinstance(one, str) else one.engine for one in model.pool) if (model.name, one) in gone)
        if gone
        else []
    )


def _without(model: ModelSpec, gone: dict[Which, dict[str, Any]]) -> ModelSpec:
    pool = tuple(PoolMemberSpec(engine=one) if isinstance(one, str) else one for one in model.pool)
    kept = tuple(msgspec.structs.replace(one, weight=0.0) if (model.name, one.engine) in gone else one for one in pool)
    if kept == pool or not any(one.weight > 0 for one in kept):
        return model  # an engine that is alone stays: that it fares badly is better than no answer
    return msgspec.structs.replace(model, pool=kept)


def copied(side: Side) -> Side:
    return msgspec.structs.replace(side, latency=list(side.latency), first=list(side.first))


def name_of(which: Which) -> str:
    """The name of a withdrawal in the store."""
    return sha256("\0".join(which).encode()).hexdigest()[:32]
