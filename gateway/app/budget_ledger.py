"""What the counters of budgets say was used in their present windows, against what the audit log says.

A counter is charged when a block is handed out, so what is in hand here is taken off first. What is left above the log is under way, in
hand of another replica, or was in hand of a process that was killed, which counts as used. Less than the log says must never be: then
somebody could use an amount twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.audit.chain import read_lines
from gateway.audit.sinks.file import list_segments
from gateway.core.specs import ConfigSpec, LimitSpec
from gateway.core.storage import ControlStore
from gateway.core.types import Principal, Usage
from gateway.limits.account import Account
from gateway.limits.bucket import Weights
from gateway.limits.counter import used
from gateway.limits.meter import MONEY, TOKENS, Meter, meters_of
from gateway.limits.registry import BucketRegistry
from gateway.limits.ticker import Ticker
from gateway.limits.windows import span
from policies.limits import LimitRules

REFUSED: Final = frozenset({"policy_denied", "model_not_found", "insufficient_scope", "approval_pending"})
"""Codes of refusals that cost a request, beside those of guardrails."""
COUNTERS: Final = 10_000
MEMO: Final = 20_000
_BREATH: Final = 256
"""Lines between which other threads get their turn."""
_INTENT: Final = b'"kind":"intent"'
_OUTCOME: Final = b'"kind":"outcome"'
Spent = dict[tuple[str, ...], int]


class _Line(msgspec.Struct):
    time: float
    outcome: str = ""
    code: str = ""
    tenant: str = ""
    principal: str = ""
    credential: str = ""
    operation: str = ""
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    currency: str = ""
    guardrail: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""


_line = msgspec.json.Decoder(_Line).decode


class _Budget:
    """One budget with a window of the calendar, and what the log says of it by the keys of its buckets."""

    def __init__(self, limit: LimitSpec, now: float) -> None:
        assert limit.budget is not None and isinstance(limit.budget.window, str)
        self.limit, self.rules = limit, LimitRules((limit,))
        self.meter: Meter = next(meter for meter in meters_of(limit) if meter.budget is not None)
        self.begin, self.end = span(limit.budget.window, limit.budget.timezone, now)
        self.weights = Weights(limit)
        self.spent: Spent = {}
        self._memo: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    def add(self, line: _Line, kind: str) -> None:
        if not self.begin <= line.time < self.end:
            return
        units = self._units(line)
        if not units:
            return
        who = (line.principal, line.tenant, kind, line.user, line.agent, line.session, line.model, line.operation)
        keys = self._memo.get(who)
        if keys is None:
            if len(self._memo) >= MEMO:
                self._memo.clear()
            caller = Principal(line.principal, line.tenant, kind, user=line.user, agent=line.agent, session=line.session)
            keys = self._memo[who] = [key for _, key in self.rules.applying(caller, line.model, line.operation)]
        for key in keys:
            self.spent[key] = self.spent.get(key, 0) + units

    def _units(self, line: _Line) -> int:
        if self.meter.what == MONEY:
            return line.cost if line.currency == self.meter.currency else 0
        if self.meter.what == TOKENS:
            usage = Usage(line.prompt_tokens, line.completion_tokens, line.cached_tokens, False, line.reasoning_tokens)
            return self.weights.of(usage)
        took = line.prompt_tokens or line.completion_tokens or line.cost
        refused = line.outcome == "denied" and (line.guardrail or line.code in REFUSED)
        return 1 if line.outcome in ("ok", "unknown") or took or refused else 0


class BudgetLedger:
    """directory: of the audit logs. registry: the buckets of this gateway."""

    def __init__(
        self, store: ControlStore, directory: Path, spec: Callable[[], ConfigSpec], registry: Callable[[], BucketRegistry]
    ) -> None:
        self._store, self._directory, self._spec, self._registry = store, directory, spec, registry
        self._ticker = Ticker()

    async def compare(self) -> dict[str, Any]:
        """`budgets`: a line for each bucket; `not_compared`: limits with the reason. Raises StoreUnavailable, OSError."""
        now, budgets, left = time.time(), [], []
        for limit in self._spec().limits:
            if limit.budget is not None:
                why = self._why_not(limit)
                if why:
                    left.append({"limit": limit.name, "reason": why})
                else:
                    budgets.append(_Budget(limit, now))
        lines: list[dict[str, Any]] = []
        if budgets:
            await asyncio.to_thread(self._read, budgets)
        for budget in budgets:
            lines += await self._lines(budget, now)
        return {"budgets": lines, "not_compared": left}

    def _why_not(self, limit: LimitSpec) -> str:
        assert limit.budget is not None
        if self._spec().redis is not None:
            return "counted in Redis"
        if not isinstance(limit.budget.window, str):
            return "a rolling window has no beginning that the log could be read from"
        if limit.per == "group" or limit.match.group != "*" or limit.match.role != "*":
            return "the log does not say which groups and roles callers had"
        return "" if limit.match.key else "the log does not say which limits a key named"

    def _read(self, budgets: Sequence[_Budget]) -> None:
        """Blocks: reads the logs of this machine from the first window's beginning on."""
        begin = min(budget.begin for budget in budgets)
        kinds: dict[tuple[str, str], str] = {}
        turn = 0
        for segments in (list_segments(self._directory) if self._directory.is_dir() else {}).values():
            for _, path in segments:
                if path.stat().st_mtime < begin:
                    continue
                with path.open("rb") as file:
                    for text in read_lines(file):
                        head = text[:48]
                        if _INTENT not in head and _OUTCOME not in head:
                            continue
                        turn += 1
                        if turn % _BREATH == 0:
                            time.sleep(0)
                        try:
                            line = _line(text)
                        except (msgspec.DecodeError, UnicodeDecodeError):
                            continue  # `audit verify` tells
                        if line.credential:
                            kinds[line.tenant, line.principal] = line.credential
                        if line.outcome and line.time >= begin:
                            for budget in budgets:
                                budget.add(line, kinds.get((line.tenant, line.principal), "api_key"))

    async def _lines(self, budget: _Budget, now: float) -> list[dict[str, Any]]:
        name, meter = budget.limit.name, budget.meter
        rows = await self._store.counters_of(name, COUNTERS)
        charged = {row.name[2]: used(json.loads(row.body), meter, now) for row in rows if row.name[1] == meter.name}
        hand = self._in_hand(name, meter.name)
        found = []
        for key in sorted({*charged, *budget.spent}):
            audit, store, here = budget.spent.get(key, 0), charged.get(key, 0), hand.get(key, 0)
            if audit or store:
                found.append(
                    {
                        "limit": name,
                        "scope": "/".join(key),
                        "unit": f"nano-{meter.words}" if meter.what == MONEY else meter.words,
                        "from_audit": audit,
                        "charged": store,
                        "in_hand": here,
                        "difference": store - here - audit,
                    }
                )
        return found

    def _in_hand(self, limit: str, amount: str) -> Spent:
        """What this gateway's processes have in hand, or owe, by bucket."""
        found: Spent = {}
        for key, bucket in self._registry().all():
            if bucket.shape.name != limit:
                continue
            if isinstance(bucket, Account):
                bucket.settle(self._ticker.now())
            for index, cell in enumerate(bucket.cells):
                if cell.stock is not None and bucket.shape.meters[index].name == amount:
                    found[key] = found.get(key, 0) + cell.stock.hand + bucket.outside(index)
        return found
