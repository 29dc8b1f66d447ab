"""Limits of one worker among several: decides by itself while its shares suffice, and otherwise asks the control process.

A request takes from every bucket that applies, or from none. If one of its shares is too small, the request waits, and the control process
(gateway.limits.lease_book) decides it: nobody is refused while another worker holds what is missing. What is asked in one turn of the loop
goes in one message (gateway.limits.shares). Guarantees: docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gateway.core.ports import Reservation
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Maybe
from gateway.limits import headers
from gateway.limits.exceeded import whole_burst
from gateway.limits.local import MEMO_SIZE, UNLIMITED, Rules
from gateway.limits.share import Share
from gateway.limits.shares import LeasedHeld, Shares


class LeasedLimiter:
    """The Limiter over the shares of a worker. estimate, charge: what a request costs (policies.limits)."""

    def __init__(
        self,
        rules: Rules,
        shares: Shares,
        *,
        estimate: Callable[[InferenceRequest], tuple[int, int]],
        charge: Callable[[Usage], int],
        memo_size: int = MEMO_SIZE,
    ) -> None:
        self._rules, self._shares, self._registry = rules, shares, shares.registry
        self._estimate, self._charge = estimate, charge
        self._monotonic = shares.monotonic
        self._memo: dict[tuple[Principal, str], tuple[Share, ...]] = {}
        self._memo_size = memo_size
        self._generation = self._registry.generation

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        """Takes from every bucket that applies. Raises LimitExceeded (429) if one has too little, and Overloaded (503) if the control
        process does not answer; both may also come out of the wait. Neither changes a bucket."""
        if self._generation != self._registry.generation:
            self._memo.clear()
            self._generation = self._registry.generation
        shares = self._memo.get((principal, request.model))
        now = int(self._monotonic() * 1_000_000_000_000)
        if shares is None:
            shares = self._resolve(principal, request.model, now)
        if not shares:
            return UNLIMITED
        prompt, completion = self._estimate(request)
        if len(shares) != 1:
            return self._reserve_several(shares, prompt, prompt + completion, now)
        share = shares[0]
        rate = share.shape.tokens
        tokens = 0
        if rate is not None:
            tokens = prompt + completion
            if tokens * rate.unit_ps > rate.burst_ps:
                whole_burst(share, prompt)
                tokens = -(-rate.burst_ps // rate.unit_ps)
        if not share.covers(now, tokens):
            return self._shares.ask(shares, (tokens,), now, self._charge)
        share.use(now, tokens)
        return LeasedHeld(self._shares, self._charge, shares, (tokens,), (share.turn,), now, headers.line(share, now))

    def _reserve_several(self, shares: tuple[Share, ...], prompt: int, tokens: int, now: int) -> Maybe[Reservation]:
        costs: list[int] = []
        here = True
        for share in shares:
            rate = share.shape.tokens
            cost = 0
            if rate is not None:
                cost = tokens
                if cost * rate.unit_ps > rate.burst_ps:
                    whole_burst(share, prompt)
                    cost = -(-rate.burst_ps // rate.unit_ps)
            costs.append(cost)
            if not share.covers(now, cost):
                here = False
        if not here:
            return self._shares.ask(shares, costs, now, self._charge)
        turns: list[int] = []
        for share, cost in zip(shares, costs, strict=True):
            share.use(now, cost)
            turns.append(share.turn)
        return LeasedHeld(self._shares, self._charge, shares, costs, turns, now, headers.lines(shares, now))

    def _resolve(self, principal: Principal, model: str, now: int) -> tuple[Share, ...]:
        shares = cast(tuple[Share, ...], self._registry.buckets(self._rules.applying(principal, model), now))
        if self._generation != self._registry.generation:
            self._memo.clear()  # making room may have forgotten shares that the memo holds
            self._generation = self._registry.generation
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        self._memo[(principal, model)] = shares
        return shares
