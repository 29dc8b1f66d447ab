"""The registry of endpoints. It outlives every snapshot and carries out all effects (clients, timers, probes, events).

    registry = EndpointRegistry(SystemClock(), SystemEntropy(), client_factory, on_change)
    router = build_router(config.models, config.engines, registry)      # changes nothing yet; raises ConfigError
    await in_slices(registry.entering(router))                          # what can be done before; may be left out
    registry.activate(router)                                           # at the swap, on the event loop
    registry.start_probing(HttpProbe())                                 # control plane only
    await registry.aclose()

It implements `EngineTraffic` (the supervisor's reports, and what it asks) and the `endpoints` half of `FleetView`. Reports about engines
that are not configured yet are kept until they are.

Where requests are routed in several worker processes, each has a registry of its own, which follows that of the control process
(gateway.routing.mirror, gateway.routing.follower).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import Any, Final, Protocol

from gateway.core.clock import Clock, Entropy
from gateway.core.errors import GatehouseError
from gateway.core.pauses import Pauses
from gateway.core.ports import EngineClient
from gateway.core.slices import Steps, at_once, in_slices
from gateway.core.specs import BreakerSpec, EngineSpec
from gateway.core.tasks import TaskOwner
from gateway.core.waiting import Signal, as_future
from gateway.routing.breaker import Forced
from gateway.routing.endpoints import Endpoint, OnChange, Process, State, Waiters, identity
from gateway.routing.entering import Entering, Fleet, entering_steps
from gateway.routing.health import Probe, Probed, Prober, ProbeResult
from gateway.routing.scheduler import LoopScheduler, Scheduler
from gateway.routing.shift import Shift
from gateway.routing.view import view

ClientFactory = Callable[[EngineSpec, str], EngineClient]
"""(engine, address) -> a client."""
MANY: Final = 64
"""Of more endpoints that one change adds or removes, what happens to all of them is told as one, and what can wait is done in slices."""
TICK = 0.05
"""Seconds between ticks, which run only while something is timed: open breakers, slow starts, deadlines in queues."""


class Outward(Protocol):
    """What a data worker's registry tells, for the other workers and the control process."""

    def suspected(self, endpoint: Endpoint) -> None:
        """A request failed there: it should be probed."""
        ...

    def learnt(self, endpoint: Endpoint) -> None:
        """The result of a request has opened or closed its breaker."""
        ...

    def queued(self, pool: Waiters) -> None:
        """Requests begin to wait for slots."""
        ...

    def ticked(self) -> None:
        """Called with each tick, and so while requests wait."""
        ...

    def wanted(self, engine: str) -> None:
        """A request waits for an engine that is not loaded."""
        ...

    def activated(self, names: Set[str]) -> None:
        """Other endpoints are in force. names: of those that are new, changed or gone."""
        ...


class Report:
    """The supervisor's last report about an engine. retry_at: monotonic seconds. address, slots: of the last process that was ready."""

    __slots__ = ("address", "awaited", "code", "process", "reason", "retry_at", "slots")

    def __init__(self) -> None:
        self.address: str | None = None
        self.slots = 1
        self.process: Process = "starting"
        self.reason = ""
        self.code: str | None = None
        self.awaited = False
        self.retry_at = 0.0


class EndpointRegistry:
    """See the module. Everything runs on the event loop's thread."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        client_factory: ClientFactory,
        on_change: OnChange | None = None,
        scheduler: Scheduler | None = None,
        on_wanted: Callable[[str], None] | None = None,
        on_many: Callable[[list[str]], None] | None = None,
    ) -> None:
        """on_wanted: called once for each load with the engine that a request waits for. on_many: called instead of `on_change` with the
        names of more than MANY endpoints that are ready as they come into force. Neither may raise."""
        self.clock, self.entropy = clock, entropy
        self.now = clock.monotonic
        self.version = 0
        """Grows with each change of an endpoint's state, upon which routes recompute what they derived from the states."""
        self.shedding = 0
        """Load shedding (gateway.routing.shedding): 0 nothing, 1 batch, 2 standard too, 3 everything."""
        self.active: Fleet | None = None
        self.seen = False
        """Whether any engine has been seen to work since the start: until a first probe succeeds, an external one is only assumed to."""
        self.outward: Outward | None = None
        """Set in a data worker."""
        self.shares: dict[tuple[str, str], int] | None = None
        """In a data worker: (engine, address) -> how many of its slots this worker may use."""
        self.reports: dict[str, Report] = {}
        """Engine -> the supervisor's last report about it."""
        self._client_factory = client_factory
        self._on_change, self._on_wanted, self._on_many = on_change, on_wanted, on_many
        self._entered: list[tuple[str, str]] | None = None
        """While a configuration comes into force: the endpoints that became ready, and why."""
        self._prepared: Entering | None = None
        self._closing: deque[EngineClient] = deque()
        """Clients of removed endpoints that are to be closed, MANY of them at a time."""
        self._closers = 0
        self._scheduler = scheduler or LoopScheduler()
        self._endpoints: dict[str, Endpoint] = {}
        self._leaving: dict[Endpoint, None] = {}
        self._woken: dict[Waiters, None] = {}
        self._queues: dict[Waiters, None] = {}
        self._ticking, self._pauses = False, Pauses(TICK, self.now())
        self._prober: Prober | None = None
        self._tasks = TaskOwner("endpoints")

    # -- configuration -----------------------------------------------------------------------------------------------------------

    def endpoint(self, spec: EngineSpec, breaker: BreakerSpec) -> Endpoint:
        """The endpoint for an engine: the one in force if its connection settings are the same, else a new one, not in force yet."""
        known = self._endpoints.get(spec.name)
        if known is not None and (known.spec is spec or identity(known.spec) == identity(spec)):
            return known
        made = Endpoint(spec, self, breaker)
        made.turn = self.shares is None
        if (address := _fixed(spec)) is not None:
            made.first = self._client_factory(spec, address)  # here, where it can be done in slices; it opens no connection
        return made

    def entering(self, fleet: Fleet) -> Steps[None]:
        """What can be done before a router comes into force, so that `activate` has to look at nothing that has not changed. Call it right
        before that: new endpoints count as ready from now on."""
        self._prepared = yield from entering_steps(self._endpoints, fleet, self._connect_unseen)

    def activate(self, fleet: Fleet) -> Entering:
        """Puts a router's endpoints into force; removed ones finish their attempts. Returns what has changed."""
        if self._prepared is None or self._prepared.fleet is not fleet:
            at_once(self.entering(fleet))
        found, self._prepared = self._prepared, None
        assert found is not None
        self._endpoints, self.active, self._entered = found.endpoints, fleet, []
        self.version += 1
        for endpoint in found.made:
            self._share(endpoint)
            self.told(endpoint, "starting", endpoint.reason)
        for endpoint, spec, breaker in found.changed:
            endpoint.reconfigure(spec, breaker)
            if endpoint.client is None:
                self._connect(endpoint)
        self._tell_entered()
        self._leaving.update(dict.fromkeys(found.gone))
        for endpoint in found.gone[:MANY]:
            endpoint.leave()
        if len(found.gone) > MANY:
            self.spawn(_leave(found.gone[MANY:]), "leave")
        if self._prober is not None:
            self._prober.change([*found.made, *[endpoint for endpoint, _, _ in found.changed]], found.gone, self._endpoints)
        if self.outward is not None:
            self.outward.activated(found.names())
        return found

    def spawn(self, steps: Steps[None], name: str) -> None:
        """Does in slices what can wait; ended with the registry."""
        self._tasks.spawn(in_slices(steps), name=name)

    def start_probing(self, probe: Probe, heard: Callable[[Probed, ProbeResult, bool], None] | None = None) -> None:
        """Probes every endpoint until closed. Call it once, on a running loop. heard: see Prober."""

        def told(probed: Probed, result: ProbeResult, decisive: bool) -> None:
            self.seen = self.seen or result.ok
            self.forsake(probed.name)
            if heard is not None:
                heard(probed, result, decisive)

        self._prober = Prober(probe, self.entropy, told)
        self._prober.change(list(self._endpoints.values()), (), self._endpoints)

    def forsake(self, name: str) -> None:
        """After each probe: while an endpoint is unhealthy, its requests without an answer go elsewhere as far as retries are allowed."""
        endpoint = self._endpoints.get(name)
        if endpoint is not None and endpoint.state == "unhealthy" and endpoint.in_flight and endpoint.client is not None:
            self._scheduler.soon(endpoint.client.forsake)  # not on the stack of the prober

    async def aclose(self) -> None:
        """Ends probing and closes all clients."""
        if self._prober is not None:
            await self._prober.aclose()
            self._prober = None
        for endpoint in (*self._endpoints.values(), *self._leaving):
            if endpoint.client is not None:
                await endpoint.client.aclose()
        await self._tasks.aclose()
        while self._closing:
            await self._closing.popleft().aclose()

    # -- EngineTraffic: the supervisor's reports, and what it asks ------------------------------------------------------------------

    def engine_ready(self, engine: str, address: str, slots: int) -> None:
        report = self.reports.setdefault(engine, Report())
        report.address, report.slots, report.process = address, slots, "ready"
        self.seen = True
        if (endpoint := self._endpoints.get(engine)) is not None:
            self._connect(endpoint)
            if self._prober is not None:
                self._prober.change([endpoint], (), self._endpoints)

    def engine_starting(self, engine: str, *, awaited: bool = False) -> None:
        self._report(engine, "starting", "its engine is starting", awaited=awaited)

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        self._report(engine, "down", reason, code)

    def engine_draining(self, engine: str) -> None:
        self._report(engine, "draining", "the engine is draining")

    def engine_unloading(self, engine: str) -> None:
        self._report(engine, "unloading", "the engine is being unloaded")

    def engine_unloaded(self, engine: str, reason: str, code: str | None = None, retry_after: float = 0.0) -> None:
        self.seen = True  # the first request loads it
        self._report(engine, "unloaded", reason, code, retry_at=self.now() + retry_after if retry_after else 0.0)

    def shift(self, engine: str, address: str, slots: int, max_failures: int) -> Shift:
        """Prepares to send a share of the engine's requests to its process at this address; the share begins at 0."""
        endpoint = self._endpoints.get(engine)
        spec = endpoint.spec if endpoint is not None else EngineSpec(name=engine, runtime="llama.cpp")
        made = Shift(self._client_factory(spec, address), address, slots, max_failures, self._give_up)
        if endpoint is not None and endpoint.client is not None:
            endpoint.begin(made)
        return made

    async def drained(self, engine: str, address: str) -> None:
        for signal in self.gone(engine, address):
            await as_future(signal)

    def gone(self, engine: str, address: str) -> list[Signal[None]]:
        """Signals that complete when no request is under way at this address."""
        return [endpoint.when_gone(address) for endpoint in (*self._endpoints.values(), *self._leaving) if endpoint.name == engine]

    def idle_seconds(self, engine: str) -> float | None:
        endpoint = self._endpoints.get(engine)
        if endpoint is None or endpoint.in_flight or endpoint.waiting or endpoint.shift is not None:
            return None
        return self.now() - endpoint.idle_since

    # -- operators: FleetView and controls -------------------------------------------------------------------------------------------

    def endpoints(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Those in force; names: only these of them."""
        return [view(endpoint) for endpoint in self.in_force(names)]

    def find(self, name: str) -> Endpoint | None:
        """The endpoint in force of this name."""
        return self._endpoints.get(name)

    @property
    def count(self) -> int:
        """How many endpoints are in force."""
        return len(self._endpoints)

    def in_force(self, names: Iterable[str] | None = None) -> list[Endpoint]:
        """Every endpoint in force, or those of these names."""
        if names is None:
            return list(self._endpoints.values())
        return [self._endpoints[name] for name in names if name in self._endpoints]

    def drain(self, endpoint: str) -> Signal[None]:
        """Sends no new requests there; completes when the last one under way has ended. Raises GatehouseError for an unknown name."""
        found = self._find(endpoint)
        found.drain(True)
        return found.when_idle()

    def resume(self, endpoint: str) -> None:
        self._find(endpoint).drain(False)

    def force(self, endpoint: str, state: Forced | None) -> None:
        """Holds a breaker `open` or `closed` until it is forced to None."""
        self._find(endpoint).force(state)

    # -- what endpoints and routes ask for (endpoints.Effects) ------------------------------------------------------------------------

    def changed(self, endpoint: Endpoint, old: State, reason: str) -> None:
        self.version += 1
        self.told(endpoint, old, reason)

    def told(self, endpoint: Endpoint, old: State, reason: str) -> None:
        """Announces the change of an endpoint in force; one that becomes ready while a configuration comes into force, after that."""
        if self._on_change is None or self._endpoints.get(endpoint.name) is not endpoint or old == endpoint.state:
            return
        if self._entered is not None and old == "starting" and endpoint.state == "ready":
            self._entered.append((endpoint.name, reason))
        else:
            self._on_change(endpoint.name, old, endpoint.state, reason)

    def stale(self) -> None:
        self.version += 1

    def wake(self, endpoint: Endpoint) -> None:
        """A slot is free. The next request is started in a later turn of the loop, not on the stack of the one that gave the slot back."""
        if not self._woken:
            self._scheduler.soon(self._pump)
        self._woken.update(endpoint.waiting)

    def queued(self, pool: Waiters) -> None:
        """A pool has waiting requests: watches their deadlines until `expire` says that none is left."""
        self._queues[pool] = None
        self.tick_soon()
        if self.outward is not None:
            self.outward.queued(pool)

    def tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._pauses.begin(self.now())
            self._scheduler.later(TICK, self.tick)

    def tick(self) -> None:
        """Looks at everything that is timed, and schedules itself while there is any. After a pause of this process, requests keep their
        places for a while: slots that became free meanwhile are not known yet."""
        self._ticking = False
        now = self.now()
        self._pauses.since(now)
        again = False
        for endpoint in (*self._endpoints.values(), *self._leaving):
            again = endpoint.tick(now) or again
        for pool in () if self._pauses.resting(now) else list(self._queues):
            if not pool.expire(now):
                self._queues.pop(pool, None)
        for endpoint in list(self._leaving):
            endpoint.leave()
        if again or self._queues:
            self.tick_soon()
        if self.outward is not None:
            self.outward.ticked()

    def suspect(self, endpoint: Endpoint) -> None:
        if self._prober is not None:
            self._prober.suspect(endpoint)
        elif self.outward is not None:
            self.outward.suspected(endpoint)

    def learnt(self, endpoint: Endpoint) -> None:
        if self.outward is not None:
            self.outward.learnt(endpoint)

    def close(self, client: EngineClient) -> None:
        self._closing.append(client)
        if self._closers < MANY:
            self._closers += 1
            self._tasks.spawn(self._close(), name="close")

    def left(self, endpoint: Endpoint) -> None:
        self._leaving.pop(endpoint, None)

    def want(self, endpoint: Endpoint) -> None:
        """Has an engine loaded that a request waits for. It counts as starting from now on, so that later requests only wait."""
        self._report(endpoint.name, "starting", "a request asks for its engine", awaited=True)
        if self._on_wanted is not None:
            self._on_wanted(endpoint.name)
        if self.outward is not None:
            self.outward.wanted(endpoint.name)

    # -- inside: many endpoints at once ------------------------------------------------------------------------------------------------

    def _tell_entered(self) -> None:
        """An audit record for each of ten thousand would leave requests no room in the log's queue."""
        entered, self._entered = self._entered or [], None
        if len(entered) > MANY and self._on_many is not None:
            self._on_many([name for name, _ in entered])
            return
        for name, reason in entered:
            if self._on_change is not None:
                self._on_change(name, "starting", "ready", reason)

    async def _close(self) -> None:
        try:
            while self._closing:
                await self._closing.popleft().aclose()
                await asyncio.sleep(0)
        finally:
            self._closers -= 1  # in the same step in which nothing more was found: whatever comes later gets a closer of its own

    # -- inside -----------------------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Serves the pools in turns, one request each, so that pools with a common endpoint share its slots."""
        pools = deque(self._woken)
        self._woken = {}
        while pools:
            pool = pools.popleft()
            if pool.pump():
                pools.append(pool)

    def _report(
        self, engine: str, process: Process, reason: str, code: str | None = None, *, awaited: bool = False, retry_at: float = 0.0
    ) -> None:
        report = self.reports.setdefault(engine, Report())
        report.process, report.reason, report.code, report.awaited, report.retry_at = process, reason, code, awaited, retry_at
        endpoint = self._endpoints.get(engine)
        if (
            endpoint is not None and endpoint.spec.runtime != "external"
        ):  # otherwise the report is about the sidecar that a reload puts in its place
            endpoint.set_process(process, reason, code, awaited=awaited, retry_at=retry_at)
            return
        for gone in [leaving for leaving in self._leaving if leaving.name == engine]:
            gone.set_process(process, reason)

    def _give_up(self, shift: Shift) -> None:
        found = [endpoint for endpoint in (*self._endpoints.values(), *self._leaving) if endpoint.shift is shift]
        for endpoint in found:
            endpoint.give_up(shift)
        if not found and all(endpoint.client is not shift.client for endpoint in self._endpoints.values()):
            self.close(shift.client)  # no route leads to this engine, so the client never carried anything

    def _connect(self, endpoint: Endpoint) -> None:
        """Gives an endpoint its client when its address is known, and the process state that was reported for it."""
        spec = endpoint.spec
        slots: int | None = None
        if (fixed := _fixed(spec)) is not None:
            address = fixed
        elif (report := self.reports.get(spec.name)) is None:
            return
        elif report.process != "ready" or report.address is None:
            endpoint.set_process(report.process, report.reason, report.code, awaited=report.awaited, retry_at=report.retry_at)
            return
        else:
            address, slots = report.address, report.slots
        if self.shares is not None:
            endpoint.share = self.shares.get((spec.name, address), 0)
        endpoint.ready(address, slots, self._client_to(endpoint, address))

    def _connect_unseen(self, endpoint: Endpoint) -> None:
        """Gives an endpoint its client before it is in force, which concerns no route that is: none has to look at its endpoints again."""
        version = self.version
        self._connect(endpoint)
        self.version = version

    def _share(self, endpoint: Endpoint) -> None:
        """The slots of an endpoint that was not in force yet as they were shared out last."""
        if self.shares is not None and endpoint.address is not None:
            endpoint.share = self.shares.get((endpoint.name, endpoint.address), 0)
            if endpoint.count_slots():
                endpoint.judge("")

    def _client_to(self, endpoint: Endpoint, address: str) -> EngineClient:
        """An existing client for the address (the endpoint's own, or that of a shift that now has all the traffic), or a new one."""
        if endpoint.client is not None and endpoint.address == address:
            return endpoint.client
        if (first := endpoint.first) is not None:
            endpoint.first = None
            return first
        if endpoint.shift is not None and endpoint.shift.address == address:
            return endpoint.shift.client
        return self._client_factory(endpoint.spec, address)

    def _find(self, name: str) -> Endpoint:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise GatehouseError(f"there is no endpoint named {name!r}", code="not_found", status=404)
        return endpoint


def _fixed(spec: EngineSpec) -> str | None:
    """The address that the settings give; None for an engine whose address is reported."""
    if spec.runtime != "external" or spec.url is None:
        return None
    return spec.url.rstrip("/").removesuffix("/v1")  # paths bring their own /v1


def _leave(gone: list[Endpoint]) -> Steps[None]:
    for endpoint in gone:
        endpoint.leave()
        yield
