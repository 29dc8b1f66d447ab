"""One amount of one limit as Redis counts it, against what the audit log says.

What a killed process had told Redis of and not settled stays charged there. Once its log has been recovered, the log says what was used,
and the rest is known to be nobody's as soon as nothing has changed in the bucket for a while and nothing is under way: then it comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.app.budget_log import Key
from gateway.core.specs import LimitSpec
from gateway.limits.bucket import Shape
from gateway.limits.meter import Meter
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.view import BucketSeen

MOST: Final = 10_000
"""Buckets of one limit."""
QUIET: Final = 10_000_000
"""Microseconds without a change after which all that was reserved before is in the log."""


class InRedis:
    """seen: the buckets by their scopes, before the log was read. now: the time then, by the clock of Redis."""

    def __init__(self, book: BucketBook, shape: Shape, index: int, seen: Mapping[str, BucketSeen], now: int) -> None:
        self._book, self._shape, self._index, self._seen, self._now = book, shape, index, seen, now
        self.since = Since(self)

    @classmethod
    async def of(cls, book: BucketBook, limit: LimitSpec, meter: Meter) -> InRedis:
        """Raises Overloaded while Redis is away."""
        shape = Shape(limit)
        index = [one.name for one in shape.meters].index(meter.name)
        return cls(book, shape, index, dict(await book.all_of(shape, MOST)), await book.now())

    def before(self, key: Key) -> BucketSeen | None:
        return self._seen.get(self._book.scope_of(self._shape, key))

    def counts_since(self, key: Key) -> float:
        seen = self.before(key)
        return seen.since[self._index] if seen is not None else 0.0

    async def charged(self, keys: Iterable[Key]) -> dict[Key, int]:
        """What is used by each bucket now: those of these keys, and all others that there are."""
        used = {scope: bucket.amounts[self._index].used for scope, bucket in await self._book.all_of(self._shape, MOST)}
        found = {key: used.pop(self._book.scope_of(self._shape, key), 0) for key in keys}
        return {**found, **{(scope,): units for scope, units in used.items()}}

    async def forgive(self, lines: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Gives back what is charged beyond the log, where that is certain, and says so in these lines."""
        for key, line in lines:
            more, seen = line["difference"], self.before(key)
            if more <= 0 or line["under_way"] or seen is None or seen.written + QUIET > self._now:
                continue
            if await self._book.give_back(self._shape, key, seen, self._index, more):
                line["lost"], line["difference"] = more, 0


class Since(Mapping[Key, float]):
    """Since when each bucket counts what it does, in seconds."""

    def __init__(self, there: InRedis) -> None:
        self._there = there
        self._known: dict[Key, float] = {}

    def __getitem__(self, key: Key) -> float:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._there.counts_since(key)
        return found

    def __iter__(self) -> Iterator[Key]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
