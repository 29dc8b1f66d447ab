"""The control process's side of the mirror: its registry is the truth about endpoints, and every data worker's registry follows it.

    mirror = Mirror(registry)
    mirror.join("1", tell)          # a worker is there; `tell(message)` sends to it, in order, and never waits
    mirror.heard("1", message)      # one of mirror_messages.TO_CONTROL
    mirror.gone("1")                # its requests have ended with it

What goes in (the supervisor's reports, the probes' results, what operators set, shifts) is applied here and sent to each worker, which
comes to the same states by itself. What workers learn comes back: a breaker that opened opens everywhere, an engine that a request wants
is loaded once, a shift's failures are added up, an engine's slots are shared by demand (gateway.routing.slots).

    a breaker opened in a worker      it opens here and in all other workers, for as long
    the opening is over               one worker has the turn to send the one probe request; unused, it goes on to the next one
    the probe request succeeded       the breaker closes everywhere
    two workers disagree              the later change wins, but news that a breaker closed are ignored if they are older than an opening
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from gateway.core.messages import Message
from gateway.core.slices import Steps, at_once, portions
from gateway.core.waiting import Signal, as_future
from gateway.routing import endpoint_messages
from gateway.routing import mirror_messages as m
from gateway.routing.adoption import adopt, trip
from gateway.routing.breaker import Forced
from gateway.routing.endpoints import Endpoint
from gateway.routing.entering import Fleet
from gateway.routing.health import Probe, Probed, ProbeResult
from gateway.routing.mirrored import MirroredWorker
from gateway.routing.registry import MANY, EndpointRegistry
from gateway.routing.scheduler import LoopScheduler, Scheduler
from gateway.routing.shift import Shift
from gateway.routing.slot_market import SlotMarket
from gateway.routing.turns import Turns
from gateway.routing.view import view

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks for what is due: slots to move between workers that do not ask, and unused turns."""


class MirrorShift:
    """See gateway.core.ports.TrafficShift: one shift over all workers."""

    def __init__(self, mirror: Mirror, number: int, engine: str, own: Shift, max_failures: int) -> None:
        self._mirror, self.number, self.engine, self.own, self._max_failures = mirror, number, engine, own, max_failures
        self.requests = self.failures = 0
        self.over: Signal[None] = Signal()
        self._counts: dict[str, tuple[int, int]] = {}
        self._ended = 0

    @property
    def begun(self) -> m.ShiftBegun:
        """The message that tells a worker of it."""
        return m.ShiftBegun(self.number, self.engine, self.own.address, self.own.share)

    def counted(self, worker: str, requests: int, failures: int) -> None:
        """What one worker has counted so far. What a worker counted that has ended stays."""
        before = self._counts.get(worker, (0, 0))
        self._counts[worker] = (requests, failures)
        self.requests += requests - before[0]
        self.failures += failures - before[1]
        if self.failures > self._max_failures:
            self.over.set(None)

    def gone(self, worker: str) -> None:
        """Another worker may come under this name, and counts from 0."""
        self._counts.pop(worker, None)

    def move(self, share: float) -> None:
        self.own.move(share)
        self._mirror.tell_all(m.ShiftMoved(self.number, self.own.share))

    def end(self) -> None:
        self._mirror.end_shift(self)


class Mirror:
    """Implements EngineTraffic and the `endpoints` half of FleetView. Everything runs on the event loop's thread."""

    def __init__(self, registry: EndpointRegistry, scheduler: Scheduler | None = None) -> None:
        self.registry = registry
        self._scheduler: Scheduler = scheduler or LoopScheduler()
        self.caught_up: Callable[[], Awaitable[object]] = _at_once
        """Waits, for a bounded time, until the workers have put the configuration of this process into force."""
        self._workers: dict[str, MirroredWorker] = {}
        self._slots = SlotMarket(self._tell, registry.now, self._scheduler)
        self._turns = Turns(self._tell, registry.now)
        self._shifts: dict[int, MirrorShift] = {}
        self._numbers: dict[str, int] = {}
        """Of the last change of each endpoint's breaker that was sent."""
        self._drains: dict[int, tuple[set[str], Signal[None]]] = {}
        self._well: dict[str, bool] = {}
        """Whether the last probe of an endpoint was good."""
        self._last = 0
        self._looking = False
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            m.EngineWanted: self._wanted,
            m.EndpointSuspected: self._suspected,
            m.BreakerLearnt: self._breaker_learnt,
            m.TurnReturned: self._turn_returned,
            m.ShiftCounted: self._shift_counted,
            m.SlotsUsed: self._slots_used,
            m.DrainedSaid: self._drained_said,
            m.FleetUsed: self._used,
            m.RouterActivated: self._activated,
        }

    # --- workers

    def join(self, worker: str, tell: Callable[[Message], None], *, routes: bool = False) -> None:
        """A worker is there; it is told everything. Its name must not be that of one that is still there. routes: it serves already, as
        it was started by the control process before this one."""
        self._workers[worker] = MirroredWorker(tell, routes)
        if routes:
            self._slots.join(worker)
        self._send_state(worker)
        self._look_soon()

    def leave(self, worker: str) -> None:
        """A worker takes no new requests and finishes those that it has."""
        if (known := self._workers.get(worker)) is not None:
            known.leaving = True
            self._slots.leave(worker)
            self._in_turns(self._mind_turns(), "turns")

    def gone(self, worker: str) -> None:
        """A worker has ended: nobody waits for it, and its slots are free. Does nothing for one that is not there."""
        if self._workers.pop(worker, None) is None:
            return
        self._slots.gone(worker)
        for shift in self._shifts.values():
            shift.gone(worker)
        for asked in list(self._drains):
            self._drained_said(worker, m.DrainedSaid(asked))
        self._in_turns(self._mind_turns(), "turns")

    def hand_over(self) -> list[m.SlotsHeld]:
        """What the next control process must know about the workers that it takes over."""
        return self._slots.hand_over()

    def take_over(self, handed: list[m.SlotsHeld]) -> None:
        """Call it before the workers of the control process before this one join."""
        self._slots.take_over(handed)

    def heard(self, worker: str, message: Message) -> None:
        """Takes one of mirror_messages.TO_CONTROL. What comes from a worker that is gone is dropped."""
        if worker in self._workers:
            self._handlers[type(message)](worker, message)

    def tell_all(self, message: Message) -> None:
        for worker in self._workers.values():
            worker.tell(message)

    def _tell(self, worker: str, message: Message) -> None:
        if (known := self._workers.get(worker)) is not None:
            known.tell(message)

    def _send_state(self, worker: str, only: Sequence[str] | None = None) -> None:
        """only: of these endpoints instead of all."""
        endpoints = self.registry.in_force() if only is None else [e for name in only if (e := self.registry.find(name)) is not None]
        reports = self.registry.reports
        state = m.FleetState(
            reports=[self._report(engine) for engine in (reports if only is None else only) if engine in reports],
            slots=self._slots.of(worker, only),
            shifts=[shift.begun for shift in self._shifts.values()],
            marks=[endpoint_messages.mark(e) for e in endpoints if e.drained or e.breaker.forced is not None],
            health=[endpoint_messages.health(e) for e in endpoints if not e.health.healthy],
            breakers=[self._breaker(e) for e in endpoints if e.breaker.state != "closed"],
            numbers={endpoint.name: self._numbers.get(endpoint.name, 0) for endpoint in endpoints},
            seen=self.registry.seen,
            only=None if only is None else list(only),
        )
        self._tell(worker, state)
        self._turns.repeat(worker, only)

    # --- EngineTraffic

    def engine_ready(self, engine: str, address: str, slots: int) -> None:
        self.registry.engine_ready(engine, address, slots)
        self._share_out(engine)
        self._mirror(engine)

    def engine_starting(self, engine: str, *, awaited: bool = False) -> None:
        self.registry.engine_starting(engine, awaited=awaited)
        self._mirror(engine)

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        self.registry.engine_down(engine, reason, code)
        self._mirror(engine)

    def engine_draining(self, engine: str) -> None:
        self.registry.engine_draining(engine)
        if self.registry.find(engine) is not None:  # otherwise workers may still have routes to it: see `drained`
            self._mirror(engine)

    def engine_unloading(self, engine: str) -> None:
        self.registry.engine_unloading(engine)
        self._mirror(engine)

    def engine_unloaded(self, engine: str, reason: str, code: str | None = None, retry_after: float = 0.0) -> None:
        self.registry.engine_unloaded(engine, reason, code, retry_after)
        self._mirror(engine)

    def shift(self, engine: str, address: str, slots: int, max_failures: int) -> MirrorShift:
        """Prepares to send a share of the engine's requests, in every worker, to its process at this address."""
        own = self.registry.shift(engine, address, slots, max_failures)
        self._last += 1
        shift = self._shifts[self._last] = MirrorShift(self, self._last, engine, own, max_failures)
        self._share_out(engine)
        self.tell_all(shift.begun)
        return shift

    def end_shift(self, shift: MirrorShift) -> None:
        """The first process has all the traffic again, unless the second one is in force. Does nothing the second time."""
        if self._shifts.pop(shift.number, None) is not None:
            shift.own.end()
            self.tell_all(m.ShiftEnded(shift.number))
            self._share_out(shift.engine)

    async def drained(self, engine: str, address: str) -> None:
        """Returns when every worker has said that no request is under way at this address. One that ends has none, and neither has one
        that begins: the address is out of use."""
        await self.registry.drained(engine, address)
        if self.registry.find(engine) is None:  # removed from the configuration
            await self.caught_up()
            if engine in self.registry.reports:
                self._mirror(engine)
        if not any(worker.routes for worker in self._workers.values()):
            return
        self._last += 1
        asked, signal = self._last, Signal[None]()
        message = m.DrainedAsked(asked, engine, address)
        self._drains[asked] = ({name for name, worker in self._workers.items() if worker.routes}, signal)
        for name in self._drains[asked][0]:
            self._tell(name, message)
        try:
            await as_future(signal)
        finally:
            self._drains.pop(asked, None)

    def idle_seconds(self, engine: str) -> float | None:
        """How long no worker has had a request for it. Up to LOOK_SECONDS behind."""
        idle = self.registry.idle_seconds(engine)
        if idle is None:
            return None
        now = self.registry.now()
        for worker in self._workers.values():
            if (use := worker.uses.get(engine)) is not None:
                if use[2] is None:
                    return None
                idle = min(idle, now - use[2])
        return max(0.0, idle)

    # --- operators and configuration

    def endpoints(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """The views of the endpoints, or of these alone, with the counts of all workers."""
        shown = []
        for endpoint in self.registry.in_force(names):
            uses = [use for worker in self._workers.values() if (use := worker.uses.get(endpoint.name)) is not None]
            seen = view(endpoint)
            seen["in_flight"] += sum(use[0] for use in uses)
            seen["breaker"]["failures"] = max([seen["breaker"]["failures"], *(use[3] for use in uses)])
            shown.append(seen)
        return shown

    def in_flight(self) -> dict[str, int]:
        """Requests under way in the workers, by endpoint; only those with some."""
        found: dict[str, int] = {}
        for worker in self._workers.values():
            for name, use in worker.uses.items():
                if use[0]:
                    found[name] = found.get(name, 0) + use[0]
        return found

    def queued(self, model: str) -> int:
        """Requests that wait for a slot, over all workers."""
        return sum(worker.queued.get(model, 0) for worker in self._workers.values())

    @property
    def shedding(self) -> int:
        """The highest level of load shedding of this process and the workers."""
        return max([self.registry.shedding, *(worker.shedding for worker in self._workers.values())])

    def drain(self, endpoint: str) -> None:
        """Sends no new requests there. Raises GatehouseError for an unknown name, as the next two do."""
        self.registry.drain(endpoint)
        self._marked(endpoint)

    def resume(self, endpoint: str) -> None:
        self.registry.resume(endpoint)
        self._marked(endpoint)

    def force(self, endpoint: str, state: Forced | None) -> None:
        self.registry.force(endpoint, state)
        self._marked(endpoint)

    def activate(self, fleet: Fleet) -> None:
        """Puts a router's endpoints into force. The workers ask for what is new once they have done the same."""
        names = self.registry.activate(fleet).names()
        for worker in self._workers.values():
            worker.changed |= names
        if not self._slots.engines:  # nothing has been shared out yet, whatever the registry knew before
            names |= {endpoint.name for endpoint in self.registry.in_force()}
        self._in_turns(self._follow(names), "slots", len(names))

    def _follow(self, names: set[str]) -> Steps[None]:
        """names: of endpoints that are new, changed or gone."""
        tables: list[dict[str, Any]] = [self._well, *(worker.uses for worker in self._workers.values())]
        for table in tables:
            for name in [name for name in table if self.registry.find(name) is None]:
                table.pop(name, None)
            yield
        self._turns.gone(self.registry.find)
        for name in names:
            self._share_out(name)
            yield

    def start_probing(self, probe: Probe) -> None:
        """Probes every endpoint until the registry is closed; the workers take over the results."""
        self.registry.start_probing(probe, self._probed)

    # --- what workers say

    def _activated(self, worker: str, message: m.RouterActivated) -> None:
        known = self._workers[worker]
        if not known.routes:
            known.routes = True
            if not known.leaving:
                self._slots.join(worker)
                known.changed |= self._slots.engines  # what it was given now; also of engines that are not configured yet
            self._in_turns(self._mind_turns(), "turns")
        changed, known.changed = known.changed, set()
        if message.names is None:  # a worker of an earlier version, which takes every state for that of all
            self._send_state(worker)
        elif len(names := sorted(changed.union(message.names))) <= MANY:
            self._send_state(worker, names)
        else:
            self.registry.spawn(self._send_states(worker, known, names), "state")

    def _send_states(self, worker: str, known: MirroredWorker, names: Sequence[str]) -> Steps[None]:
        for some in portions(names, MANY):
            if self._workers.get(worker) is not known:
                return  # its name may be that of another one by now, which must hear everything first
            self._send_state(worker, some)
            yield

    def _wanted(self, worker: str, message: m.EngineWanted) -> None:
        """Loads the engine, once for all workers. A worker that asks too late or too early is told the engine's state."""
        endpoint = self.registry.find(message.engine)
        if endpoint is not None and endpoint.process == "unloaded" and endpoint.want():
            self._mirror(message.engine)
        elif message.engine in self.registry.reports:
            self._tell(worker, self._report(message.engine))

    def _suspected(self, worker: str, message: m.EndpointSuspected) -> None:
        endpoint = self.registry.find(message.endpoint)
        if endpoint is not None and endpoint.address == message.address:
            self.registry.suspect(endpoint)

    def _breaker_learnt(self, worker: str, news: m.BreakerLearnt) -> None:
        endpoint = self.registry.find(news.endpoint)
        if endpoint is None or endpoint.address != news.address:
            return  # about an earlier process
        now = self.registry.now()
        late = news.number != self._numbers.get(news.endpoint, 0)
        if news.state == "open":
            changed = trip(endpoint, now, news.refused)
        else:
            changed = not late and adopt(endpoint, "closed", now, 0, refused=False, tripped=False)
        if changed:
            self._numbers[news.endpoint] = self._numbers.get(news.endpoint, 0) + 1
            self.tell_all(self._breaker(endpoint))
            self._turns.forget(news.endpoint)
            self._turns.mind(endpoint, self._serving, (worker,))
        else:
            self._tell(worker, self._breaker(endpoint))
            self._turns.repeat(worker)

    def _turn_returned(self, worker: str, message: m.TurnReturned) -> None:
        endpoint = self.registry.find(message.endpoint)
        if endpoint is not None:
            self._turns.returned(endpoint, worker, message.used, self._serving, self._waiting(message.endpoint))

    def _shift_counted(self, worker: str, message: m.ShiftCounted) -> None:
        if (shift := self._shifts.get(message.shift)) is not None:
            shift.counted(worker, message.requests, message.failures)

    def _slots_used(self, worker: str, message: m.SlotsUsed) -> None:
        for use in message.uses:
            self._slots.used(worker, use)
            endpoint = self.registry.find(use.engine)
            if endpoint is not None and use.waiting and endpoint.breaker.state == "half_open":
                self._turns.mind(endpoint, self._serving, {worker, *self._waiting(endpoint.name)})

    def _drained_said(self, worker: str, message: m.DrainedSaid) -> None:
        if (found := self._drains.get(message.asked)) is not None:
            found[0].discard(worker)
            if not found[0]:
                found[1].set(None)

    def _used(self, worker: str, message: m.FleetUsed) -> None:
        known, now = self._workers[worker], self.registry.now()
        known.queued, known.shedding = message.queued, message.shedding
        for use in message.endpoints:
            since = None if use.idle is None else now - use.idle
            known.uses[use.endpoint] = (use.in_flight, use.waiting, since, use.failures)
            self._slots.seen(worker, use)

    # --- inside

    def _probed(self, probed: Probed, result: ProbeResult, decisive: bool) -> None:
        """Sends a result to the workers, unless it changes nothing, as a good one after a good one does."""
        endpoint = self.registry.find(probed.name)
        if endpoint is None or endpoint.address is None:
            return
        if result.slots is not None:
            self._share_out(endpoint.name)
        before, self._well[endpoint.name] = self._well.get(endpoint.name, False), result.ok
        if not (before and result.ok and endpoint.health.healthy and endpoint.breaker.state == "closed"):
            self.tell_all(
                m.EndpointProbed(
                    endpoint.name, endpoint.address, result.ok, result.reason, result.refused, result.loading, decisive
                )
            )  # fmt: skip
            self._turns.mind(endpoint, self._serving, self._waiting(endpoint.name))

    def _mirror(self, engine: str) -> None:
        self.tell_all(self._report(engine))

    def _report(self, engine: str) -> m.EngineReported:
        return endpoint_messages.report(engine, self.registry.reports[engine], self.registry.now())

    def _marked(self, name: str) -> None:
        if (endpoint := self.registry.find(name)) is not None:
            self.tell_all(endpoint_messages.mark(endpoint))

    def _breaker(self, endpoint: Endpoint) -> m.BreakerSet:
        return endpoint_messages.breaker(endpoint, self._numbers.get(endpoint.name, 0), self.registry.now())

    def _share_out(self, engine: str) -> None:
        """Shares the slots of each process of the engine that requests go to."""
        totals: dict[str, int] = {}
        endpoint, report = self.registry.find(engine), self.registry.reports.get(engine)
        if endpoint is not None:
            if endpoint.address is not None:
                totals[endpoint.address] = endpoint.slots
        elif report is not None and report.process == "ready" and report.address is not None:
            totals[report.address] = report.slots
        for shift in self._shifts.values():
            if shift.engine == engine:
                totals.setdefault(shift.own.address, shift.own.slots)
        self._slots.sync(engine, totals, [name for name, worker in self._workers.items() if worker.routes])

    def _waiting(self, endpoint: str) -> set[str]:
        """The workers where requests wait for this endpoint."""
        return {name for name, worker in self._workers.items() if worker.uses.get(endpoint, (0, 0, None, 0))[1]}

    @property
    def _serving(self) -> list[str]:
        """The workers that take new requests."""
        return [name for name, worker in self._workers.items() if worker.routes and not worker.leaving]

    def _mind_turns(self) -> Steps[None]:
        for some in portions(self.registry.in_force()):
            for endpoint in [one for one in some if one.breaker.state != "closed"]:
                self._turns.mind(endpoint, self._serving, self._waiting(endpoint.name))
                yield
            yield

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._scheduler.later(LOOK_SECONDS, lambda: self._in_turns(self._looked(), "look"))

    def _looked(self) -> Steps[None]:
        yield from self._slots.look()
        yield from self._mind_turns()
        self._looking = False
        if self._workers:
            self._look_soon()

    def _in_turns(self, steps: Steps[None], name: str, beside: int = 0) -> None:
        """Runs the steps at once, unless there are many endpoints."""
        if max(beside, self.registry.count) > MANY:
            self.registry.spawn(steps, name)
        else:
            at_once(steps)


async def _at_once() -> None:
    return None
