"""What a worker and its control process tell each other about limits (gateway.limits.leased and gateway.limits.lease_book).

Times are whole nanoseconds of the machine's monotonic clock, which all processes share; debts are picoseconds of it. Amounts and
slots are whole numbers. All records but the three messages themselves travel as arrays.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from gateway.core.messages import Message
from gateway.core.specs import LimitSpec

MAX_DEBT: Final = 1 << 62
"""Debts are cut to this before they are sent, as MessagePack has 64 bits: 53 days of refilling, in picoseconds."""


class Part(Struct, frozen=True, array_like=True):
    """One bucket of a request that the worker could not decide by itself.

    limit, key: the bucket. costs: of each amount. lease: the number of the lease that the rest is of. spent: used of it since the last
    report. left, slot: what the worker has left for this request, and hands back with it.
    """

    limit: int
    key: tuple[str, ...]
    costs: list[int] = []
    lease: int = 0
    spent: list[int] = []
    left: list[int] = []
    slot: int = 0


class Wanted(Struct, frozen=True, array_like=True):
    """A request: all of its buckets, or none. id: counted by the worker."""

    id: int
    parts: list[Part]


class Returned(Struct, frozen=True, array_like=True):
    """Of a lease: what was used since the last report, and what the worker gives back. recalled: this answers a Recall."""

    limit: int
    key: tuple[str, ...]
    lease: int = 0
    spent: list[int] = []
    back: list[int] = []
    slots: int = 0
    recalled: bool = False


class Corrected(Struct, frozen=True, array_like=True):
    """An exchange ended that had reserved so much of each amount at `taken_at`, and cost `actual`."""

    limit: int
    key: tuple[str, ...]
    taken_at: int
    reserved: list[int] = []
    actual: list[int] = []


class LeaseCall(Message, frozen=True):
    """Worker -> control. limits: those that are named by a number, with the version of the configuration that they are from: such a number
    is told again when the limit's settings change. dropped: numbers that mean nothing from now on."""

    limits: list[tuple[int, LimitSpec, int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    corrected: list[Corrected] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)


class Level(Struct, frozen=True, array_like=True):
    """A bucket as the control process sees it after a decision. debts: how far each amount is from full. waits: until when there will not
    be more of each that time does not refill. crowded: all slots are taken. ended: the session has lasted as long as it may. away: the
    store, which counts it, does not answer. charged: the request was charged here, too; not so where the limit is not enforced and
    short."""

    debts: list[int] = []
    waits: list[int] = []
    crowded: bool = False
    ended: bool = False
    away: bool = False
    charged: bool = True


class Decided(Struct, frozen=True, array_like=True):
    """A decision about a Wanted, with the level of each of its buckets. at: when."""

    id: int
    admitted: bool
    at: int
    levels: list[Level]


class Granted(Struct, frozen=True, array_like=True):
    """A share for the requests to come, of the bucket that is number `part` of the Wanted `id`. It may be used until `expires`.

    lease: a new number means that nothing is left of the lease before.
    """

    id: int
    part: int
    lease: int
    expires: int
    amounts: list[int] = []
    slots: int = 0


class LeaseReply(Message, frozen=True):
    """Control -> worker."""

    decided: list[Decided] = field(default_factory=list)
    granted: list[Granted] = field(default_factory=list)


class LeaseRecall(Message, frozen=True):
    """Control -> worker: others are short of these buckets (limit, key). The worker answers with a Returned for each, and for the next
    second keeps no slot that it does not use."""

    buckets: list[tuple[int, tuple[str, ...]]]


class LeaseState(Struct, frozen=True, array_like=True):
    """What one worker holds of one bucket."""

    worker: str
    lease: int
    amounts: list[int]
    slots: int
    expires_in: int
    size: int


class StockState(Struct, frozen=True, array_like=True):
    """A block of an amount that the store counts (gateway.limits.stock). Times are picoseconds from the moment of the BookState."""

    hand: int
    left: int
    window: int
    good_for: int
    begun: int


class AccountState(Struct, frozen=True, array_like=True):
    """One bucket with its leases. Times are picoseconds from the moment of the BookState, at most MAX_DEBT away; of an amount that time
    does not refill, `debts` has what is used. stocks: by the number of the amount. since, used: of a session."""

    limit: LimitSpec
    key: tuple[str, ...]
    debts: list[int]
    idle: list[int]
    leases: list[LeaseState] = []
    stocks: dict[int, StockState] = {}
    since: int = 0
    used: int = 0


class BookState(Struct, frozen=True):
    """A LeaseBook on its way to the next image of the control process. at: nanoseconds of the monotonic clock. workers: the numbers by
    which each of them names limits."""

    at: int
    next_lease: int
    accounts: list[AccountState]
    workers: dict[str, list[tuple[int, LimitSpec]]]
