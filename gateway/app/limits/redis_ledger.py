"""One amount of one limit as Redis counts it, against what the audit log of this replica says.

Of a budget, Redis knows what each process took. So each replica compares what its own processes took with its own log, both ways. What a
killed process had reserved, or had not told any more, is settled once its log has been recovered: the log says what it used. What Redis
admitted and a process never heard of comes back once that has been unchanged for a while and nothing is under way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gateway.app.limits.budget_log import Key, Portion, Processes, Tally
from gateway.app.limits.times import Times
from gateway.core.specs import LimitSpec
from gateway.limits.bucket import Shape
from gateway.limits.meter import Meter
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.meters import Ticks
from gateway.limits.redis.took import Item, Took
from gateway.limits.redis.view import BucketSeen

log = logging.getLogger("gatehouse.limits")
MOST: Final = 50_000
"""Buckets of one limit."""
QUIET: Final = 10_000_000
"""Microseconds without a change after which all that was reserved before is in the log."""
Seen = tuple[bytes, str]
Still = dict[Seen, tuple[int, int]]
"""For each process and bucket, what it took, and since when that is known to be unchanged, by the clock of Redis."""


class InRedis:
    """seen, took: the buckets by their scopes, and what the processes of this replica took of each, before the log was read. now: the
    time then, by the clock of Redis. still: what was seen at earlier times; it is brought up to date."""

    def __init__(
        self,
        book: BucketBook,
        limit: LimitSpec,
        meter: Meter,
        replica: str,
        seen: Mapping[str, BucketSeen],
        took: Mapping[bytes, Mapping[str, Took]],
        now: int,
        still: Still,
    ) -> None:
        self._book, self._limit, self._meter, self._replica, self._shape = book, limit, meter, replica, Shape(limit)
        self._index = [one.name for one in self._shape.meters].index(meter.name)
        self._seen, self._took, self._now, self._still = seen, took, now, still
        self.apart = 0.0
        """Seconds between our clock and that of Redis; or by which that of Redis was set back while something was counted."""
        fresh = {(bucket, who): one.units for bucket, whose in took.items() for who, one in whose.items()}
        for place in [place for place in still if place not in fresh]:
            del still[place]
        for place, units in fresh.items():
            if place not in still or still[place][0] != units:
                still[place] = (units, now)

    @classmethod
    async def of(cls, book: BucketBook, limit: LimitSpec, meter: Meter, replica: str, still: Still) -> InRedis:
        """Raises Overloaded while Redis is away."""
        shape = Shape(limit)
        now = await book.now()
        apart = abs(now / 1_000_000 - time.time())
        took = await book.took(shape, meter, replica, now) if meter.budget is not None else {}
        made = cls(book, limit, meter, replica, dict(await book.all_of(shape, MOST)), took, now, still)
        # Of a window that has not begun yet, the log has nothing: all that was taken of it would count as too much.
        made.apart = max([apart, *((one.since[made._index] - now) / 1_000_000 for one in made._seen.values())])
        return made

    def tally(self, now: float, times: Times) -> Tally:
        """What the log is to be read into."""
        since, created = _Since(self._counts_since), _Since(self._created)
        return Tally(self._limit, self._meter, now, since, 0.0, created if self._meter.budget is not None else None, times)

    def _before(self, key: Key) -> BucketSeen | None:
        return self._seen.get(self._book.scope_of(self._shape, key))

    def _counts_since(self, key: Key) -> float:
        seen = self._before(key)
        return seen.since[self._index] / 1_000_000 if seen is not None else 0.0

    def _created(self, key: Key) -> float:
        seen = self._before(key)
        return seen.created / 1_000_000 if seen is not None else 0.0

    async def charged(self, tally: Tally, keys: Iterable[Key]) -> dict[Key, int]:
        """What is charged to each bucket: to those of these keys, and to all others that exist. For a rate, what is used now. For a budget,
        what this replica took, including what its processes of earlier versions used, since what they took is not known; but never more
        than what is used of the bucket."""
        buckets = dict(await self._book.all_of(self._shape, MOST))
        if self._meter.budget is None:
            used = {scope: bucket.amounts[self._index].used for scope, bucket in buckets.items()}
            found = {key: used.pop(self._book.scope_of(self._shape, key), 0) for key in keys}
            return {**found, **{(scope,): units for scope, units in used.items()}}
        now = await self._book.now()
        took = await self._book.took(self._shape, self._meter, self._replica, now)
        names = {self._book.name_of(self._shape, key): key for key in keys}
        found = {}
        for name in {*names, *took}:
            scope = self._book.scope_shown(self._shape, name)
            key, bucket = names.get(name, (scope,)), buckets.get(scope)
            if bucket is None:
                found[key] = 0
                continue
            since = max(bucket.since[self._index], int(tally.begin * 1_000_000) if self._calendar else 0)
            ours = sum(one.units for one in took.get(name, {}).values() if one.since == since)
            earlier = tally.portions.get("", {}).get(key)
            found[key] = min(ours + (0 if earlier is None else sum(earlier.used.values())), bucket.amounts[self._index].used)
        return found

    @property
    def many(self) -> bool:
        """Whether there are too many buckets to be compared."""
        return len(self._seen) >= MOST

    @property
    def _calendar(self) -> bool:
        return self._meter.budget is not None and isinstance(self._meter.budget.window, str)

    async def settle(self, tally: Tally, processes: Processes) -> tuple[dict[Key, int], bool]:
        """Settles what ended processes took and, as far as that is certain, what others took too much. Returns what came back, by bucket,
        and whether nothing is left to be settled."""
        if self._meter.budget is None:
            return {}, True
        back: dict[Key, int] = {}
        ended, known = processes.ended, {who for whose in self._took.values() for who in whose if who}
        whole = not known & processes.lost
        keys = {self._book.name_of(self._shape, key): key for portions in tally.portions.values() for key in portions}
        busy = {self._book.name_of(self._shape, key) for key in tally.under_way}
        for who in sorted(known | (ended & set(tally.portions))):
            dead = who in ended
            portions = tally.portions.get(who, {})
            buckets = {bucket for bucket, whose in self._took.items() if who in whose}
            if dead:
                buckets |= {self._book.name_of(self._shape, key) for key in portions}
            items = []
            for bucket in sorted(buckets):
                item = self._item(tally, bucket, who, portions.get(keys.get(bucket, ()), Portion()), dead)
                if item is not None and (dead or (bucket not in busy and self._too_much(item, who))):
                    items.append(item)
            answers = await self._book.settle(self._shape, self._index, self._replica, who, items, self._now, dead=dead)
            for item, (done, units) in zip(items, answers, strict=True):
                key = keys.get(item.bucket, (self._book.scope_shown(self._shape, item.bucket),))
                named = self._limit.name, "/".join(key)
                if units:
                    units *= Ticks(self._meter).scale
                    back[key] = back.get(key, 0) + units
                    log.info("the budget '%s' of '%s': %d came back of what a process of this replica took", *named, units)
                if dead and not done:
                    whole = False
        return back, whole

    def _item(self, tally: Tally, bucket: bytes, who: str, portion: Portion, dead: bool) -> Item | None:
        seen = self._seen.get(self._book.scope_shown(self._shape, bucket))
        if seen is None or (self._calendar and seen.since[self._index] < int(tally.begin * 1_000_000)):
            return None  # it has not been used in this window, or Redis has forgotten it
        took = self._took.get(bucket, {}).get(who)
        used = sum(portion.used.values())
        return Item(
            bucket,
            seen.since[self._index],
            portion.used,
            used - portion.unsure,
            used + portion.before,
            None if dead or took is None else took.units,
        )

    def _too_much(self, item: Item, who: str) -> bool:
        """Whether a process that lives took more than it used, and has not changed that for a while."""
        seen = self._seen[self._book.scope_shown(self._shape, item.bucket)]
        unchanged = min(self._still[item.bucket, who][1], seen.written)
        return item.expected is not None and item.expected > item.most and unchanged + QUIET <= self._now


class _Since(Mapping[Key, float]):
    """Since when each bucket counts, or is there, in seconds."""

    def __init__(self, find: Callable[[Key], float]) -> None:
        self._find = find
        self._known: dict[Key, float] = {}

    def __getitem__(self, key: Key) -> float:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(key)
        return found

    def __iter__(self) -> Iterator[Key]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
