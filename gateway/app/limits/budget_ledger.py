"""Compares what the counters of durable limits say is used with what the audit log of this machine says.

A counter in the store is charged when a block is handed out. So what this process has in hand, and what requests under way have reserved,
is subtracted first. What killed processes had in hand comes back once it is known what they used (`budget_runs`); a killed worker's part of
a lease is listed separately and given back when nothing is under way. A counter must never say less than the log: an amount could then be
used twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.app.limits.budget_log import Key, Processes, Tally, read, spent_in
from gateway.app.limits.redis_ledger import InRedis, Still
from gateway.app.limits.times import LimitTimes
from gateway.audit.opening import CLOSED, Opener
from gateway.core.specs import ConfigSpec, LimitSpec
from gateway.core.storage import ControlStore
from gateway.limits.account import Account
from gateway.limits.bucket import Bucket
from gateway.limits.counter import by_replica, used
from gateway.limits.meter import BYTES, ELEMENTS, MONEY, SECOND, Meter, meters_of
from gateway.limits.redis.book import BucketBook
from gateway.limits.registry import BucketRegistry
from gateway.limits.ticker import Ticker

COUNTERS: Final = 10_000
MADE_FULL: Final = "since"
STEP: Final = 5.0
"""Seconds by which clocks may be apart before the times of the log say too little to give anything back by them."""
STEPPED: Final = "the clock of this replica or of Redis has stepped, or they differ: the log does not say what counts in which window"
CLOCKS: Final = 2.0
"""Seconds by which the clock of Redis and those of the log may differ, with what is rounded: a rate refills meanwhile."""
Amounts = dict[Key, int]

CHANGED: Final = "what it counts was changed, and the log tells only what it counts now"
UNSURE: Final = "records of an earlier version, or of a tenant that was shredded, do not say to whom it applied"


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
        times: LimitTimes,
        redis: BucketBook | None = None,
        opener: Opener = CLOSED,
    ) -> None:
        self._redis, self._opener = redis, opener
        self._store, self._replica, self._live, self._directory = store, replica, live, directory
        self._spec, self._registry, self._times = spec, registry, times
        self._ticker = Ticker()
        self._still: dict[tuple[str, str], Still] = {}
        self._comparing = asyncio.Lock()

    async def compare(self) -> dict[str, Any]:
        """`budgets`: a line for each bucket; `not_compared`: limits with the reason. Raises StoreUnavailable, Overloaded, OSError."""
        return (await self._compare())[0]

    async def settle(self) -> bool:
        """Settles what processes of this replica that were killed took of budgets in Redis. Whether nothing is left to be settled.
        Raises StoreUnavailable, Overloaded, OSError."""
        return (await self._compare())[1]

    async def _compare(self) -> tuple[dict[str, Any], bool]:
        async with self._comparing:
            now = time.time()
            counted: list[tuple[Tally, dict[Key, dict[str, Any]], InRedis | None]] = []
            left: list[dict[str, str]] = []
            for limit in self._spec().limits:
                for meter in meters_of(limit):
                    if meter.durable and (why := await self._begin(limit, meter, now, counted)):
                        left.append({"limit": limit.name, "reason": why})
            processes = Processes()
            if counted:
                await asyncio.to_thread(read, self._directory, [tally for tally, _, _ in counted], processes=processes, opener=self._opener)
            lines: list[dict[str, Any]] = []
            whole = True
            for tally, states, there in counted:
                if tally.unsure:
                    left.append({"limit": tally.limit.name, "reason": UNSURE})
                    continue
                back: Amounts = {}
                if there is not None and tally.meter.budget is not None and max(there.apart, processes.stepped) > STEP:
                    left.append({"limit": tally.limit.name, "reason": STEPPED})
                    continue
                if there is not None:
                    back, done = await there.settle(tally, processes)
                    whole = whole and done
                charged = self._charged(tally, states) if there is None else await there.charged(tally, _keys_of(tally))
                lines += self._lines(tally, charged, *self._in_hand(tally.limit, tally.meter.name), back)
            return {"budgets": lines, "not_compared": left}, whole

    async def _begin(
        self, limit: LimitSpec, meter: Meter, now: float, counted: list[tuple[Tally, dict[Key, dict[str, Any]], InRedis | None]]
    ) -> str:
        """Notes what is counted of an amount before the log is read. Returns why it cannot be compared."""
        if meter.budget is None and meter.what in (BYTES, ELEMENTS):
            return "the log does not say so much of refused requests"
        if self._redis is not None:
            still = self._still.setdefault((limit.name, meter.name), {})
            there = await InRedis.of(self._redis, limit, meter, self._replica, still)
            if there.many:
                return "it has too many buckets"
            return self._noted(there.tally(now, self._times.of(limit, meter)), {}, there, counted)
        rows = await self._store.counters_of(limit.name, COUNTERS)
        states = {row.name[2]: json.loads(row.body) for row in rows if row.name[1] == meter.name}
        since = {key: float(state[MADE_FULL]) for key, state in states.items() if MADE_FULL in state}
        return self._noted(Tally(limit, meter, now, since, times=self._times.of(limit, meter)), states, None, counted)

    def _noted(
        self,
        tally: Tally,
        states: dict[Key, dict[str, Any]],
        there: InRedis | None,
        counted: list[tuple[Tally, dict[Key, dict[str, Any]], InRedis | None]],
    ) -> str:
        if tally.times.changed_since(tally.begin):
            return CHANGED
        counted.append((tally, states, there))
        return ""

    def _part(self, meter: Meter) -> bool:
        """Whether this replica's log has only a part of what is charged. Then only a charge below the log's sum is a difference."""
        if meter.budget is None:
            return True  # what is in hand keeps a rate from refilling, and others use it too
        return self._redis is None and self._live() > 1 and not isinstance(meter.budget.window, str)

    def _charged(self, tally: Tally, states: Mapping[Key, dict[str, Any]]) -> Amounts:
        """What this replica's processes took, of a window of the calendar; what is used in all, of anything else."""
        found = {key: used(state, tally.meter, tally.now) for key, state in states.items()}
        budget = tally.meter.budget
        if budget is not None and isinstance(budget.window, str):
            for key, state in states.items():
                if state.get("window") == int(tally.begin):
                    found[key] = by_replica(state, self._replica)
        return found

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

    def _lines(
        self, tally: Tally, charged: Amounts, hand: Amounts, buckets: Mapping[Key, tuple[Bucket, int]], back: Amounts
    ) -> list[dict[str, Any]]:
        """back: what has just come back that was charged to nobody."""
        meter, found = tally.meter, []
        rate, part = meter.budget is None, self._part(meter)
        audit = tally.debts() if rate else spent_in(tally, tally.spent)
        late = int((time.time() - tally.now + CLOCKS) * SECOND) // meter.unit + 1 if rate and self._redis is not None else 0
        for key in sorted({*charged, *audit, *tally.under_way}):
            logged, store, here = audit.get(key, 0), charged.get(key, 0), hand.get(key, 0)
            busy = tally.under_way.get(key, 0)
            lost = 0 if key not in buckets else _lost(*buckets[key], store - here - busy - logged, busy)
            difference = store - here - busy - lost - logged
            if difference < 0 and not rate:
                logged -= min(tally.spare.get(key, 0), -difference)
                difference = store - here - busy - lost - logged
            if part:
                difference = min(0, store - here - lost - logged + late if rate else difference)
            if logged or store or back.get(key):
                line = {
                    "limit": tally.limit.name,
                    "scope": "/".join(key),
                    "amount": meter.name,
                    "unit": f"nano-{meter.words}" if meter.what == MONEY else meter.words,
                    "from_audit": logged,
                    "charged": store,
                    "in_hand": here,
                    "under_way": busy,
                    "lost": lost + max(0, back.get(key, 0)),
                    "difference": difference,
                }
                found.append(line)
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


def _keys_of(tally: Tally) -> set[Key]:
    return {*spent_in(tally, tally.spent), *tally.under_way}
