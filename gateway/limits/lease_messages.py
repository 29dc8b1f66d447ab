"""What a worker and its control process tell each other about limits (gateway.limits.leased and gateway.limits.lease_book).

Times are whole nanoseconds of the machine's monotonic clock, which all processes share; debts are picoseconds of it. Requests, tokens and
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

    limit, key: the bucket. tokens: the cost. lease: the number of the lease that the rest is of. spent_requests, spent_tokens: used of it
    since the last report. requests, tokens_left, slot: what the worker has left for this request, and hands back with it.
    """

    limit: int
    key: tuple[str, ...]
    tokens: int = 0
    lease: int = 0
    spent_requests: int = 0
    spent_tokens: int = 0
    requests: int = 0
    tokens_left: int = 0
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
    spent_requests: int = 0
    spent_tokens: int = 0
    requests: int = 0
    tokens: int = 0
    slots: int = 0
    recalled: bool = False


class Corrected(Struct, frozen=True, array_like=True):
    """An exchange ended that had reserved tokens at `taken_at`, and cost `actual`. requests: 1 if it was not served and costs none."""

    limit: int
    key: tuple[str, ...]
    taken_at: int
    reserved: int = 0
    actual: int = 0
    requests: int = 0


class LeaseCall(Message, frozen=True):
    """Worker -> control. limits: those that are named by a number from now on. dropped: numbers that mean nothing from now on."""

    limits: list[tuple[int, LimitSpec]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    corrected: list[Corrected] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)


class Level(Struct, frozen=True, array_like=True):
    """A bucket as the control process sees it after a decision: how far from full, and whether all slots are taken."""

    requests_debt: int = 0
    tokens_debt: int = 0
    crowded: bool = False


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
    requests: int = 0
    tokens: int = 0
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
    requests: int
    tokens: int
    slots: int
    expires_in: int
    size: int


class AccountState(Struct, frozen=True, array_like=True):
    """One bucket with its leases. Times are picoseconds from the moment of the BookState, at most MAX_DEBT away."""

    limit: LimitSpec
    key: tuple[str, ...]
    requests_debt: int
    tokens_debt: int
    requests_idle: int
    tokens_idle: int
    leases: list[LeaseState] = []


class BookState(Struct, frozen=True):
    """A LeaseBook on its way to the next image of the control process. at: nanoseconds of the monotonic clock. workers: the numbers by
    which each of them names limits."""

    at: int
    next_lease: int
    accounts: list[AccountState]
    workers: dict[str, list[tuple[int, LimitSpec]]]
