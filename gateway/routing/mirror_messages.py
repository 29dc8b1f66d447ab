"""What the control process and its data workers tell each other about engines and endpoints (gateway.routing.mirror, .follower).

Times are seconds from the sending on, as each process has its own idea of an opening or a pause that began before it was started. All
messages of one worker arrive in the order in which they were sent.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from gateway.core.messages import Message

# --- control -> worker


class EngineReported(Message, frozen=True):
    """The supervisor's last report about an engine. slots: of the process at `address`, over all workers."""

    engine: str
    process: Literal["starting", "ready", "draining", "unloading", "unloaded", "down"]
    address: str | None = None
    slots: int = 1
    reason: str = ""
    code: str | None = None
    awaited: bool = False
    retry_after: float = 0.0


class ShiftBegun(Message, frozen=True):
    """A share of an engine's requests is to go to its second process at this address."""

    shift: int
    engine: str
    address: str
    share: float = 0.0


class ShiftMoved(Message, frozen=True):
    shift: int
    share: float


class ShiftEnded(Message, frozen=True):
    """The first process has all the traffic again, unless the second one is in force by now."""

    shift: int


class EndpointProbed(Message, frozen=True):
    """The result of one probe. decisive: it followed a failed request."""

    endpoint: str
    address: str
    ok: bool
    reason: str = ""
    refused: bool = False
    loading: bool = False
    decisive: bool = False


class EndpointMarked(Message, frozen=True):
    """What an operator has set: no new requests there; the breaker held open or closed."""

    endpoint: str
    drained: bool = False
    forced: Literal["open", "closed"] | None = None


class HealthKnown(Message, frozen=True):
    """What the probes of an endpoint have shown so far."""

    endpoint: str
    healthy: bool
    loading: bool = False
    refused: bool = False
    reason: str = ""


class BreakerSet(Message, frozen=True):
    """The breaker of an endpoint is in this state over all workers. number: it grows with each change of this endpoint's breaker.
    seconds: how long an opening still lasts. tripped: it opened for a reason that probes see too."""

    endpoint: str
    address: str
    number: int
    state: Literal["open", "closed"]
    seconds: float = 0.0
    openings: int = 0
    refused: bool = False
    tripped: bool = False


class BreakerTurn(Message, frozen=True):
    """Whether this worker may send the probe request of a half-open breaker. It answers the withdrawal by `TurnReturned`."""

    endpoint: str
    yours: bool


class SlotsGiven(Message, frozen=True):
    """So many slots of the process at this address are for this worker. It answers each by `SlotsUsed`."""

    engine: str
    address: str
    number: int
    slots: int


class DrainedAsked(Message, frozen=True):
    """Asks for `DrainedSaid` once no request is under way at this address. `asked`: the number of the question."""

    asked: int
    engine: str
    address: str


class FleetState(Message, frozen=True):
    """Everything that a worker must know: at its start, after it has put a configuration into force, and when it has missed something.
    Endpoints that are not named are healthy, closed and not drained; shifts that are not named have ended. numbers: see `BreakerSet`.
    seen: see `EndpointRegistry`. only: the state is of these endpoints, and their engines, alone: the others stay as they are. Shifts are
    always complete."""

    reports: list[EngineReported] = field(default_factory=list)
    slots: list[SlotsGiven] = field(default_factory=list)
    shifts: list[ShiftBegun] = field(default_factory=list)
    marks: list[EndpointMarked] = field(default_factory=list)
    health: list[HealthKnown] = field(default_factory=list)
    breakers: list[BreakerSet] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    seen: bool = False
    only: list[str] | None = None


# --- control -> the control process that takes its place


class SlotsHeld(Message, frozen=True):
    """What a worker was given. held: how many requests may be under way there at most, until it has confirmed less."""

    engine: str
    address: str
    worker: str
    number: int
    slots: int
    held: int


# --- worker -> control


class EngineWanted(Message, frozen=True):
    """A request waits for this engine, which is not loaded."""

    engine: str


class EndpointSuspected(Message, frozen=True):
    """A request failed there: it should be probed now."""

    endpoint: str
    address: str


class BreakerLearnt(Message, frozen=True):
    """The result of a request has changed this worker's breaker. number: of the last `BreakerSet` that it knows."""

    endpoint: str
    address: str
    number: int
    state: Literal["open", "closed"]
    refused: bool = False


class TurnReturned(Message, frozen=True):
    """used: the probe request is under way, so that the turn stays here."""

    endpoint: str
    used: bool = False


class ShiftCounted(Message, frozen=True):
    """How many attempts of this worker went to the second process so far, and how many of them failed."""

    shift: int
    requests: int
    failures: int


class SlotsUse(Message, frozen=True, array_like=True):
    """number: of the last `SlotsGiven` that the worker follows. waiting: requests that wait for a slot there, among other places."""

    engine: str
    address: str
    number: int
    in_flight: int
    waiting: int = 0


class SlotsUsed(Message, frozen=True):
    uses: list[SlotsUse]


class DrainedSaid(Message, frozen=True):
    asked: int


class EndpointUse(Message, frozen=True, array_like=True):
    """idle: seconds since the last request there has ended, None while one is under way or waits. failures: consecutive ones."""

    endpoint: str
    in_flight: int
    waiting: int
    idle: float | None = None
    failures: int = 0


class FleetUsed(Message, frozen=True):
    """What has changed since the last one. queued: model -> requests that wait, of every model with some."""

    endpoints: list[EndpointUse] = field(default_factory=list)
    queued: dict[str, int] = field(default_factory=dict)
    shedding: int = 0


class RouterActivated(Message, frozen=True):
    """The worker has put another configuration's endpoints into force: asks for the `FleetState`. names: of those that are new, changed or
    gone; None asks for everything."""

    names: list[str] | None = None


TO_WORKER = (
    EngineReported,
    ShiftBegun,
    ShiftMoved,
    ShiftEnded,
    EndpointProbed,
    EndpointMarked,
    BreakerSet,
    BreakerTurn,
    SlotsGiven,
    DrainedAsked,
    FleetState,
)
"""Every message to a worker; those that are only parts of others are left out."""
TO_CONTROL = (
    EngineWanted,
    EndpointSuspected,
    BreakerLearnt,
    TurnReturned,
    ShiftCounted,
    SlotsUsed,
    DrainedSaid,
    FleetUsed,
    RouterActivated,
)
"""Every message to the control process."""
