"""Limits inside one process: takes from every bucket that applies, or from none, without waiting.

A reservation holds the estimated tokens. Settling it refunds what was not used, or charges the excess. Until then its buckets cannot be
forgotten. Guarantee: between two moments with nothing under way, no bucket hands out more than
burst + rate x time. While exchanges are under way, it can hand out more only by what they reserved and did not use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.core.clock import Clock, SystemClock
from gateway.core.ports import Reservation
from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.limits import headers
from gateway.limits.bucket import Bucket, Shape
from gateway.limits.exceeded import exceeded, whole_burst

log = logging.getLogger("gatehouse.limits")

MEMO_SIZE: Final = 16384
Scope = tuple[LimitSpec, tuple[str, ...]]
"""A limit and the key of its bucket (policies.limits)."""


class Rules(Protocol):
    """Decides which limits apply (policies.limits.LimitRules)."""

    def applying(self, principal: Principal, model: str) -> Sequence[Scope]: ...


class BucketRegistry:
    """Owns the buckets of a process, so that a reload keeps the state of every limit whose settings did not change.

    make: a bucket of another kind. Bounded by `capacity`: beyond it, buckets that are full and unused are forgotten, oldest first. No
    other bucket is ever forgotten; while there are only such, the registry grows, and logs that once.
    """

    def __init__(self, capacity: int = 100_000, make: Callable[[Shape, tuple[str, ...]], Bucket] | None = None) -> None:
        self.capacity = capacity
        self._make = make
        self.generation = 0
        """Changes whenever buckets are forgotten: a memo of buckets is then stale."""
        self._shapes: dict[LimitSpec, Shape] = {}
        self._buckets: dict[tuple[Shape, tuple[str, ...]], Bucket] = {}
        self._sweep_at = capacity
        self._warned = False

    def __len__(self) -> int:
        return len(self._buckets)

    def buckets(self, scopes: Sequence[Scope], now: int) -> tuple[Bucket, ...]:
        """The bucket of each limit for its key, made full if it is new. None of them is forgotten by this call."""
        if len(self._buckets) + len(scopes) > self._sweep_at:
            self._sweep(now)
        return tuple(self._bucket(self.shape(limit), key) for limit, key in scopes)

    def bucket(self, shape: Shape, key: tuple[str, ...], now: int) -> Bucket:
        """The bucket of one limit for a key, made full if it is new."""
        if len(self._buckets) >= self._sweep_at:
            self._sweep(now)
        return self._bucket(shape, key)

    def known(self, shape: Shape, key: tuple[str, ...]) -> Bucket | None:
        """The bucket of one limit for a key, if it is not forgotten."""
        return self._buckets.get((shape, key))

    def all(self) -> list[tuple[tuple[str, ...], Bucket]]:
        """Every bucket with its key."""
        return [(key, bucket) for (_, key), bucket in self._buckets.items()]

    def shape(self, limit: LimitSpec) -> Shape:
        """What all buckets of a limit share."""
        identity = limit_identity(limit)
        shape = self._shapes.get(identity)
        if shape is None:
            shape = self._shapes[identity] = Shape(identity)
        return shape

    def has_shape(self, shape: Shape) -> bool:
        """Whether buckets made from now on still use this one."""
        return self._shapes.get(shape.spec) is shape

    def _bucket(self, shape: Shape, key: tuple[str, ...]) -> Bucket:
        bucket = self._buckets.get((shape, key))
        if bucket is None:
            bucket = Bucket(shape) if self._make is None else self._make(shape, key)
            self._buckets[(shape, key)] = bucket
        return bucket

    def _sweep(self, now: int) -> None:
        """Forgets up to a quarter of the capacity, oldest first, so that one sweep makes room for many buckets."""
        wanted = len(self._buckets) - self.capacity + max(1, self.capacity // 4)
        idle = []
        for identity, bucket in self._buckets.items():
            if bucket.idle(now):
                idle.append(identity)
                if len(idle) >= wanted:
                    break
        for identity in idle:
            del self._buckets[identity]
        if idle:
            self.generation += 1
        used = {shape for shape, _ in self._buckets}
        self._shapes = {limit: shape for limit, shape in self._shapes.items() if shape in used or shape.pins}
        # While little can be forgotten, sweep again only after some growth: a sweep walks the whole table.
        self._sweep_at = max(self.capacity, len(self._buckets) + max(1, self.capacity // 16))
        if len(self._buckets) >= self.capacity and not self._warned:
            self._warned = True
            log.warning("more than %d limit buckets are in use at once; the table grows beyond its capacity", self.capacity)


def limit_identity(limit: LimitSpec) -> LimitSpec:
    """Limits with the same name, `per` and rates share their buckets, whomever they match."""
    return LimitSpec(name=limit.name, per=limit.per, requests=limit.requests, tokens=limit.tokens, concurrent=limit.concurrent)


class LocalLimiter:
    """The Limiter over in-process buckets. estimate, charge: what a request costs (policies.limits)."""

    def __init__(
        self,
        rules: Rules,
        registry: BucketRegistry,
        *,
        estimate: Callable[[InferenceRequest], tuple[int, int]],
        charge: Callable[[Usage], int],
        clock: Clock | None = None,
        memo_size: int = MEMO_SIZE,
    ) -> None:
        self._rules, self._registry = rules, registry
        self._estimate, self._charge = estimate, charge
        self._monotonic = (clock or SystemClock()).monotonic
        self._memo: dict[tuple[Principal, str], tuple[Bucket, ...]] = {}
        self._memo_size = memo_size
        self._generation = registry.generation

    def reserve(self, principal: Principal, request: InferenceRequest) -> Reservation:
        """Takes from every bucket that applies. Raises LimitExceeded (429) if one has too little, and then changes none."""
        if self._generation != self._registry.generation:
            self._memo.clear()
            self._generation = self._registry.generation
        buckets = self._memo.get((principal, request.model))
        now = int(self._monotonic() * 1_000_000_000_000)
        if buckets is None:
            buckets = self._resolve(principal, request.model, now)
        if not buckets:
            return UNLIMITED
        prompt, completion = self._estimate(request)
        if len(buckets) != 1:
            return self._reserve_several(buckets, prompt, prompt + completion, now)
        bucket = buckets[0]
        rate = bucket.shape.tokens
        token_ps = 0
        if rate is not None:
            token_ps = (prompt + completion) * rate.unit_ps
            if token_ps > rate.burst_ps:
                token_ps = whole_burst(bucket, prompt)
        if not bucket.admits(now, token_ps):
            raise exceeded(buckets, (token_ps,), now)
        bucket.take(now, token_ps)
        return Held(self, buckets, (token_ps,), now, headers.line(bucket, now))

    def _reserve_several(self, buckets: tuple[Bucket, ...], prompt: int, tokens: int, now: int) -> Held:
        costs = []
        admitted = True
        for bucket in buckets:
            rate = bucket.shape.tokens
            token_ps = 0
            if rate is not None:
                token_ps = tokens * rate.unit_ps
                if token_ps > rate.burst_ps:
                    token_ps = whole_burst(bucket, prompt)
            costs.append(token_ps)
            if not bucket.admits(now, token_ps):
                admitted = False
        if not admitted:
            raise exceeded(buckets, costs, now)
        for bucket, token_ps in zip(buckets, costs, strict=True):
            bucket.take(now, token_ps)
        return Held(self, buckets, costs, now, headers.lines(buckets, now))

    def _resolve(self, principal: Principal, model: str, now: int) -> tuple[Bucket, ...]:
        buckets = self._registry.buckets(self._rules.applying(principal, model), now)
        if self._generation != self._registry.generation:
            self._memo.clear()  # making room may have forgotten buckets that the memo holds
            self._generation = self._registry.generation
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        self._memo[(principal, model)] = buckets
        return buckets

    def settle(self, held: Held, usage: Usage | None) -> None:
        """Ends a reservation; called once for each by the reservation itself."""
        if usage is None:
            for bucket, reserved in zip(held.buckets, held.costs, strict=True):
                bucket.give_back(held.taken_at, reserved)
            return
        tokens = self._charge(usage)
        now = int(self._monotonic() * 1_000_000_000_000)
        if len(held.buckets) == 1:
            bucket = held.buckets[0]
            rate = bucket.shape.tokens
            bucket.correct(held.taken_at, now, held.costs[0], tokens * rate.unit_ps if rate is not None else 0)
            return
        for bucket, reserved in zip(held.buckets, held.costs, strict=True):
            rate = bucket.shape.tokens
            bucket.correct(held.taken_at, now, reserved, tokens * rate.unit_ps if rate is not None else 0)


class Held:
    """A reservation in in-process buckets: picoseconds taken from each one's tokens, and when."""

    __slots__ = ("_limiter", "_settled", "buckets", "costs", "headers", "taken_at")

    def __init__(self, limiter: LocalLimiter, buckets: tuple[Bucket, ...], costs: Sequence[int], taken_at: int, headers: bytes) -> None:
        self._limiter, self.buckets, self.costs, self.taken_at, self.headers = limiter, buckets, costs, taken_at, headers
        self._settled = False

    def settle(self, usage: Usage | None) -> None:
        """Charges the actual usage, or refunds all (None). A second call does nothing."""
        if self._settled:
            return
        self._settled = True
        self._limiter.settle(self, usage)


class Unlimited:
    """The reservation of a request that no limit applies to."""

    __slots__ = ()
    headers = b""

    def settle(self, usage: Usage | None) -> None:
        return None


UNLIMITED: Final = Unlimited()
