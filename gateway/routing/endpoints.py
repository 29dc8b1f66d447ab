"""The endpoints of the fleet: one object each, for as long as the engine's connection settings do not change.

A reload builds new routes over the same endpoints, so that requests in flight, breakers, health and connections survive it. Three
sources feed one state: the supervisor (`engine_ready`, `engine_down`, `engine_draining`), active probes (`probed`) and the results of
requests (`ended`). Selection reads two numbers only: `in_flight` and `limit`.

    state       limit                meaning
    starting    0                    its engine has not reported yet, or is loading its model
    ready       slots                (fewer during a slow start)
    half_open   one request          its breaker lets one probe request through
    open        0                    its breaker is open
    unhealthy   0                    active probes fail
    draining    0                    no new requests; those under way finish
    unloaded    0                    its engine is loaded by the first request for it
    down        0                    its engine's process is gone
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Final, Literal, Protocol

from gateway.core.ports import EngineClient
from gateway.core.specs import BreakerSpec, EngineSpec
from gateway.core.waiting import Signal
from gateway.routing.breaker import Breaker, Forced
from gateway.routing.health import ASSUMED, Health, ProbeResult
from gateway.routing.shift import Shift

State = Literal["starting", "ready", "half_open", "open", "unhealthy", "draining", "unloaded", "down"]
Process = Literal["starting", "ready", "draining", "unloading", "unloaded", "down"]
OnChange = Callable[[str, str, str, str], None]
"""(endpoint, old state, new state, reason): for events and metrics. Must not raise."""

SLOW_START_FROM: Final = 0.1
"""The share of its slots that an endpoint gets when a slow start begins."""
LOADING_SECONDS: Final = 2.0
"""How long a load is assumed to take at least, until one has been measured."""


class Waiters(Protocol):
    """A pool with requests that wait for a slot."""

    @property
    def queued(self) -> int:
        """How many wait."""
        ...

    @property
    def places(self) -> list[Endpoint]:
        """The endpoints whose slots they wait for."""
        ...

    def pump(self) -> bool:
        """Grants one free slot; False without a free slot or a request that it can serve."""
        ...

    def expire(self, now: float) -> bool:
        """Refuses requests whose deadline has passed; True while others still wait."""
        ...


class Effects(Protocol):
    """An endpoint's view of its registry."""

    def now(self) -> float: ...

    def changed(self, endpoint: Endpoint, old: State, reason: str) -> None: ...

    def stale(self) -> None:
        """Routes must look at the endpoints again, although no state has changed."""
        ...

    def wake(self, endpoint: Endpoint) -> None: ...

    def tick_soon(self) -> None: ...

    def suspect(self, endpoint: Endpoint) -> None: ...

    def learnt(self, endpoint: Endpoint) -> None:
        """The result of a request has opened or closed its breaker."""
        ...

    def close(self, client: EngineClient) -> None: ...

    def left(self, endpoint: Endpoint) -> None: ...

    def want(self, endpoint: Endpoint) -> None: ...


class Retired:
    """The client of an earlier process: the attempts it still carries, and the waiters for their end."""

    __slots__ = ("address", "in_flight", "waiting")

    def __init__(self, address: str | None, in_flight: int) -> None:
        self.address, self.in_flight = address, in_flight
        self.waiting: list[Signal[None]] = []


def identity(spec: EngineSpec) -> tuple[Any, ...]:
    """The settings of its connections: a change of these makes a new endpoint, all others change in place."""
    return (spec.name, spec.runtime, spec.url, spec.tls, spec.timeouts.connect, spec.max_idle_connections)


class Endpoint:
    """One address. Changed by its registry and by the attempts that hold its slots, always on the event loop."""

    __slots__ = (
        "_effects",
        "_idle",
        "_ramp_from",
        "_retired",
        "_starting_at",
        "address",
        "awaited",
        "breaker",
        "client",
        "code",
        "details",
        "drained",
        "epoch",
        "first",
        "half_open",
        "health",
        "idle_since",
        "in_flight",
        "leaving",
        "limit",
        "load_seconds",
        "name",
        "probing",
        "process",
        "reason",
        "refused",
        "reserve",
        "retry_at",
        "said_slots",
        "share",
        "shift",
        "slots",
        "spec",
        "state",
        "tripped",
        "turn",
        "waiting",
    )

    def __init__(self, spec: EngineSpec, effects: Effects, breaker: BreakerSpec) -> None:
        self.name, self.spec, self._effects = spec.name, spec, effects
        self.address: str | None = None
        self.client: EngineClient | None = None
        self.first: EngineClient | None = None
        """What becomes its client when it comes into force."""
        self.said_slots: int | None = None
        self.share: int | None = None
        """In a data worker: how many of the engine's slots it may use. None: all."""
        self.slots, self.in_flight = spec.start_slots, 0
        self.limit = 0
        """Requests that may be in flight now."""
        self.reserve = 0
        """The limit in panic mode; above 0 only while the endpoint is out because of its own failures."""
        self.half_open = False
        self.probing = False
        """Whether the breaker waits for the result of a probe request, which counts whatever the endpoint's state is by then."""
        self.turn = True
        """Whether the probe request of a half-open breaker may be sent from this process; of several workers one has the turn."""
        self.epoch = 0
        """The breaker's epoch, which each attempt notes at its start."""
        self.state: State = "starting"
        self.reason = "its engine has not reported yet"
        self.process: Process = "starting"
        self.code: str | None = None
        """The error code for why its process is down or could not be loaded."""
        self.awaited = False
        """Whether requests may wait while its process starts."""
        self.retry_at = 0.0
        """When an engine whose load failed may be asked for again."""
        self.load_seconds: float | None = None
        """How long the last load took."""
        self.shift: Shift | None = None
        self.idle_since = effects.now()
        """When the last request ended; meaningful only while none is in flight."""
        self.drained = self.leaving = self.refused = False
        self.tripped = False
        """Whether the breaker opened for a reason that probes see too: then a good probe ends the opening early."""
        self.breaker = Breaker(breaker)
        self.health = Health(spec.health)
        self.details: dict[str, Any] = {}
        self.waiting: dict[Waiters, None] = {}
        """Pools with requests that wait for a slot here, in the order of arrival."""
        self._ramp_from: float | None = None
        self._starting_at: float | None = None
        self._retired: dict[EngineClient, Retired] = {}
        self._idle: list[Signal[None]] = []

    # -- what attempts do -----------------------------------------------------------------------------------------------------

    def admitted(self) -> None:
        """A request was admitted while half-open: it is the probe, and the only one."""
        self.breaker.admitted()
        self.probing = True
        self.limit = 0

    def release(self, client: EngineClient) -> None:
        """An attempt gives its slot back. `client`: the attempt's, which tells in which process it ran."""
        if client is self.client:
            self.in_flight -= 1
        else:
            self._release_other(client)
        if self.waiting:
            self._effects.wake(self)
        if not self.in_flight:
            self._emptied()

    def pick(self) -> EngineClient | None:
        """The client for a new attempt while a shift is under way. A breaker's probe request goes to the breaker's own process."""
        shift = self.shift
        return shift.client if shift is not None and not self.half_open and shift.takes() else self.client

    def ended(self, result: str, epoch: int, client: EngineClient) -> None:
        """Takes the result of an attempt: success, failure, refused or neutral. It counts for the process in which it ran."""
        if client is not self.client:
            if self.shift is not None and client is self.shift.client:
                self.shift.ended(result)
            return
        breaker = self.breaker
        if result == "success":
            changed = breaker.success(epoch)
            reason = "the probe request succeeded"
        elif result == "neutral":
            changed = breaker.neutral(epoch)
            reason = ""
        else:
            now, refused, count = self._effects.now(), result == "refused", breaker.failures + 1
            if refused or epoch == breaker.epoch:  # one that was under way when the breaker opened says nothing of why it is open
                self.refused = self.tripped = refused
            changed = breaker.trip(now) if refused else breaker.failure(epoch, now)
            reason = "connections are refused" if refused else f"{count} consecutive failures" if count > 1 else "a request failed"
            self._effects.suspect(self)
        if changed or self.probing:
            self.judge(reason)
        if changed:
            self._effects.learnt(self)

    # -- what the supervisor, the probes, the clock and operators do ----------------------------------------------------------------

    def ready(self, address: str, slots: int | None, client: EngineClient) -> None:
        """The engine serves at this address through this client. A new client is a new process: its slots are all free.

        slots: how many requests it runs at once; None until it has said so.
        """
        now = self._effects.now()
        if client is not self.client or self.process != "ready":
            self.breaker.reset()
            self.health.reset()
            self.refused = False
            self.idle_since = now
        if client is not self.client:
            self._retire()
            self.client, self.address = client, address
            if self.shift is not None and self.shift.client is client:
                self.shift = None
        if self._starting_at is not None:
            self.load_seconds, self._starting_at = now - self._starting_at, None
        self.process, self.code, self.awaited = "ready", None, False
        self.said_slots = slots
        self.count_slots()
        self.judge(ASSUMED if self.spec.runtime == "external" else "the engine is ready")
        if self.waiting:
            self._effects.wake(self)  # the limit may not have changed, but all slots of a new process are free

    def set_process(self, process: Process, reason: str, code: str | None = None, *, awaited: bool = False, retry_at: float = 0.0) -> None:
        """What the supervisor says about its process. awaited: requests may wait for it; retry_at: do not ask for it before."""
        if process != "starting":
            self._starting_at = None
        elif self._starting_at is None:
            self._starting_at = self._effects.now()
        self.process, self.code, self.awaited, self.retry_at = process, code, awaited, retry_at
        self.judge(reason)

    def begin(self, shift: Shift) -> None:
        """Sends a share of the requests to a second process, which counts their results."""
        self.shift = shift

    def give_up(self, shift: Shift) -> None:
        """Sends no further requests to the second process; those under way there finish."""
        if self.shift is not shift:
            return
        self.shift = None
        self.in_flight -= shift.in_flight
        self._part(shift.client, shift.address, shift.in_flight)
        if self.waiting:
            self._effects.wake(self)
        if not self.in_flight:
            self._emptied()

    def probed(self, result: ProbeResult, *, decisive: bool = False) -> None:
        """Takes the result of an active probe. decisive: the probe followed a failed request, so that one more failure is enough."""
        refusing = (self.refused, self.health.refused)
        changed = self.health.observe(result, decisive)
        self.details, self.reason = result.details, "the probes succeed" if result.ok and self.reason == ASSUMED else self.reason
        if result.refused or (decisive and not result.ok and not result.loading):
            self.refused, self.tripped = result.refused, True
            changed = self.breaker.trip(self._effects.now()) or changed
        elif result.ok and self.tripped and self.breaker.state == "open":
            self.tripped = False
            self.breaker.until = self._effects.now()  # it answers again: the opening need not last any longer
            changed = self.breaker.due(self.breaker.until) or changed
        if result.slots is not None:
            self.said_slots = result.slots
            changed = self.count_slots() or changed
        if changed or refusing != (self.refused, self.health.refused):
            self.judge(result.reason or "the probes succeed")

    def tick(self, now: float) -> bool:
        """Applies changes due to time; True while more are to come (an open breaker, a slow start)."""
        if self.breaker.due(now):
            self.judge("the breaker lets one request through")
        elif self._ramp_from is not None:
            self.judge("")
        return self.breaker.state == "open" or self._ramp_from is not None

    def drain(self, on: bool) -> None:
        self.drained = on
        self.judge("drained by an operator" if on else "resumed by an operator")

    def force(self, state: Forced | None) -> None:
        """Overrides the breaker, and with `closed` the probes too; None ends that."""
        self.breaker.forced = state
        self.judge(f"forced {state} by an operator" if state else "no longer forced by an operator")

    def reconfigure(self, spec: EngineSpec, breaker: BreakerSpec) -> None:
        """Applies settings that need no new connections."""
        if spec is self.spec and breaker == self.breaker.spec:
            return  # of ten thousand endpoints, a reload changes a few
        self.spec, self.health.spec, self.breaker.spec = spec, spec.health, breaker
        self.count_slots()
        self.judge("")

    def when_idle(self) -> Signal[None]:
        """Completes when no request is in flight here."""
        signal: Signal[None] = Signal()
        if self.in_flight:
            self._idle.append(signal)
        else:
            signal.set(None)
        return signal

    def when_gone(self, address: str) -> Signal[None]:
        """Completes when no request is in flight at this address, whether it is the endpoint's present one or an earlier one."""
        signal: Signal[None] = Signal()
        for retired in self._retired.values():
            if retired.address == address:
                retired.waiting.append(signal)
                return signal
        if self.address == address:
            return self.when_idle()
        signal.set(None)
        return signal

    @property
    def returns(self) -> bool:
        """Whether it is only out for a while: its engine is starting or restarting, or an operator drains it."""
        return not self.leaving and (self.process not in ("ready", "unloaded") or self.drained)

    @property
    def asleep(self) -> bool:
        """Whether its engine is unloaded, or being unloaded, for lack of requests and would be loaded for one."""
        if self.drained or self.leaving:
            return False
        if self.process == "unloaded":
            return self._effects.now() >= self.retry_at
        return self.process == "unloading" or (self.process == "starting" and self.awaited)

    def want(self) -> bool:
        """Has its engine loaded if it is unloaded; whether a request may wait for it."""
        if not self.asleep:
            return False
        if self.process == "unloaded":
            self._effects.want(self)
        return True

    def load_left(self, now: float) -> float:
        """Seconds that the load under way will still take: judged by the last one, else as long again as it has taken so far."""
        if self._starting_at is None:
            return LOADING_SECONDS
        elapsed = now - self._starting_at
        return max(LOADING_SECONDS, elapsed) if self.load_seconds is None else max(1.0, self.load_seconds - elapsed)

    def leave(self) -> None:
        """Removed from the configuration: serves the requests that wait for it, and closes when the last one has ended."""
        self.leaving = True
        if self.shift is not None:
            self.give_up(self.shift)
        if not self.in_flight:
            self._emptied()

    # -- inside ---------------------------------------------------------------------------------------------------------------------

    def count_slots(self) -> bool:
        """The setting counts for an external engine (others may share it), and for a sidecar what it reports; in a data worker its share
        of them. True when the number changed."""
        spec, before = self.spec, self.slots
        configured = spec.slots if spec.runtime == "external" else None
        self.slots = self.share if self.share is not None else configured or self.said_slots or spec.start_slots
        return self.slots != before

    def judge(self, reason: str) -> None:
        """Derives the state and the limits from the reports of the three sources."""
        old, old_slots, spared = self.state, self.limit, self.reserve > 0
        state, why = self._verdict()
        self.epoch, self.half_open, self.limit, self.reserve = self.breaker.epoch, state == "half_open", 0, 0
        self.probing = self.breaker.probing
        if state == "ready":
            if old != "ready" and self.spec.health.slow_start > 0:
                self._ramp_from = self._effects.now()
            self.limit = self.reserve = self._ramped()
        else:
            self._ramp_from = None
            soft = state in ("open", "unhealthy") and not (self.refused or self.health.refused) and self.breaker.forced is None
            if state == "half_open":
                self.limit = self.slots if self.turn and self.breaker.admits else 0  # the first request takes it back to 0, see `admitted`
            if state == "half_open" or soft:
                self.reserve = self.slots
        self.state = state
        if state != old:
            self.reason = reason or why
            self._effects.changed(self, old, self.reason)
        elif spared != (self.reserve > 0):
            self._effects.stale()
        if self.breaker.state == "open" or self._ramp_from is not None:
            self._effects.tick_soon()
        if self.waiting and (self.limit > old_slots or state != old or spared != (self.reserve > 0)):
            self._effects.wake(self)

    def _verdict(self) -> tuple[State, str]:
        forced = self.breaker.forced
        if self.process == "unloading":
            return "draining", "the engine is being unloaded"
        if self.process != "ready":
            return self.process, self.process
        if self.drained:
            return "draining", "drained by an operator"
        if forced is None and not self.health.healthy:
            return "starting" if self.health.loading else "unhealthy", self.health.reason
        breaker = self.breaker.effective
        return ("ready", "ready") if breaker == "closed" else (breaker, f"its breaker is {breaker}")

    def _ramped(self) -> int:
        """The slots that a slow start allows now; all of them when it is over."""
        if self._ramp_from is None:
            return self.slots
        share = (self._effects.now() - self._ramp_from) / max(self.spec.health.slow_start, 1e-9)
        if share >= 1:
            self._ramp_from = None
            return self.slots
        return min(self.slots, max(1, ceil(self.slots * max(SLOW_START_FROM, share))))

    def _emptied(self) -> None:
        """The last request in flight here has ended."""
        self.idle_since = self._effects.now()
        idle, self._idle = self._idle, []
        for signal in idle:
            signal.set(None)
        if self.leaving and not self.in_flight and not self.waiting:
            self._retire()
            self.set_process("draining", "removed from the configuration")
            self._effects.left(self)

    def _retire(self) -> None:
        """Uses the client for no further requests; it closes when those it carries have ended."""
        client, address, self.client, self.address = self.client, self.address, None, None
        if client is None:
            return
        elsewhere = self.shift.in_flight if self.shift is not None else 0
        carried, self.in_flight = self.in_flight - elsewhere, elsewhere
        self._part(client, address, carried)

    def _part(self, client: EngineClient, address: str | None, carried: int) -> None:
        if carried:
            self._retired[client] = Retired(address, carried)
        else:
            self._effects.close(client)

    def _release_other(self, client: EngineClient) -> None:
        """An attempt ended in the second process of a shift, or in one that has been replaced."""
        shift = self.shift
        if shift is not None and client is shift.client:
            shift.released()
            self.in_flight -= 1
            return
        retired = self._retired[client]
        retired.in_flight -= 1
        if not retired.in_flight:
            del self._retired[client]
            self._effects.close(client)
            for signal in retired.waiting:
                signal.set(None)
