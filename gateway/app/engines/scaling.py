"""Scaling hints: how many replicas each pool and each engine with `scale` should have; and the copies of sidecars that follow them.

Looked at once a second, in the process that has the supervisor. What is advised is pure (policies.scaling). Copies are ordinary engines
that rest until they are needed (gateway.config.expand): a new one takes traffic once it is ready, and one that goes is drained before it
stops, over all workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, Metric

from engines.host.supervisor import Supervisor
from gateway.app.engines.endpoint_loads import Loads, load_of
from gateway.core.clock import Clock
from gateway.core.engine_copies import COPY, is_copy
from gateway.core.errors import EngineChangeFailed, GatehouseError
from gateway.core.slices import Steps, in_slices, portions
from gateway.core.snapshot import ModelEntry
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSpec, ScaleSpec
from gateway.core.tasks import TaskOwner
from gateway.routing.endpoints import Endpoint
from gateway.telemetry.lazy_families import LazyGaugeMetricFamily
from policies.scaling import Advice, Load, Scaler, ScaleRules, own_need_of

log = logging.getLogger("gatehouse.scaling")

LOOK_SECONDS: Final = 1.0
PORTION: Final = 256
"""Pools whose queues are read in one step."""
PACE: Final = 2000
"""Pools that are judged in LOOK_SECONDS."""
MANY: Final = 100_000
"""The most replicas of a pool whose engines say nothing of it."""
BLOCKED_SECONDS: Final = 30.0
"""Until a copy that could not be started is tried again; twice as long each time, up to MOST_BLOCKED."""
MOST_BLOCKED: Final = 600.0


class Hint(Struct, frozen=True):
    """What is advised for one pool or engine, and from what."""

    advice: Advice
    load: Load
    rules: ScaleRules
    blocked: str = ""
    """Why the last copy could not be started."""


class Scaling:
    """stated: the settings in force, with copies and before names are resolved. models: the models in force by name.
    queued: (model) -> requests that wait for a slot. Life: `start` once the engines have been started, `aclose`."""

    def __init__(
        self,
        stated: Callable[[], ConfigSpec],
        models: Callable[[], Iterable[ModelEntry]],
        loads: Loads,
        queued: Callable[[ModelEntry], int],
        supervisor: Supervisor,
        clock: Clock,
    ) -> None:
        self._stated, self._models, self._loads, self._queued = stated, models, loads, queued
        self._supervisor, self._now = supervisor, clock.monotonic
        self._owner = TaskOwner("scaling")
        self._scalers: dict[tuple[str, str], Scaler] = {}
        self._standing: dict[str, float] = {}
        """Since when requests have been waiting for each pool."""
        self._due = 0.0
        self._acting: set[str] = set()
        self._blocked: dict[str, tuple[float, int, str]] = {}
        """Copy -> until when it is not tried again, failures in a row, the last reason."""
        self.pools: dict[str, Hint] = {}
        self.engines: dict[str, Hint] = {}
        self._starts: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        self._owner.spawn(self.look(), name="first look")
        self._owner.every(LOOK_SECONDS, self.look, name="look")

    async def aclose(self) -> None:
        await self._owner.aclose()

    # --- looking

    async def look(self) -> None:
        """Judges every pool and engine anew, and starts or stops copies. Very many pools are judged less often."""
        now = self._now()
        if now >= self._due:
            await in_slices(self._judged(now, self._stated()))
            self._due = now + LOOK_SECONDS * (len(self.pools) // PACE)

    def _judged(self, now: float, stated: ConfigSpec) -> Steps[None]:
        loads = self._loads()
        yield
        entries = {entry.name: entry for entry in self._models()}
        yield
        queues: dict[str, int] = {}
        for some in portions(list(entries.values()), PORTION):
            queues.update([(entry.name, self._queued(entry)) for entry in some])
            yield
        self._standing = {name: self._standing.get(name, now) for name, waiting in queues.items() if waiting}
        scaled = {engine.name: engine for engine in stated.engines if engine.scale is not None}
        yield
        pools: dict[str, Hint] = {}
        for name, entry in entries.items():
            members = _members(entry.spec)
            rules = _rules_of_pool([_base(member) for member in members], scaled) if scaled else rules_of(None)
            carried = [loads[member] for member in members if member in loads]
            pools[name] = self._hint("pools", name, carried, rules, queues[name], now - self._standing.get(name, now), now)
            yield
        engines = yield from self._engines(scaled, loads, entries, queues, now)
        self.pools, self.engines = pools, engines
        self._scalers = {key: scaler for key, scaler in self._scalers.items() if key[1] in (pools if key[0] == "pools" else engines)}
        for name, hint in self.engines.items():
            if scaled[name].runtime != "external":
                self._follow(scaled[name], hint.advice.desired, now)

    def _engines(
        self,
        scaled: dict[str, EngineSpec],
        loads: dict[str, tuple[Endpoint, int]],
        entries: dict[str, ModelEntry],
        queues: dict[str, int],
        now: float,
    ) -> Steps[dict[str, Hint]]:
        found: dict[str, Hint] = {}
        if not scaled:
            return found
        shares = _shares(entries.values(), queues, scaled)
        yield
        copies: dict[str, list[tuple[Endpoint, int]]] = {}
        for place, load in loads.items():
            copies.setdefault(_base(place), []).append(load)
        yield
        for name, engine in scaled.items():
            standing = self._longest(name, entries, now)
            found[name] = self._hint("engines", name, copies.get(name, []), rules_of(engine.scale), shares.get(name, 0.0), standing, now)
            yield
        return found

    def _longest(self, engine: str, entries: dict[str, ModelEntry], now: float) -> float:
        """How long requests have been waiting for the pool of this engine where they have been waiting longest."""
        since = [at for name, at in self._standing.items() if name in entries and engine in _bases(entries[name].spec)]
        return now - min(since, default=now)

    def _hint(
        self,
        kind: str,
        name: str,
        members: Sequence[tuple[Endpoint, int]],
        rules: ScaleRules,
        queued: float,
        queued_for: float,
        now: float,
    ) -> Hint:
        load = load_of(members, queued, queued_for)
        scaler = self._scalers.get((kind, name))
        if scaler is None:
            scaler = self._scalers[kind, name] = Scaler(max(1, load.replicas))
        advice = scaler.decide(now, load, rules)
        blocked = self._blocked.items() if kind == "engines" else ()
        reasons = [held[2] for copy, held in blocked if _base(copy) == name and held[0] > now]
        return Hint(advice, load, rules, reasons[0] if reasons else "")

    # --- following

    def _follow(self, engine: EngineSpec, desired: int, now: float) -> None:
        """Starts or stops copies of a sidecar until there are so many, itself included, which is never stopped here."""
        copies = [name for name in self._supervisor.specs() if is_copy(name) and _base(name) == engine.name]
        copies.sort(key=lambda name: int(name.rpartition(COPY)[2]))
        running = [name for name in copies if self._supervisor.runs(name)]
        wanted = desired - 1 if self._supervisor.runs(engine.name) else 0
        if len(running) < wanted:
            busy = {*running, *self._acting, *(name for name, held in self._blocked.items() if held[0] > now)}
            idle = [name for name in copies if name not in busy]
            starting = [name for name in self._acting if name in copies and name not in running]
            for name in idle[: max(0, wanted - len(running) - len(starting))]:
                self._act(name, self._bring(name))
        for name in running[wanted:]:
            if name not in self._acting:
                self._act(name, self._take(name))

    def _act(self, name: str, work: Any) -> None:
        self._acting.add(name)
        self._owner.spawn(work, name=name)

    async def _bring(self, copy: str) -> None:
        try:
            log.info("engine %s: a copy is started", copy)
            await self._supervisor.load(copy)
        except EngineChangeFailed as error:
            failures = self._blocked.get(copy, (0.0, 0, ""))[1] + 1
            pause = min(MOST_BLOCKED, BLOCKED_SECONDS * 2.0 ** min(failures - 1, 10))
            self._blocked[copy] = (self._now() + pause, failures, error.message)
            self._count(copy, "failed")
            log.warning("engine %s: a copy could not be started, tried again in %.0f s: %s", copy, pause, error.message)
        except GatehouseError:  # it has gone from the configuration meanwhile
            self._blocked.pop(copy, None)
        else:
            self._blocked.pop(copy, None)
            self._count(copy, "started")
        finally:
            self._acting.discard(copy)

    async def _take(self, copy: str) -> None:
        try:
            log.info("engine %s: a copy is drained and stopped", copy)
            await self._supervisor.unload(copy, reason="not needed now")
            self._count(copy, "stopped")
        except GatehouseError:  # it has gone from the configuration meanwhile
            pass
        finally:
            self._acting.discard(copy)

    def _count(self, copy: str, outcome: str) -> None:
        key = (_base(copy), outcome)
        self._starts[key] = self._starts.get(key, 0) + 1

    # --- what is shown

    def view(self) -> dict[str, Any]:
        """The port of the admin API: `pools` and `engines`, each with `name`."""
        return {kind: [_shown(name, hint) for name, hint in sorted(found.items())] for kind, found in self._kinds()}

    def _kinds(self) -> tuple[tuple[str, dict[str, Hint]], ...]:
        return ("pools", self.pools), ("engines", self.engines)

    def collect(self) -> Iterable[Metric]:
        pools, engines = list(self.pools.items()), list(self.engines.items())
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_desired_replicas", "Replicas that a pool should have", pools, _read("pool", _desired)
        )
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_replicas", "Replicas that a pool has, those that are starting included", pools, _read("pool", _replicas)
        )
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_need_replicas", "Replicas that the load of a pool from here fills, a fraction", pools, _read("pool", _need)
        )
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_engine_desired_replicas", "Replicas that an engine should have", engines, _read("engine", _desired)
        )
        yield LazyGaugeMetricFamily("gatehouse_scaling_engine_replicas", "Replicas that an engine has", engines, _read("engine", _replicas))
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_engine_need_replicas", "Replicas that the load of an engine from here fills", engines, _read("engine", _need)
        )
        yield LazyGaugeMetricFamily(
            "gatehouse_scaling_queued_seconds", "For how long requests have been waiting for slots", pools, _read("pool", _queued_for)
        )
        copies = CounterMetricFamily(
            "gatehouse_scaling_copies",
            "Copies of engines that were started, stopped, or could not be started",
            labels=["engine", "outcome"],
        )
        for (name, outcome), count in self._starts.items():
            copies.add_metric([name, outcome], count)
        yield copies


_Named = tuple[str, Hint]


def _read(label: str, value: Callable[[Hint], float]) -> Callable[[_Named], list[tuple[dict[str, str], float]]]:
    return lambda named: [({label: named[0]}, float(value(named[1])))]


def _desired(hint: Hint) -> float:
    return hint.advice.desired


def _replicas(hint: Hint) -> float:
    return hint.load.replicas


def _need(hint: Hint) -> float:
    return own_need_of(hint.load, hint.rules)


def _queued_for(hint: Hint) -> float:
    return hint.load.queued_for


def _shown(name: str, hint: Hint) -> dict[str, Any]:
    advice, load, rules = hint.advice, hint.load, hint.rules
    return {
        "name": name, "desired": advice.desired, "need": round(advice.need, 4), "reason": advice.reason, "replicas": load.replicas,
        "ready": load.ready, "slots": load.slots, "busy": load.busy, "waiting": load.waiting, "queued_seconds": round(load.queued_for, 3),
        "kv": load.kv, "load_seconds": load.load_seconds, "min": rules.min, "max": rules.max, "blocked": hint.blocked,
    }  # fmt: skip


def rules_of(scale: ScaleSpec | None) -> ScaleRules:
    """The settings as the decision reads them; None: the defaults, for a pool without `scale`."""
    if scale is None:
        return ScaleRules(max=MANY)
    return ScaleRules(
        min=scale.min,
        max=scale.max,
        target=scale.target,
        target_kv=scale.target_kv,
        max_wait=scale.max_wait,
        stabilization=scale.stabilization,
    )


def _rules_of_pool(engines: Sequence[str], scaled: dict[str, EngineSpec]) -> ScaleRules:
    """Those of its engines together; no bound above while one of them has none."""
    names = list(dict.fromkeys(engines))
    given = [scaled[name].scale for name in names if name in scaled]
    if not given:
        return rules_of(None)
    first = rules_of(given[0])
    least = sum(scale.min for scale in given if scale is not None) + len(names) - len(given)
    most = sum(scale.max for scale in given if scale is not None) if len(given) == len(names) else MANY
    return ScaleRules(
        min=least,
        max=most,
        target=first.target,
        target_kv=first.target_kv,
        max_wait=first.max_wait,
        stabilization=first.stabilization,
    )


def _members(model: ModelSpec) -> list[str]:
    return [member if isinstance(member, str) else member.engine for member in model.pool]


def _base(name: str) -> str:
    """The engine of the configuration that a copy or an address belongs to."""
    return name.partition("@")[0].partition(COPY)[0]


def _bases(model: ModelSpec) -> set[str]:
    return {_base(member) for member in _members(model)}


def _shares(entries: Iterable[ModelEntry], queues: dict[str, int], scaled: dict[str, EngineSpec]) -> dict[str, float]:
    """What of the queues each engine that is scaled answers for: those of its pools, in equal parts where several of a pool are scaled."""
    shares: dict[str, float] = {}
    for entry in entries:
        mine = [base for base in _bases(entry.spec) if base in scaled]
        for base in mine:
            shares[base] = shares.get(base, 0.0) + queues[entry.name] / len(mine)
    return shares
