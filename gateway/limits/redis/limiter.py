"""Limits whose state is in Redis, so that they count once over all processes and replicas: the Limiter of one Snapshot.

A request waits for one answer, which it shares with all others of this turn of the loop (gateway.limits.redis.shared).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from gateway.core.ports import Reservation
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Maybe
from gateway.limits.bucket import Amounts, Bucket, Shape, bounded
from gateway.limits.local import MEMO_SIZE, UNLIMITED, Loop, Rules
from gateway.limits.redis.calls import Asked
from gateway.limits.redis.meters import PS
from gateway.limits.redis.names import Names
from gateway.limits.redis.pot import Pot, Terms
from gateway.limits.redis.shared import SharedLimits
from gateway.limits.registry import LOOK, BucketRegistry, Entry
from gateway.transport.redis.resp import word_of

CAPACITY: Final = 100_000


class PotRegistry(BucketRegistry):
    """Pots are forgotten so that nobody is admitted more for it, outages included: those that nobody uses, of which Redis has said nothing
    for LOOK, and whose debts have drained away since; none while Redis is away. Where there are too many, those that have drained at once,
    and, while Redis is there, then those that nobody uses: if it goes away afterwards, they count as full in this process.

    shared: the conversation that the pots are in.
    """

    def __init__(self, capacity: int, make: Callable[[Shape, tuple[str, ...], int], Bucket]) -> None:
        super().__init__(capacity, make)
        self.shared: SharedLimits | None = None

    def _unused(self, part: list[Entry], now: int) -> list[tuple[Shape, tuple[str, ...]]]:
        shared = self.shared
        found: list[tuple[Shape, tuple[str, ...]]] = []
        if shared is None or not shared.up:
            return found
        pinned, ours, redis_now = shared.pinned(), now // PS, shared.redis_now()
        before = ours - LOOK // PS
        for identity, bucket in part:
            pot = cast(Pot, bucket)
            if pot.seen <= before and pot.free(ours) and pot not in pinned and pot.drained(ours, redis_now):
                found.append(identity)
        return found

    def _spare(self, part: list[Entry], wanted: int, now: int) -> list[tuple[Shape, tuple[str, ...]]]:
        shared = self.shared
        drained: list[tuple[Shape, tuple[str, ...]]] = []
        if shared is None:
            return drained
        others: list[tuple[Shape, tuple[str, ...]]] = []
        pinned, ours, redis_now, up = shared.pinned(), now // PS, shared.redis_now(), shared.up
        for identity, bucket in part:
            pot = cast(Pot, bucket)
            if not pot.free(ours) or pot in pinned:
                continue
            if pot.drained(ours, redis_now):
                drained.append(identity)
                if len(drained) >= wanted:
                    break
            elif up and len(others) < wanted:
                others.append(identity)
        return drained + others[: wanted - len(drained)]


class Pots:
    """The pots of a process, by the keys of their buckets; outlives Snapshots. prefix: what all keys begin with."""

    def __init__(self, prefix: str, capacity: int = CAPACITY) -> None:
        self.names = Names(prefix)
        self._terms: dict[Shape, Terms] = {}
        self.registry = PotRegistry(capacity, self._make)

    def process(self, who: str) -> bytes:
        """The key of a process."""
        return self.names.process(who)

    def _make(self, shape: Shape, key: tuple[str, ...], now: int) -> Bucket:
        terms = self._terms.get(shape)
        if terms is None:
            self._terms = {known: terms for known, terms in self._terms.items() if self.registry.has_shape(known)}
            terms = self._terms[shape] = Terms(shape, 0)
        return Pot(terms, shape, key, word_of(self.names.bucket(shape, key)))


class PotsApplying:
    """What applies to one caller, model and operation."""

    __slots__ = ("loops", "pots")

    def __init__(self, pots: tuple[Pot, ...], loops: Sequence[Loop]) -> None:
        self.pots, self.loops = pots, tuple(loops)


class RedisLimiter:
    """The Limiter over buckets in Redis. estimate: tokens to reserve (gateway.limits.estimates)."""

    def __init__(
        self,
        rules: Rules,
        shared: SharedLimits,
        pots: Pots,
        *,
        estimate: Callable[[InferenceRequest], tuple[int, int]],
        memo_size: int = MEMO_SIZE,
    ) -> None:
        self._rules, self._shared, self._registry, self._estimate = rules, shared, pots.registry, estimate
        pots.registry.shared = shared
        self._memo: dict[tuple[Principal, str, str], PotsApplying] = {}
        self._memo_size = memo_size
        self._generation = self._registry.generation
        self._version = self._registry.next_version()

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        """Takes from every bucket that applies. Raises LimitExceeded (429) if one has too little, and Overloaded (503) if Redis is away and
        a limit says `on_failure: closed`; both may also come out of the wait. Neither changes a bucket."""
        if self._generation != self._registry.generation:
            self._memo.clear()
            self._generation = self._registry.generation
        applying = self._memo.get((principal, request.model, request.operation))
        if applying is None:
            applying = self._resolve(principal, request.model, request.operation)
        would: list[str] = []
        if applying.loops:
            would = self._rules.check_loops(applying.loops, request)
        pots = applying.pots
        if not pots and not would:
            return UNLIMITED
        raw = request.prompt_tokens
        prompt, completion = self._estimate(request)
        amounts = Amounts(request, raw, prompt, completion)
        if request.most > 0:
            amounts = bounded(request, pots, 0, amounts)
        units: list[list[int]] = []
        ticks: list[list[int]] = []
        leased = bool(pots)
        for pot in pots:
            terms = pot.terms
            if terms.calendar or pot.turn != terms.turn or pot.units is not pot.shape.units:
                pot.follow(self._shared.redis_now())
            cost = pot.shape.costs(amounts)
            units.append(cost)
            ticks.append(terms.ticks(cost))
            if not terms.leased:
                leased = False
        return self._shared.ask(Asked(pots, units, ticks, amounts, would, leased))

    def _resolve(self, principal: Principal, model: str, operation: str) -> PotsApplying:
        scopes = self._rules.applying(principal, model, operation)
        pots = cast(tuple[Pot, ...], self._registry.buckets(scopes, self._shared.now() * PS, self._version))
        if self._generation != self._registry.generation:
            self._memo.clear()  # making room may have forgotten pots that the memo holds
            self._generation = self._registry.generation
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        found = self._memo[(principal, model, operation)] = PotsApplying(pots, self._rules.loops(principal, model, operation))
        return found
