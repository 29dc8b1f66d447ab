"""The buckets of a process, which outlive every configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from gateway.core.slices import portions
from gateway.core.specs import LimitSpec
from gateway.limits.bucket import SECOND, Bucket, Shape, layout_of

log = logging.getLogger("gatehouse.limits")

Scope = tuple[LimitSpec, tuple[str, ...]]
"""A limit and the key of its bucket (policies.limits)."""
Entry = tuple[tuple[Shape, tuple[str, ...]], Bucket]
"""A bucket, and by what it is found."""
Identity = tuple[str, str, tuple[str, ...]]
"""What makes two limits the same: name, `per` and what is counted."""
LOOK: Final = 60 * SECOND
"""Between two looks for buckets that nobody uses any more (picoseconds), and for how long such a bucket was not used. Nothing is forgotten
unless it is half of all: so each new caller makes at most one other find its limits again, however short this is."""
PART: Final = 8192
SWEEP: Final = 2048
"""Buckets that are looked at where a new one is one too many."""
SHAPES: Final = 64
"""Limits beyond which those that have no bucket are forgotten."""
FEW: Final = 64
"""So many buckets are worth no look."""


class BucketRegistry:
    """Owns the buckets of a process, so that a reload keeps the state of every limit, whose amounts may change; one under a new name, with
    another `per` or that counts something else begins full.

    make: a bucket of another kind. durable: this process counts durable amounts in the store. Buckets that are full and were not used for
    LOOK are forgotten once they are half of all. Bounded by `capacity`: beyond it, those that are full and unused are forgotten soon, those
    that were looked at longest ago first. No other bucket is ever forgotten; while there are only such, the registry grows, and logs that
    once.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        make: Callable[[Shape, tuple[str, ...], int], Bucket] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self.capacity, self.durable = capacity, durable
        self._make = make
        self.generation = 0
        """Changes whenever buckets are forgotten: a memo of buckets is then stale."""
        self._version = 0
        self._shapes: dict[Identity, Shape] = {}
        self._buckets: dict[tuple[Shape, tuple[str, ...]], Bucket] = {}
        self._sweep_at, self._shapes_at = capacity, SHAPES
        self._look_at = 0
        self._warned = False

    def __len__(self) -> int:
        return len(self._buckets)

    def next_version(self) -> int:
        """A number for a configuration: the settings of a limit that were given with a lower one no longer count."""
        self._version += 1
        return self._version

    def buckets(self, scopes: Sequence[Scope], now: int, version: int = 0) -> tuple[Bucket, ...]:
        """The bucket of each limit for its key, made full if it is new. None of them is forgotten by this call."""
        if now >= self._look_at:
            self.look(now)
        if len(self._buckets) + len(scopes) > self._sweep_at:
            self._sweep(now)
        return tuple([self._bucket(self.shape(limit, version, now), key, now) for limit, key in scopes])

    def bucket(self, shape: Shape, key: tuple[str, ...], now: int) -> Bucket:
        """The bucket of one limit for a key, made full if it is new."""
        if len(self._buckets) >= self._sweep_at:
            self._sweep(now)
        return self._bucket(shape, key, now)

    def known(self, shape: Shape, key: tuple[str, ...]) -> Bucket | None:
        """The bucket of one limit for a key, if it is not forgotten."""
        return self._buckets.get((shape, key))

    def all(self) -> list[tuple[tuple[str, ...], Bucket]]:
        """Every bucket with its key."""
        return [(key, bucket) for (_, key), bucket in self._buckets.items()]

    def in_parts(self, size: int) -> Iterator[list[tuple[tuple[str, ...], Bucket]]]:
        """The same, so many at a time: other work may go on in between, and what is forgotten meanwhile is left out."""
        for some in portions(list(self._buckets), size):
            part: list[tuple[tuple[str, ...], Bucket]] = []
            for identity in some:
                bucket = self._buckets.get(identity)
                if bucket is not None:
                    part.append((identity[1], bucket))
            yield part

    def forget(self, shape: Shape, key: tuple[str, ...]) -> None:
        """Makes a bucket full, whatever it is: the next one for the key is new."""
        if self._buckets.pop((shape, key), None) is not None:
            self.generation += 1

    def shape(self, limit: LimitSpec, version: int = 0, now: int = 0) -> Shape:
        """What all buckets of a limit share; it has these settings from now on, unless they are older than its own."""
        identity = identity_of(limit)
        shape = self._shapes.get(identity)
        if shape is None:
            shape = self._shapes[identity] = Shape(limit, version, self.durable)
        elif version >= shape.version and shape.spec is not limit and shape.spec != limit:
            shape.respec(limit, version, now)
        return shape

    def has_shape(self, shape: Shape) -> bool:
        """Whether buckets made from now on still use this one."""
        return self._shapes.get((shape.name, shape.spec.per, shape.layout)) is shape

    def _bucket(self, shape: Shape, key: tuple[str, ...], now: int) -> Bucket:
        bucket = self._buckets.get((shape, key))
        if bucket is None:
            bucket = Bucket(shape, key, now) if self._make is None else self._make(shape, key, now)
            self._buckets[(shape, key)] = bucket
        return bucket

    def look(self, now: int) -> None:
        """Forgets the buckets of callers who do not come any more, where they are half of those looked at: all once each LOOK, in parts of
        PART, so that a large table does not hold up the loop. Not to be called between finding a bucket and taking from it."""
        if now < self._look_at:
            return
        count = len(self._buckets)
        self._look_at = now + LOOK // (1 + count // PART)
        if count < FEW:
            return
        part = list(islice(self._buckets.items(), PART))
        unused = self._unused(part, now)
        if 2 * len(unused) >= len(part):
            self._forget(unused)
        if count > len(part):
            self._behind(part)

    def _unused(self, part: list[Entry], now: int) -> list[tuple[Shape, tuple[str, ...]]]:
        """Those of a part that were not used for LOOK, and of which nothing is lost."""
        before = now - LOOK
        return [identity for identity, bucket in part if bucket.used <= before and bucket.idle(now)]

    def _spare(self, part: list[Entry], wanted: int, now: int) -> list[tuple[Shape, tuple[str, ...]]]:
        """Up to `wanted` buckets of `part` that may be forgotten at once because the table is full."""
        return [identity for identity, bucket in part if bucket.idle(now)][:wanted]

    def _sweep(self, now: int) -> None:
        """Looks at the first SWEEP buckets and forgets those that are full and unused, up to a quarter of the capacity. In a larger table,
        those that stay move to the end, so the next sweep looks at others. A sweep is short, because a request waits for it."""
        count = len(self._buckets)
        wanted = count - self.capacity + max(1, self.capacity // 4)
        part = list(islice(self._buckets.items(), SWEEP))
        self._forget(self._spare(part, wanted, now))
        if count > len(part):
            self._behind(part)
        left = len(self._buckets)
        step = max(self.capacity // 16, (left - self.capacity) // 8)
        self._sweep_at = max(self.capacity, left + max(1, min(step, SWEEP // 16)))
        if len(self._shapes) >= self._shapes_at:
            used = {shape for shape, _ in self._buckets}
            self._shapes = {limit: shape for limit, shape in self._shapes.items() if shape in used or shape.pins}
            self._shapes_at = max(SHAPES, 2 * len(self._shapes))
        if left >= self.capacity and (count == len(part) or left >= self.capacity * 5 // 4) and not self._warned:
            self._warned = True
            log.warning("more than %d limit buckets are in use at once; the table grows beyond its capacity", self.capacity)

    def _behind(self, part: list[Entry]) -> None:
        """Puts those that are left of the oldest behind all others."""
        for identity, bucket in part:
            if self._buckets.pop(identity, None) is not None:
                self._buckets[identity] = bucket

    def _forget(self, buckets: list[tuple[Shape, tuple[str, ...]]]) -> None:
        for identity in buckets:
            del self._buckets[identity]
        if buckets:
            self.generation += 1


def identity_of(limit: LimitSpec) -> Identity:
    """Limits with the same identity share their buckets, whomever they match."""
    return limit.name, limit.per, layout_of(limit)
