"""A data worker's side of the mirror: keeps the worker's registry what the control process says, and tells it what the worker learns.

    follower = Follower(registry, channel.tell)       # registry: an EndpointRegistry without a prober
    follower.apply(message)                           # each message of the control process, in order
    follower.close()

Everything that a message can say twice may be said twice: `FleetState` repeats the whole, or all of some endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Final

from gateway.core.messages import Message
from gateway.core.slices import Steps, at_once, portions
from gateway.routing import mirror_messages as m
from gateway.routing.adoption import adopt, restore, share_out, take_turn
from gateway.routing.build import FleetRouter
from gateway.routing.endpoints import Endpoint, Waiters
from gateway.routing.health import ProbeResult
from gateway.routing.registry import EndpointRegistry
from gateway.routing.scheduler import LoopScheduler, Scheduler
from gateway.routing.shift import Shift

REPORT_SECONDS: Final = 0.25
PACE: Final = 10_000
"""How many endpoints are checked per second; those of a very large fleet are reported less often."""
PORTION: Final = 256
"""How many endpoints or routes are checked in one step."""
"""Seconds between two reports of what is under way."""
USE_SECONDS: Final = 0.005
"""The least time between two unasked reports on the use of slots."""
NEVER: Final = 1 << 62
"""After so many failures a worker ends its part of a shift; the control process counts those of all workers."""
_Key = tuple[str, str]


class Watch:
    """Waits at an endpoint with more requests under way than slots, to report when there are fewer. Takes no slot itself."""

    queued = 0

    def __init__(self, endpoint: Endpoint, fits: Callable[[Watch], bool]) -> None:
        self.endpoint, self._fits = endpoint, fits
        self.places: list[Endpoint] = []

    def pump(self) -> bool:
        if self._fits(self):
            self.endpoint.waiting.pop(self, None)
        return False

    def expire(self, now: float) -> bool:
        return False


class Follower:
    """Implements registry.Outward. tell: sends a message to the control process; never waits."""

    def __init__(self, registry: EndpointRegistry, tell: Callable[[Message], None], scheduler: Scheduler | None = None) -> None:
        self._registry, self._tell = registry, tell
        self._scheduler: Scheduler = scheduler or LoopScheduler()
        registry.outward = self
        self._shares: dict[_Key, int] = {}
        registry.shares = self._shares
        self._given: dict[_Key, int] = {}
        """Number of the last `SlotsGiven`."""
        self._breakers: dict[str, int] = {}
        """Number of the last `BreakerSet` by endpoint."""
        self._shifts: dict[int, tuple[str, Shift]] = {}
        self._counted: dict[int, tuple[int, int]] = {}
        self._pools: dict[Waiters, None] = {}
        self._watches: dict[_Key, Watch] = {}
        self._due: dict[_Key, None] = {}
        self._due_soon = False
        self._used_at = 0.0
        self._said: dict[str, tuple[int, int, float, int]] = {}
        self._said_queued: dict[str, int] = {}
        self._said_shedding = 0
        self._first: m.FleetState | None = None
        """A state that arrived before there were endpoints."""
        self._open = True
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            m.EngineReported: self._reported,
            m.ShiftBegun: self._shift_begun,
            m.ShiftMoved: self._shift_moved,
            m.ShiftEnded: lambda message: self._shift_ended(message.shift),
            m.EndpointProbed: self._probed,
            m.EndpointMarked: self._marked,
            m.BreakerSet: self._breaker_set,
            m.BreakerTurn: self._turn,
            m.SlotsGiven: self._slots_given,
            m.DrainedAsked: self._drained_asked,
            m.FleetState: self._state,
        }
        self._scheduler.later(REPORT_SECONDS, self._report)

    def apply(self, message: Message) -> None:
        """Applies one of mirror_messages.TO_WORKER."""
        self._handlers[type(message)](message)

    def close(self) -> None:
        """Tells nothing more."""
        self._open = False
        self._registry.outward = None

    # --- from the control process

    def _state(self, state: m.FleetState) -> None:
        registry = self._registry
        for given in state.slots:
            self._due[self._given_slots(given)] = None
        self._flush()  # one answer for all
        for report in state.reports:
            self._reported(report)
        kept = {begun.shift for begun in state.shifts}
        for number in [number for number in self._shifts if number not in kept]:
            self._shift_ended(number)
        for begun in state.shifts:
            self._shift_begun(begun)
        registry.seen = registry.seen or state.seen
        if state.only is None:
            self._first = None if registry.active is not None else state
        self._breakers.update(state.numbers)
        self._mark_all(state)

    def _mark_all(self, state: m.FleetState) -> None:
        """Breakers, health and marks of the endpoints in force."""
        marks = {mark.endpoint: mark for mark in state.marks}
        health = {known.endpoint: known for known in state.health}
        breakers = {known.endpoint: known for known in state.breakers}
        for endpoint in self._concerned(state):
            name, breaker = endpoint.name, endpoint.breaker
            if name in marks or endpoint.drained or breaker.forced is not None:
                self._marked(marks.get(name, m.EndpointMarked(name)))
            if (known := health.get(name)) is None:
                restore(endpoint, True, False, False, "")
            else:
                restore(endpoint, known.healthy, known.loading, known.refused, known.reason)
            self._breakers[name] = number = state.numbers.get(name, 0)
            if name in breakers or breaker.state != "closed" or breaker.failures or endpoint.turn:  # of ten thousand, a few
                self._breaker_set(breakers.get(name) or m.BreakerSet(name, endpoint.address or "", number, "closed"))

    def _concerned(self, state: m.FleetState) -> list[Endpoint]:
        if state.only is None:
            return self._registry.in_force()
        return [endpoint for name in state.only if (endpoint := self._registry.find(name)) is not None]

    def _reported(self, said: m.EngineReported) -> None:
        registry, engine = self._registry, said.engine
        if said.process == "ready" and said.address is not None:
            registry.engine_ready(engine, said.address, said.slots)
            self._forget_shares(engine, said.address)
            if (endpoint := registry.find(engine)) is not None and endpoint.breaker.state == "closed":
                take_turn(endpoint, False)
        elif said.process == "starting":
            registry.engine_starting(engine, awaited=said.awaited)
        elif said.process == "draining":
            registry.engine_draining(engine)
        elif said.process == "unloading":
            registry.engine_unloading(engine)
        elif said.process == "unloaded":
            registry.engine_unloaded(engine, said.reason, said.code, said.retry_after)
        else:
            registry.engine_down(engine, said.reason, said.code)

    def _forget_shares(self, engine: str, address: str) -> None:
        """Drops the slots of an engine's processes that are gone."""
        kept = {address, *(shift.address for name, shift in self._shifts.values() if name == engine)}
        for key in [key for key in self._shares if key[0] == engine and key[1] not in kept]:
            del self._shares[key]
            self._given.pop(key, None)

    def _shift_begun(self, begun: m.ShiftBegun) -> None:
        endpoint = self._registry.find(begun.engine)
        known = self._shifts.get(begun.shift)
        if known is not None and endpoint is not None and endpoint.shift is known[1]:
            known[1].move(begun.share)
            return
        if endpoint is None or endpoint.client is None:
            return  # no request can go there; the state that follows an activation names the shift again
        slots = self._shares.get((begun.engine, begun.address), 0)
        shift = self._registry.shift(begun.engine, begun.address, slots, NEVER)
        shift.heard = lambda: self._count(begun.shift)
        if known is not None:
            shift.requests, shift.failures = known[1].requests, known[1].failures
            known[1].end()
        self._shifts[begun.shift] = (begun.engine, shift)
        shift.move(begun.share)

    def _shift_moved(self, moved: m.ShiftMoved) -> None:
        if (known := self._shifts.get(moved.shift)) is not None:
            known[1].move(moved.share)

    def _shift_ended(self, number: int) -> None:
        known = self._shifts.get(number)
        if known is not None:
            self._count(number)
            del self._shifts[number]
            self._counted.pop(number, None)
            known[1].end()

    def _probed(self, probed: m.EndpointProbed) -> None:
        self._registry.seen = self._registry.seen or probed.ok
        endpoint = self._registry.find(probed.endpoint)
        if endpoint is not None and endpoint.address == probed.address:
            result = ProbeResult(probed.ok, probed.reason, refused=probed.refused, loading=probed.loading)
            endpoint.probed(result, decisive=probed.decisive)
            self._registry.forsake(probed.endpoint)

    def _marked(self, mark: m.EndpointMarked) -> None:
        endpoint = self._registry.find(mark.endpoint)
        if endpoint is None:
            return
        if endpoint.drained != mark.drained:
            endpoint.drain(mark.drained)
            self._say()  # whoever drains it watches what is under way
        if endpoint.breaker.forced != mark.forced:
            endpoint.force(mark.forced)

    def _breaker_set(self, said: m.BreakerSet) -> None:
        self._breakers[said.endpoint] = said.number
        endpoint = self._registry.find(said.endpoint)
        if endpoint is None or (endpoint.address or "") != said.address:
            return
        endpoint.turn = False
        until = self._registry.now() + said.seconds
        if not adopt(endpoint, said.state, until, said.openings, refused=said.refused, tripped=said.tripped):
            endpoint.judge("")
        if said.state == "open":
            self._registry.tick_soon()

    def _turn(self, turn: m.BreakerTurn) -> None:
        endpoint = self._registry.find(turn.endpoint)
        if turn.yours:
            if endpoint is not None:
                take_turn(endpoint, True)
            return
        used = endpoint is not None and endpoint.turn and endpoint.breaker.probing
        if endpoint is not None and not used:
            take_turn(endpoint, False)
        self._tell(m.TurnReturned(turn.endpoint, used))

    def _slots_given(self, given: m.SlotsGiven) -> None:
        self._use(self._given_slots(given), now=True)

    def _given_slots(self, given: m.SlotsGiven) -> _Key:
        key = (given.engine, given.address)
        self._shares[key], self._given[key] = given.slots, given.number
        endpoint = self._registry.find(given.engine)
        if endpoint is not None:
            if endpoint.shift is not None and endpoint.shift.address == given.address:
                endpoint.shift.slots = given.slots
            elif endpoint.address == given.address:
                share_out(endpoint, given.slots)
        return key

    def _drained_asked(self, question: m.DrainedAsked) -> None:
        signals = self._registry.gone(question.engine, question.address)
        left = [len(signals)]

        def one_more() -> None:
            left[0] -= 1
            if not left[0] and self._open:
                self._tell(m.DrainedSaid(question.asked))

        for signal in signals:
            signal.add_callback(one_more)
        if not signals:
            self._tell(m.DrainedSaid(question.asked))

    # --- registry.Outward

    def suspected(self, endpoint: Endpoint) -> None:
        if endpoint.address is not None:
            self._tell(m.EndpointSuspected(endpoint.name, endpoint.address))

    def learnt(self, endpoint: Endpoint) -> None:
        state = endpoint.breaker.state
        if state == "half_open" or self._registry.find(endpoint.name) is not endpoint:
            return
        if state == "closed":
            endpoint.turn = False
        number = self._breakers.get(endpoint.name, 0)
        self._tell(m.BreakerLearnt(endpoint.name, endpoint.address or "", number, state, state == "open" and endpoint.refused))

    def wanted(self, engine: str) -> None:
        self._tell(m.EngineWanted(engine))

    def activated(self, names: Set[str]) -> None:
        self._said = {endpoint.name: said for endpoint in self._registry.in_force() if (said := self._said.get(endpoint.name)) is not None}
        if self._first is not None:  # so that no request goes where none may; what has changed since follows
            self._mark_all(self._first)
            self._first = None
        self._tell(m.RouterActivated(sorted(names)))

    def queued(self, pool: Waiters) -> None:
        self._pools[pool] = None
        self._use_of(pool)

    def ticked(self) -> None:
        for pool in list(self._pools):
            self._use_of(pool)
            if not pool.queued:
                del self._pools[pool]

    # --- what is used

    def _use_of(self, pool: Waiters) -> None:
        for endpoint in pool.places:
            if endpoint.address is not None:
                self._use((endpoint.name, endpoint.address))
            if endpoint.shift is not None:
                self._use((endpoint.name, endpoint.shift.address))

    def _use(self, key: _Key, *, now: bool = False) -> None:
        """Reports what is used of these slots: an answer in this turn of the loop, other reports not more often than useful."""
        if key not in self._given:
            return
        self._due[key] = None
        if now:
            self._flush()
        elif not self._due_soon:
            self._due_soon = True
            wait = USE_SECONDS - (self._registry.now() - self._used_at)
            if wait > 0:
                self._scheduler.later(wait, self._flush_due)
            else:
                self._scheduler.soon(self._flush_due)

    def _flush_due(self) -> None:
        self._due_soon = False
        self._flush()

    def _flush(self) -> None:
        if not self._due or not self._open:
            return
        due, self._due = self._due, {}
        self._used_at = self._registry.now()
        self._tell(m.SlotsUsed([self._used(key) for key in due if key in self._given]))

    def _used(self, key: _Key) -> m.SlotsUse:
        engine, address = key
        endpoint = self._registry.find(engine)
        in_flight, waiting = 0, 0
        if endpoint is not None and (endpoint.address == address or (endpoint.shift is not None and endpoint.shift.address == address)):
            in_flight, waiting = endpoint.in_flight, sum(pool.queued for pool in endpoint.waiting)
            shift = endpoint.shift
            if shift is not None and shift.address == address:
                wanted = round(shift.share * (in_flight + waiting))
                in_flight, waiting = shift.in_flight, max(0, wanted - shift.in_flight)
            if in_flight > self._shares[key] and key not in self._watches:
                self._watches[key] = watch = Watch(endpoint, lambda watch: self._fits(key, watch))
                endpoint.waiting[watch] = None
        return m.SlotsUse(engine, address, self._given[key], in_flight, waiting)

    def _fits(self, key: _Key, watch: Watch) -> bool:
        """Called when a request has ended where there were more than there are slots: says so, and whether that is over."""
        endpoint = watch.endpoint
        if self._registry.find(endpoint.name) is endpoint and key in self._given:
            use = self._used(key)
            self._use(key, now=True)
            if use.in_flight > self._shares[key]:
                return False
        self._watches.pop(key, None)
        self._registry.tick_soon()  # an endpoint that was only kept by its watch can leave now
        return True

    # --- reports at intervals

    def _report(self) -> None:
        if not self._open:
            return
        self._scheduler.later(max(REPORT_SECONDS, self._registry.count / PACE), self._report)
        for number in list(self._shifts):
            self._count(number)
        if self._registry.count > PORTION:
            self._registry.spawn(self._saying(), "report")
        else:
            self._say()

    def _say(self) -> None:
        """Reports what has changed."""
        at_once(self._saying())

    def _saying(self) -> Steps[None]:
        """Reports the use of endpoints in steps. Each tells what it has read, as another report may begin before this one ends."""
        active = self._registry.active
        routes = list(active.routes.values()) if isinstance(active, FleetRouter) else []
        queued: dict[str, int] = {}
        for some in portions(routes, PORTION):
            queued.update([(route.model, backlog) for route in some if (backlog := route.backlog)])
            yield
        endpoints = self._registry.in_force()
        place = 0
        while place + PORTION < len(endpoints):
            if changed := self._changed(endpoints[place : place + PORTION]):
                self._tell(m.FleetUsed(changed, self._said_queued, self._said_shedding))
            place += PORTION
            yield
        changed, shedding = self._changed(endpoints[place:]), self._registry.shedding
        if changed or queued != self._said_queued or shedding != self._said_shedding:
            self._said_queued, self._said_shedding = queued, shedding
            self._tell(m.FleetUsed(changed, queued, shedding))

    def _changed(self, endpoints: Sequence[Endpoint]) -> list[m.EndpointUse]:
        now = self._registry.now()
        changed: list[m.EndpointUse] = []
        for endpoint in endpoints:
            waiting = sum(pool.queued for pool in endpoint.waiting) if endpoint.waiting else 0
            said = (endpoint.in_flight, waiting, endpoint.idle_since, endpoint.breaker.failures)
            if self._said.get(endpoint.name) != said:
                self._said[endpoint.name] = said
                idle = None if endpoint.in_flight or waiting else now - endpoint.idle_since
                changed.append(m.EndpointUse(endpoint.name, endpoint.in_flight, waiting, idle, endpoint.breaker.failures))
        return changed

    def _count(self, number: int) -> None:
        _, shift = self._shifts[number]
        counts = (shift.requests, shift.failures)
        if self._counted.get(number, (0, 0)) != counts:
            self._counted[number] = counts
            self._tell(m.ShiftCounted(number, *counts))
