"""The state of limits for operators: every bucket with what is used and left of each amount, and a way to make it full again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gateway.core.errors import NotFound
from gateway.core.specs import LimitSpec
from gateway.core.storage import ControlStore
from gateway.core.types import Principal
from gateway.limits.account import Account
from gateway.limits.bucket import Bucket, layout_of
from gateway.limits.counter import Ask, counted, expires, forgiven
from gateway.limits.meter import MONEY, NANO, SECOND, Meter, meters_of
from gateway.limits.registry import BucketRegistry
from gateway.limits.ticker import Ticker
from gateway.pipeline.plane import DataPlane
from policies.limits import LimitRules, counted_part, queue_part

BATCH: Final = 500
MOST: Final = 1000
"""Buckets of one limit that are shown."""
Key = tuple[str, ...]


class LimitStates:
    """Implements admin.context.LimitControl. registry: the buckets that are in force in this gateway."""

    def __init__(self, plane: DataPlane, registry: BucketRegistry, store: ControlStore) -> None:
        self._plane, self._registry, self._store = plane, registry, store
        self._ticker = Ticker()

    async def state(self, limit: str) -> list[dict[str, Any]]:
        spec = limit_named(self._plane, limit)
        stored = await self._stored(spec)
        found = []
        for part in parts_of(spec):
            layout = layout_of(part)
            local = {key: bucket for key, bucket in self._registry.all() if bucket.shape.name == limit and bucket.shape.layout == layout}
            counters = stored if part.queued is None else {}
            keys = sorted({*counters, *local})[:MOST]
            found += [self._view(part, key, local.get(key), counters.get(key, {})) for key in keys]
        return found

    async def applying(self, principal: Principal, model: str, operation: str) -> list[dict[str, Any]]:
        found = []
        for spec, key in applying(self._plane, principal, model, operation):
            bucket = self._registry.known(self._registry.shape(spec, -1), key)
            stored = await self._stored(spec) if any(meter.durable for meter in meters_of(spec)) else {}
            found.append(self._view(spec, key, bucket, stored.get(key, {})))
        return binding(found)

    async def reset(self, limit: str, scope: str | None, *, dry_run: bool = False) -> int:
        spec = limit_named(self._plane, limit)
        keys = {key for key, bucket in self._registry.all() if bucket.shape.name == limit}
        keys |= {row.name[2] for row in await self._store.counters_of(limit, MOST)}
        chosen = {key for key in keys if scope is None or written(key) == scope}
        if scope is not None and not chosen:
            raise no_bucket(limit, scope)
        if dry_run:
            return len(chosen)
        if scope is None:
            await self._store.forget_counters(limit)
        else:
            for key in chosen:
                await self._store.forget_counters(limit, key)
        await self._forgive(spec, sorted(chosen))
        now = self._ticker.now()
        for key, bucket in self._registry.all():
            if bucket.shape.name == limit and key in chosen:
                if isinstance(bucket, Account):
                    bucket.settle(now)
                bucket.reset(now)
        return len(chosen)

    async def _forgive(self, spec: LimitSpec, keys: Sequence[Key]) -> None:
        """Notes when amounts that last were made full, so that the audit log can be held against them."""
        lasting = [meter for meter in meters_of(spec) if meter.durable]
        names = [(spec.name, meter.name, key) for meter in lasting for key in keys]
        for first in range(0, len(names), BATCH):
            part = [(meter, key) for meter in lasting for key in keys][first : first + BATCH]

            def change(now: float, bodies: Sequence[str | None], part: list[tuple[Meter, Key]] = part) -> list[tuple[str, float]]:
                state = forgiven(now)
                return [(json.dumps(state), expires(state, meter, now)) for meter, _ in part]

            await self._store.change_counters(names[first : first + BATCH], change)

    async def _stored(self, spec: LimitSpec) -> dict[Key, dict[str, Any]]:
        """The counters of a limit in the store, by key and amount."""
        found: dict[Key, dict[str, Any]] = {}
        for row in await self._store.counters_of(spec.name, MOST):
            found.setdefault(row.name[2], {})[row.name[1]] = json.loads(row.body)
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


def applying(plane: DataPlane, principal: Principal, model: str, operation: str) -> list[tuple[LimitSpec, Key]]:
    """The limits that apply to a request, by their parts, each with the key of its bucket."""
    limits = plane.current().spec.limits
    rules = (LimitRules(limits), LimitRules(limits, places=True))
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
