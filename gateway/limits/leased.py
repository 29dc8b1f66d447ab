"""Limits of one worker among several: decides by itself while its shares suffice, and otherwise asks the control process.

A request takes from every bucket that applies, or from none. If one of its shares is too small, the request waits, and the control process
(gateway.limits.lease_book) decides it: nobody is refused while another worker holds what is missing. What is asked in one turn of the loop
goes in one message (gateway.limits.shares). Guarantees: docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from gateway.core.ports import Reservation
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Maybe
from gateway.limits.bucket import Amounts, bounded
from gateway.limits.headers import Gauges
from gateway.limits.local import MEMO_SIZE, NOTHING, UNLIMITED, Loop, Rules
from gateway.limits.share import Share
from gateway.limits.shares import LeasedHeld, Shares


class LeasedApplying:
    """What applies to one caller, model and operation."""

    __slots__ = ("gauges", "loops", "shares")

    def __init__(self, shares: tuple[Share, ...], loops: Sequence[Loop]) -> None:
        self.shares, self.loops, self.gauges = shares, tuple(loops), Gauges(shares)


class LeasedLimiter:
    """The Limiter over the shares of a worker. estimate: tokens to reserve. version: of the configuration, the same in all workers."""

    def __init__(
        self,
        rules: Rules,
        shares: Shares,
        *,
        estimate: Callable[[InferenceRequest], tuple[int, int]],
        memo_size: int = MEMO_SIZE,
        version: int = 0,
    ) -> None:
        self._rules, self._shares, self._registry, self._estimate = rules, shares, shares.registry, estimate
        self._ticker = shares.ticker
        self._memo: dict[tuple[Principal, str, str], LeasedApplying] = {}
        self._memo_size = memo_size
        self._generation = self._registry.generation
        self._version = version

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        """Takes from every bucket that applies. Raises LimitExceeded (429) if one has too little, and Overloaded (503) if the control
        process does not answer; both may also come out of the wait. Neither changes a bucket."""
        if self._generation != self._registry.generation:
            self._memo.clear()
            self._generation = self._registry.generation
        applying = self._memo.get((principal, request.model, request.operation))
        now = self._ticker.now()
        if applying is None:
            applying = self._resolve(principal, request.model, request.operation, now)
        would = NOTHING
        if applying.loops:
            would = tuple(self._rules.check_loops(applying.loops, request))
        shares = applying.shares
        if not shares and not would:
            return UNLIMITED
        raw = request.prompt_tokens
        prompt, completion = self._estimate(request)
        amounts = Amounts(request, raw, prompt, completion)
        if request.most > 0:
            amounts = bounded(request, shares, now, amounts)
        costs: list[list[int]] = []
        here = True
        for share in shares:
            cost = share.shape.costs(amounts)
            costs.append(cost)
            if not share.covers(now, cost):
                here = False
        if not here:
            return self._shares.ask(shares, costs, now, amounts, would)
        turns: list[int] = []
        for index, share in enumerate(shares):
            share.use(now, costs[index])
            turns.append(share.turn)
        if would and self._shares.noted is not None:
            for name in would:
                self._shares.noted(name)
        return LeasedHeld(self._shares, amounts, shares, costs, turns, now, applying.gauges.lines(now), would)

    def _resolve(self, principal: Principal, model: str, operation: str, now: int) -> LeasedApplying:
        scopes = self._rules.applying(principal, model, operation)
        shares = cast(tuple[Share, ...], self._registry.buckets(scopes, now, self._version))
        if self._generation != self._registry.generation:
            self._memo.clear()  # making room may have forgotten shares that the memo holds
            self._generation = self._registry.generation
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        found = self._memo[(principal, model, operation)] = LeasedApplying(shares, self._rules.loops(principal, model, operation))
        return found
