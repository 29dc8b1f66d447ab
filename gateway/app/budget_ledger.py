"""What the counters of limits that last say is used, against what the audit log of this machine says.

A counter in the store is charged when a block is handed out, so what is in hand here is taken off first, and so is what requests under way
have reserved. What processes that were killed had in hand comes back once it is known what they used (gateway.app.budget_runs); what a
killed worker had of a lease is told apart, and given back when nothing is under way. Less than the log says must never be: then somebody
could use an amount twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.app.budget_log import Key, Tally, read, spent_in
from gateway.core.specs import ConfigSpec, LimitSpec
from gateway.core.storage import ControlStore
from gateway.limits.account import Account
from gateway.limits.bucket import Bucket, Shape
from gateway.limits.counter import by_replica, used
from gateway.limits.meter import BYTES, ELEMENTS, MONEY, Meter, meters_of
from gateway.limits.redis.book import BucketBook
from gateway.limits.registry import BucketRegistry
from gateway.limits.ticker import Ticker

COUNTERS: Final = 10_000
MADE_FULL: Final = "since"
Amounts = dict[Key, int]


class BudgetLedger:
    """replica: this one. live: how many share the store. directory: of the audit logs. registry: the buckets of this gateway. redis: what
    Redis says, where it counts the limits."""

    def __init__(
        self,
        store: ControlStore,
        replica: str,
        live: Callable[[], int],
        directory: Path,
        spec: Callable[[], ConfigSpec],
        registry: Callable[[], BucketRegistry],
        redis: BucketBook | None = None,
    ) -> None:
        self._redis = redis
        self._store, self._replica, self._live, self._directory = store, replica, live, directory
        self._spec, self._registry = spec, registry
        self._ticker = Ticker()

    async def compare(self) -> dict[str, Any]:
        """`budgets`: a line for each bucket; `not_compared`: limits with the reason. Raises StoreUnavailable, OSError."""
        now = time.time()
        counted: list[tuple[Tally, dict[Key, dict[str, Any]]]] = []
        left: list[dict[str, str]] = []
        for limit in self._spec().limits:
            for meter in meters_of(limit):
                if meter.durable:
                    if why := self._why_not(meter):
                        left.append({"limit": limit.name, "reason": why})
                        continue
                    if self._redis is not None:
                        counted.append((Tally(limit, meter, now, {}, 0.0), {}))
                        continue
                    rows = await self._store.counters_of(limit.name, COUNTERS)
                    states = {row.name[2]: json.loads(row.body) for row in rows if row.name[1] == meter.name}
                    since = {key: float(state[MADE_FULL]) for key, state in states.items() if MADE_FULL in state}
                    counted.append((Tally(limit, meter, now, since), states))
        if counted:
            await asyncio.to_thread(read, self._directory, [tally for tally, _ in counted])
        lines: list[dict[str, Any]] = []
        for tally, states in counted:
            if tally.unsure:
                left.append({"limit": tally.limit.name, "reason": "records of an earlier version do not say to whom it applied"})
            else:
                charged = self._charged(tally, states) if self._redis is None else await self._in_redis(self._redis, tally)
                lines += self._lines(tally, charged, *self._in_hand(tally.limit, tally.meter.name))
        return {"budgets": lines, "not_compared": left}

    def _why_not(self, meter: Meter) -> str:
        if self._redis is not None and self._live() > 1:
            return "counted in Redis for several replicas: the logs of the others are with them"
        if self._redis is not None and meter.budget is None:
            return "a rate in Redis keeps nothing that the log could be held against"
        if meter.budget is None:
            return "the log does not say so much of refused requests" if meter.what in (BYTES, ELEMENTS) else ""
        if not isinstance(meter.budget.window, str) and self._live() > 1:
            return "other replicas have a part of this rolling window's log"
        return ""

    def _charged(self, tally: Tally, states: Mapping[Key, dict[str, Any]]) -> Amounts:
        """What this replica's processes took, of a window of the calendar; what is used in all, of anything else."""
        found = {key: used(state, tally.meter, tally.now) for key, state in states.items()}
        budget = tally.meter.budget
        if budget is not None and isinstance(budget.window, str):
            for key, state in states.items():
                if state.get("window") == int(tally.begin):
                    found[key] = by_replica(state, self._replica)
        return found

    async def _in_redis(self, book: BucketBook, tally: Tally) -> Amounts:
        """What is used by the buckets there. Raises Overloaded while Redis is away."""
        shape = Shape(tally.limit)
        index = [meter.name for meter in shape.meters].index(tally.meter.name)
        used = {scope: bucket.amounts[index].used for scope, bucket in await book.all_of(shape, COUNTERS)}
        keys = {*spent_in(tally, tally.spent), *tally.under_way}
        found = {key: used.pop(book.scope_of(shape, key), 0) for key in keys}
        return {**found, **{(scope,): units for scope, units in used.items()}}

    def _in_hand(self, limit: LimitSpec, amount: str) -> tuple[Amounts, dict[Key, tuple[Bucket, int]]]:
        """What this gateway's processes have in hand, or owe, by bucket; and the buckets, with the place of the amount."""
        hand: Amounts = {}
        buckets: dict[Key, tuple[Bucket, int]] = {}
        for key, bucket in self._registry().all():
            if bucket.shape.name != limit.name:
                continue
            if isinstance(bucket, Account):
                bucket.settle(self._ticker.now())
            for index, cell in enumerate(bucket.cells):
                if cell.stock is not None and bucket.shape.meters[index].name == amount:
                    hand[key] = hand.get(key, 0) + cell.stock.hand + bucket.outside(index)
                    buckets[key] = (bucket, index)
        return hand, buckets

    def _lines(self, tally: Tally, charged: Amounts, hand: Amounts, buckets: Mapping[Key, tuple[Bucket, int]]) -> list[dict[str, Any]]:
        meter, found = tally.meter, []
        rate = meter.budget is None
        audit = tally.debts() if rate else spent_in(tally, tally.spent)
        for key in sorted({*charged, *audit, *tally.under_way}):
            logged, store, here = audit.get(key, 0), charged.get(key, 0), hand.get(key, 0)
            busy = tally.under_way.get(key, 0)
            lost = 0 if key not in buckets else _lost(*buckets[key], store - here - busy - logged, busy)
            difference = store - here - busy - lost - logged
            if rate:  # what is in hand keeps a rate from refilling: more than the log says is no difference
                difference = min(0, difference)
            if logged or store:
                found.append(
                    {
                        "limit": tally.limit.name,
                        "scope": "/".join(key),
                        "amount": meter.name,
                        "unit": f"nano-{meter.words}" if meter.what == MONEY else meter.words,
                        "from_audit": logged,
                        "charged": store,
                        "in_hand": here,
                        "under_way": busy,
                        "lost": lost,
                        "difference": difference,
                    }
                )
        return found


def _lost(bucket: Bucket, index: int, more: int, busy: int) -> int:
    """How much of what is charged beyond the log was lost with leases of killed workers. It comes back once nothing is under way."""
    if not isinstance(bucket, Account) or not bucket.lost[index]:
        return 0
    lost = max(0, min(more, bucket.lost[index]))
    stock = bucket.cells[index].stock
    if stock is not None and not busy and not bucket.in_use and not bucket.undecided and not bucket.out[index]:
        bucket.lost[index] = 0
        stock.hand += lost
    return lost
