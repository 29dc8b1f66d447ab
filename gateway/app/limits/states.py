"""The state of limits for operators: every bucket with what is used and left of each amount, and a way to make it full again."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

from gateway.core.errors import NotFound, RequestError
from gateway.core.slices import Steps, in_slices, portions
from gateway.core.specs import LimitSpec
from gateway.core.storage import ControlStore, CounterRow
from gateway.core.types import Principal
from gateway.limits.account import Account
from gateway.limits.bucket import Bucket, layout_of
from gateway.limits.counter import Ask, counted, expires, forgiven
from gateway.limits.meter import MONEY, NANO, SECOND, Meter, meters_of
from gateway.limits.redis.names import keys_of
from gateway.limits.registry import BucketRegistry
from gateway.limits.ticker import Ticker
from gateway.pipeline.plane import DataPlane
from policies.limits import counted_part, queue_part, rules_of

BATCH: Final = 500
BREATH: Final = 256
"""Buckets that are looked at in one step."""
PAGE: Final = 2_000
"""Counters that are read at once."""
Key = tuple[str, ...]


class LimitStates:
    """Implements admin.ports.LimitControl. registry: the buckets that are in force in this gateway."""

    def __init__(self, plane: DataPlane, registry: BucketRegistry, store: ControlStore) -> None:
        self._plane, self._registry, self._store = plane, registry, store
        self._ticker = Ticker()

    async def state(self, limit: str, most: int, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        found: list[dict[str, Any]] = []
        last = None
        for number, part, begin in rest_of(limit_named(self._plane, limit), after):
            layout = layout_of(part)
            after, wanted = _dumped(begin), most + 1 - len(found)
            counters = await self._stored(part, wanted, after)
            names = {json.dumps(key): key for key in counters}
            local = await in_slices(self._first(limit, layout, after, wanted))
            names.update({name: key for name, (key, _) in local.items()})
            chosen = heapq.nsmallest(wanted, (name for name in names if name > after))
            if len(chosen) == wanted:
                chosen.pop()
                last = place(number, _short(chosen[-1]) if chosen else begin)
            for name in chosen:
                bucket = local[name][1] if name in local else None
                found.append(self._view(part, names[name], bucket, counters.get(names[name], {})))
            if last is not None:
                break
        return found, last

    def _first(self, limit: str, layout: tuple[str, ...], after: str, wanted: int) -> Steps[dict[str, tuple[Key, Bucket]]]:
        """The first buckets of a limit's part in this process behind a key, by their keys as JSON."""
        first: dict[str, tuple[Key, Bucket]] = {}
        for some in self._registry.in_parts(BREATH):
            for key, bucket in some:
                if bucket.shape.name == limit and bucket.shape.layout == layout and (name := json.dumps(key)) > after:
                    first[name] = key, bucket
            first = {name: first[name] for name in heapq.nsmallest(wanted, first)}
            yield
        return first

    async def applying(self, principal: Principal, model: str, operation: str) -> list[dict[str, Any]]:
        found = []
        for spec, key in await applying(self._plane, principal, model, operation):
            bucket = self._registry.known(self._registry.shape(spec, -1), key)
            stored = await self._stored(spec, 1, keys=[key])
            found.append(self._view(spec, key, bucket, stored.get(key, {})))
        return binding(found)

    async def reset(self, limit: str, scope: str | None, *, dry_run: bool = False) -> int:
        spec = limit_named(self._plane, limit)
        chosen = await in_slices(self._meant(limit, scope)) | await self._counted(limit, scope)
        if scope is not None and not chosen:
            raise no_bucket(limit, scope)
        if dry_run:
            return len(chosen)
        if scope is None:
            await self._store.forget_counters(limit)
        else:
            for key in chosen:
                await self._store.forget_counters(limit, key)
        await self._forgive(spec, list(chosen))
        await in_slices(self._reset(limit, chosen))
        return len(chosen)

    def _meant(self, limit: str, scope: str | None) -> Steps[set[Key]]:
        """The keys of a limit's buckets in this process, all or those that a scope means."""
        found: set[Key] = set()
        for some in self._registry.in_parts(BREATH):
            found.update([key for key, one in some if one.shape.name == limit and (scope is None or written(key) == scope)])
            yield
        return found

    def _reset(self, limit: str, chosen: set[Key]) -> Steps[None]:
        for some in self._registry.in_parts(BREATH):
            now = self._ticker.now()
            for key, bucket in some:
                if bucket.shape.name == limit and key in chosen:
                    if isinstance(bucket, Account):
                        bucket.settle(now)
                    bucket.reset(now)
            yield

    async def _forgive(self, spec: LimitSpec, keys: Sequence[Key]) -> None:
        """Notes when amounts that last were made full, so that the audit log can be held against them."""
        lasting = [meter for meter in meters_of(spec) if meter.durable]
        for meter in lasting:

            def change(now: float, bodies: Sequence[str | None], meter: Meter = meter) -> list[tuple[str, float]]:
                state = forgiven(now)
                return [(json.dumps(state), expires(state, meter, now))] * len(bodies)

            for some in portions(keys, BATCH):
                await self._store.change_counters([(spec.name, meter.name, key) for key in some], change)

    async def _stored(self, spec: LimitSpec, most: int, after: str = "", keys: Sequence[Key] = ()) -> dict[Key, dict[str, Any]]:
        """The counters of a limit in the store, by key and amount, of so many keys at least, if there are."""
        found: dict[Key, dict[str, Any]] = {}
        if any(meter.durable for meter in meters_of(spec)):
            async for rows in self._rows(spec.name, after, keys):
                for row in rows:
                    found.setdefault(row.name[2], {})[row.name[1]] = json.loads(row.body)
                if len(found) >= most:
                    break
        return found

    async def _rows(self, limit: str, after: str, keys: Sequence[Key]) -> AsyncIterator[list[CounterRow]]:
        """The counters of a limit, page by page, all of one key on the same."""
        more = True
        while more:
            rows = list(await self._store.counters_of(limit, PAGE, after, keys))
            if more := len(rows) == PAGE:
                last = rows[-1].name[2]
                rows = [row for row in rows if row.name[2] != last]
                after = json.dumps(rows[-1].name[2])
            yield rows

    async def _counted(self, limit: str, scope: str | None) -> set[Key]:
        """The keys of a limit's counters in the store, all or those that a scope means."""
        keys = [] if scope is None else list(keys_of(scope))
        found: set[Key] = set()
        if scope is not None and not keys:
            return found
        async for rows in self._rows(limit, "", keys):
            found.update(row.name[2] for row in rows)
        return found

    def _view(self, spec: LimitSpec, key: Key, bucket: Bucket | None, stored: dict[str, Any]) -> dict[str, Any]:
        now, wall = self._ticker.now(), time.time()
        if isinstance(bucket, Account):
            bucket.settle(now)
        amounts = []
        for index, meter in enumerate(meters_of(spec)):
            resets: float | None = None
            hand = 0
            if meter.durable:
                _, given = counted(stored.get(meter.name), Ask(spec.name, meter, key, ""), wall)
                left = given.left
                resets = given.seconds if meter.budget is not None and isinstance(meter.budget.window, str) else None
                if bucket is not None and (stock := bucket.cells[index].stock) is not None:
                    hand = max(0, stock.hand + bucket.outside(index))
            else:
                debt = 0 if bucket is None else bucket.debt(index, now)
                left = meter.level(debt)
                resets = None if meter.frozen else max(0, debt) / SECOND
            amounts.append(amount_of(meter, left, resets, hand))
        return bucket_view(spec, written(key), amounts, 0 if bucket is None else bucket.in_use)


def bucket_view(spec: LimitSpec, scope: str, amounts: list[dict[str, Any]], in_use: int) -> dict[str, Any]:
    """One bucket, as the admin API shows it."""
    shares = [one["left"] / one["most"] for one in amounts if one["most"]]
    if slots := spec.concurrent or spec.queued:
        shares.append(max(0, slots - in_use) / slots)
    return {
        "limit": spec.name,
        "per": spec.per,
        "scope": scope,
        "enforced": spec.enforce,
        "amounts": amounts,
        "concurrent": spec.concurrent,
        "queued": spec.queued,
        "in_use": in_use,
        "left": round(min(shares, default=1.0), 6),
        "binds": False,
    }


def binding(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Marks the bucket that has least left."""
    if found:
        min(found, key=lambda one: float(one["left"]))["binds"] = True
    return found


def limit_named(plane: DataPlane, limit: str) -> LimitSpec:
    """Raises NotFound."""
    for spec in plane.current().spec.limits:
        if spec.name == limit:
            return spec
    raise NotFound(f"There is no limit {limit!r} in force.")


def parts_of(spec: LimitSpec) -> list[LimitSpec]:
    """A limit's parts that have buckets of their own: all that it counts, and places in queues."""
    return [part for part in (counted_part(spec), queue_part(spec)) if part is not None]


def rest_of(spec: LimitSpec, after: str | None) -> Iterator[tuple[int, LimitSpec, str | None]]:
    """The parts of a limit from the last bucket that was shown on: (number, part, the bucket after which to go on; None: from the first).
    after: what `place` returned. Raises RequestError."""
    first, separated, begin = ("0", "", "") if after is None else after.partition("\n")
    if not (first.isascii() and first.isdecimal() and len(first) < 6):
        raise RequestError("This cursor did not come from a page.", param="cursor")
    for number, part in enumerate(parts_of(spec)):
        if number >= int(first):
            yield number, part, begin if separated and number == int(first) else None


def place(number: int, last: str | None) -> str:
    """Where the next page begins: the number of a part, and its last bucket that was shown, if any was."""
    return f"{number}" if last is None else f"{number}\n{last}"


def _short(name: str) -> str:
    """A key as JSON, in the fewest bytes: cursors are bounded."""
    return json.dumps(json.loads(name), ensure_ascii=False, separators=(",", ":"))


def _dumped(short: str | None) -> str:
    """The same as the store has it. Raises RequestError."""
    try:
        return json.dumps(json.loads(short)) if short else ""
    except (ValueError, RecursionError):
        raise RequestError("This cursor did not come from a page.", param="cursor") from None


async def applying(plane: DataPlane, principal: Principal, model: str, operation: str) -> list[tuple[LimitSpec, Key]]:
    """The limits that apply to a request, by their parts, each with the key of its bucket."""
    limits = plane.current().spec.limits
    rules = (await in_slices(rules_of(limits)), await in_slices(rules_of(limits, places=True)))
    return [scope for one in rules for scope in one.applying(principal, model, operation)]


def no_bucket(limit: str, scope: str) -> NotFound:
    return NotFound(f"The limit {limit!r} has no bucket {scope[:128]!r} that is not full.")


def written(key: Iterable[str]) -> str:
    """The key of a bucket as one text: `team/api_key/ci`."""
    return "/".join(key)


def amount_of(meter: Meter, left: int, resets: float | None, in_hand: int = 0) -> dict[str, Any]:
    scale = NANO if meter.what == MONEY else 1
    return {
        "amount": meter.name,
        "unit": meter.words,
        "most": meter.burst / scale,
        "used": (meter.burst - left) / scale,
        "left": left / scale,
        "resets_in": None if resets is None else round(resets, 3),
        "in_hand": in_hand / scale,
    }
