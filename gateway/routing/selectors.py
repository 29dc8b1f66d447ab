"""Routing policies: which member of a pool gets a request. Pure and synchronous; a policy only reads.

A selector is built over a pool's members and chooses one of those that have a free slot (`in_flight < limit`), or None. `keyed` policies
get a routing key. The table is ROWS of this package.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from gateway.core.clock import Entropy
from gateway.core.engine_copies import shown
from gateway.core.ports import EngineClient
from gateway.core.prices import DeviceRate
from gateway.core.specs import TimeoutsSpec
from gateway.routing.endpoints import Endpoint
from gateway.routing.ring import WALK, Ring

_WALK: Final = WALK
"""Steps along the ring before the search continues member by member: bounds the cost when most of a large pool is full."""
_WINDOW: Final = 64
"""How many members least_outstanding compares in a large pool."""
_TOP = 1 << 64
T = TypeVar("T")


class Member:
    """One endpoint in one pool. `load`: requests of this pool in flight there. clearance: the labels of data that it may see; None: all.
    counting: how it is asked for the tokens of a prompt (gateway.core.ports.Counter).
    The rest is what an attempt copies."""

    __slots__ = (
        "apis",
        "clearance",
        "counting",
        "endpoint",
        "endpoint_header",
        "first_byte_timeout",
        "idle_timeout",
        "index",
        "load",
        "rate",
        "request_headers",
        "salting",
        "timeouts",
        "total_timeout",
        "upstream_model",
        "weight",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        index: int,
        weight: float,
        timeouts: TimeoutsSpec,
        upstream_model: str | None = None,
        request_headers: bytes = b"",
        salting: str = "none",
        rate: DeviceRate | None = None,
        clearance: frozenset[str] | None = None,
        apis: tuple[str, ...] = (),
        counting: str = "tokenize",
    ) -> None:
        self.endpoint, self.index, self.weight, self.timeouts = endpoint, index, weight, timeouts
        self.upstream_model, self.request_headers = upstream_model, request_headers
        self.endpoint_header = f"x-gatehouse-endpoint: {shown(endpoint.name)}\r\n".encode()
        self.first_byte_timeout, self.idle_timeout = timeouts.first_byte, timeouts.between_bytes
        self.total_timeout = timeouts.total
        self.salting, self.rate, self.clearance = salting, rate, clearance
        self.apis, self.counting = apis, counting
        self.load = 0.0

    def alike(self, index: int) -> Member:
        """The same endpoint with the same settings, as a member of another pool."""
        named, headers, salting = self.upstream_model, self.request_headers, self.salting
        return Member(
            self.endpoint, index, self.weight, self.timeouts, named, headers, salting, self.rate, self.clearance, self.apis, self.counting
        )

    @property
    def counts_with(self) -> EngineClient:
        """Its connections, for questions that take no slot."""
        client = self.endpoint.client
        assert client is not None  # a ready endpoint has one
        return client

    def cleared(self, labels: frozenset[str]) -> bool:
        """Whether it may see data with these labels."""
        return self.clearance is None or labels <= self.clearance

    @property
    def settings(self) -> tuple[object, ...]:
        """Everything but the counter; members with equal settings are interchangeable."""
        return (
            id(self.endpoint),
            self.weight,
            self.upstream_model,
            self.request_headers,
            self.first_byte_timeout,
            self.idle_timeout,
            self.total_timeout,
            self.salting,
            self.apis,
            self.counting,
            None if self.rate is None else self.rate.version,
            self.clearance,
        )


class Selector(Protocol):
    """A routing policy over fixed members."""

    keyed: bool

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        """The member for a request. key: 0 <= key < 2**64 (0 unless `keyed`). average: the pool's requests in flight, including
        this one, per unit of available weight. exclude: endpoints that were tried already."""
        ...


def free(member: Member, exclude: tuple[str, ...] = ()) -> bool:
    """Whether a member can take one more request."""
    endpoint = member.endpoint
    return endpoint.in_flight < endpoint.limit and endpoint.name not in exclude


def spare(member: Member, exclude: tuple[str, ...] = ()) -> bool:
    """The same in panic mode."""
    endpoint = member.endpoint
    return endpoint.in_flight < endpoint.reserve and endpoint.name not in exclude


class Only:
    """The only member of its pool, whatever the policy."""

    keyed = False

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy) -> None:
        self._member = members[0]

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        member = self._member
        endpoint = member.endpoint
        return member if endpoint.in_flight < endpoint.limit and (not exclude or endpoint.name not in exclude) else None


def ring_of(members: Sequence[Member]) -> tuple[list[str], list[float]]:
    """Names and weights of a pool's ring."""
    return [member.endpoint.name for member in members], [member.weight for member in members]


class ConsistentHash:
    """A consistent-hash ring with bounded loads: the key's member, or the next one that is below bound x average load.

    When every free member is at its bound (slots differ, endpoints are shared), it is the first free one after the key.
    """

    keyed = True

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy, ring: Ring | None = None) -> None:
        self._members = list(members)
        self._bound = bound
        ring = ring or Ring(*ring_of(members))
        self._search, self._owners = ring.search, ring.owners

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        shift, starts, positions = self._search  # this is Ring.at: a call would cost as much as the search
        place = starts[key >> shift]
        while positions[place] <= key:
            place += 1
        members, owners, cap = self._members, self._owners, self._bound * average
        end = place + _WALK
        while place < end:  # usually one or two steps, which cost less than a range
            member = members[owners[place]]
            place += 1
            if member.load < cap * member.weight:  # load + 1 <= ceil(...): with this request it is still within the bound
                endpoint = member.endpoint
                if endpoint.in_flight < endpoint.limit and (not exclude or endpoint.name not in exclude):
                    return member
        return self._further(key, [members[owner] for owner in owners[end - _WALK : end]], cap, exclude)

    def _further(self, key: int, walked: list[Member], cap: float, exclude: tuple[str, ...]) -> Member | None:
        members = _rotated(self._members, key % len(self._members))
        within = next((member for member in members if member.load < cap * member.weight and free(member, exclude)), None)
        return within or next((member for member in (*walked, *members) if free(member, exclude)), None)


class LeastOutstanding:
    """The member with the fewest requests in flight relative to its weight; equals take turns.

    In pools of more than WINDOW members it is the best of that many, another window each time.
    """

    keyed = False

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy) -> None:
        self._members = list(members)
        self._by_endpoint = {id(member.endpoint): member for member in members}
        self._endpoints = [member.endpoint for member in members] * 2  # twice in a row, so that a window is one slice
        self._equal = len({member.weight for member in members}) == 1
        self._step = 1 if len(members) <= _WINDOW else _WINDOW
        self._turn = 0

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        size = len(self._members)
        self._turn = turn = (self._turn + self._step) % size
        if self._equal and not exclude:
            endpoint = min(self._endpoints[turn : turn + min(size, _WINDOW)], key=_IN_FLIGHT)
            if endpoint.in_flight < endpoint.limit:
                return self._by_endpoint[id(endpoint)]
        candidates = [member for member in _rotated(self._members, turn) if free(member, exclude)]
        return min(candidates, key=_outstanding, default=None)


class PowerOfTwo:
    """The better of two members drawn by weight ("The Power of Two Choices", Mitzenmacher, 2001)."""

    keyed = False

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy) -> None:
        self._members = list(members)
        self._uniform = entropy.uniform
        self._sums = list(accumulate(member.weight for member in members))

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        one, two = self._draw(), self._draw()
        better = one if _outstanding(one) <= _outstanding(two) else two
        for member in (better, two if better is one else one):
            if free(member, exclude):
                return member
        return min((member for member in self._members if free(member, exclude)), key=_outstanding, default=None)

    def _draw(self) -> Member:
        return self._members[min(bisect_right(self._sums, self._uniform() * self._sums[-1]), len(self._members) - 1)]


class RoundRobin:
    """In turns; different weights are interleaved smoothly (nginx's algorithm)."""

    keyed = False

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy) -> None:
        self._members = list(members)
        self._equal = len({member.weight for member in members}) == 1
        self._turn = -1
        self._current = [0.0] * len(members)

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        if not self._equal:
            return self._smooth(exclude)
        size = len(self._members)
        for step in range(1, size + 1):
            member = self._members[(self._turn + step) % size]
            if free(member, exclude):
                self._turn = (self._turn + step) % size
                return member
        return None

    def _smooth(self, exclude: tuple[str, ...]) -> Member | None:
        candidates = [(at, member) for at, member in enumerate(self._members) if free(member, exclude)]
        if not candidates:
            return None
        for at, member in candidates:
            self._current[at] += member.weight
        best, chosen = max(candidates, key=lambda pair: self._current[pair[0]])
        self._current[best] -= sum(member.weight for _, member in candidates)
        return chosen


class Weighted:
    """By weight, and always the same member for a key: for canary releases and A/B tests. Shares follow the weights exactly.

    A key is a position on a line as long as the sum of the weights. With two members, a change of the weights moves only the keys that it
    must. A member that is not free is passed over for the next one on the line.
    """

    keyed = True

    def __init__(self, members: Sequence[Member], bound: float, entropy: Entropy) -> None:
        self._members = list(members)
        self._sums = list(accumulate(member.weight for member in members))

    def choose(self, key: int, average: float, exclude: tuple[str, ...]) -> Member | None:
        at = min(bisect_right(self._sums, key / _TOP * self._sums[-1]), len(self._members) - 1)
        member = self._members[at]
        if free(member, exclude):
            return member
        return next((other for other in _rotated(self._members, at) if free(other, exclude)), None)


_IN_FLIGHT: Callable[[Endpoint], int] = attrgetter("in_flight")


def _outstanding(member: Member) -> float:
    return member.endpoint.in_flight / member.weight


def _rotated(items: list[T], by: int) -> list[T]:
    return items[by:] + items[:by]
