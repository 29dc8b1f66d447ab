"""Limits inside one process: takes from every bucket that applies, or from none.

It waits only where an amount is counted in the store and the block in hand does not suffice. A reservation holds the estimate. Settling it
refunds what was not used, or charges the excess. Until then its buckets cannot be forgotten. Guarantee: between two moments with nothing
under way, no bucket hands out more than burst + rate x time. While exchanges are under way, it can hand out more only by what they reserved
and did not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.core.clock import Clock
from gateway.core.errors import Overloaded
from gateway.core.ports import Reservation
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Maybe, Signal
from gateway.limits.bucket import Amounts, Bucket, bounded
from gateway.limits.exceeded import exceeded
from gateway.limits.headers import Gauges, lines
from gateway.limits.meter import SECOND
from gateway.limits.registry import BucketRegistry, Scope
from gateway.limits.stock import Need, Restock
from gateway.limits.ticker import Ticker

MEMO_SIZE: Final = 16384
MAX_WAITING: Final = 10_000
"""Requests that may wait for the store at once."""
WAIT: Final = 3 * SECOND
"""How long a request waits for the store in all: others may take what it was told is there."""
NOTHING: Final[tuple[str, ...]] = ()
Loop = tuple[str, int, int, bool]
"""A bound on conversations: the limit's name, calls of tools in a row, the same call of a tool, whether it is enforced. 0: no bound."""


class Rules(Protocol):
    """Decides which limits apply (policies.limits.LimitRules)."""

    def applying(self, principal: Principal, model: str, operation: str = "") -> Sequence[Scope]: ...

    def loops(self, principal: Principal, model: str, operation: str = "") -> Sequence[Loop]: ...

    def check_loops(self, loops: Sequence[Loop], request: InferenceRequest) -> list[str]: ...


class Applying:
    """What applies to one caller, model and operation."""

    __slots__ = ("buckets", "gauges", "loops")

    def __init__(self, buckets: tuple[Bucket, ...], loops: Sequence[Loop]) -> None:
        self.buckets, self.loops, self.gauges = buckets, tuple(loops), Gauges(buckets)


class LocalLimiter:
    """The Limiter over in-process buckets. estimate: tokens to reserve; learn: hears what they turned out to be, with the model and the
    first guess at the prompt (gateway.limits.estimates has both). restock: the way to the store, for
    a registry that is durable. noted: hears of each limit that would have refused a request if it were enforced."""

    def __init__(
        self,
        rules: Rules,
        registry: BucketRegistry,
        *,
        estimate: Callable[[InferenceRequest], tuple[int, int]],
        learn: Callable[[str, int, Usage], None] | None = None,
        restock: Restock | None = None,
        noted: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        memo_size: int = MEMO_SIZE,
    ) -> None:
        self._rules, self._registry, self._estimate = rules, registry, estimate
        self._learn, self._restock, self._noted = learn, restock, noted
        self._ticker = Ticker(clock)
        self._memo: dict[tuple[Principal, str, str], Applying] = {}
        self._memo_size = memo_size
        self._generation = registry.generation
        self._version = registry.next_version()
        self._waiting = 0

    def reserve(self, principal: Principal, request: InferenceRequest) -> Maybe[Reservation]:
        """Takes from every bucket that applies. Raises LimitExceeded (429) if one has too little, and then changes none."""
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
        buckets = applying.buckets
        if not buckets and not would:
            return UNLIMITED
        amounts = self._amounts(request)
        if request.most > 0:
            amounts = bounded(request, buckets, now, amounts)
        costs: list[list[int]] = []
        fits = True
        for bucket in buckets:
            cost = bucket.shape.costs(amounts)
            costs.append(cost)
            if fits and not bucket.admits(now, cost) and bucket.shape.enforce:
                fits = False
        if not fits:
            return self._without(applying, costs, now, amounts, would)
        return self._admitted(applying, costs, now, amounts, would)

    def _amounts(self, request: InferenceRequest) -> Amounts:
        raw = request.prompt_tokens
        prompt, completion = self._estimate(request)
        return Amounts(request, raw, prompt, completion)

    def _admitted(self, applying: Applying, costs: list[list[int]], now: int, asked: Amounts, would: tuple[str, ...]) -> Held:
        """Charges what fits; from limits that are not enforced, only where it does."""
        buckets, enforced = applying.buckets, True
        for index, bucket in enumerate(buckets):
            if bucket.shape.enforce:
                bucket.take(now, costs[index])
            else:
                enforced = False
        if not enforced or would:
            return self._partly(buckets, costs, now, asked, would)
        return Held(self, buckets, costs, now, asked, applying.gauges.lines(now))

    def _partly(self, buckets: tuple[Bucket, ...], costs: list[list[int]], now: int, asked: Amounts, would: tuple[str, ...]) -> Held:
        """Enforced limits are charged already; the others are now, where it fits."""
        noted = list(would)
        taken: list[Bucket] = []
        taken_costs: list[list[int]] = []
        for bucket, cost in zip(buckets, costs, strict=True):
            if not bucket.shape.enforce:
                if not bucket.admits(now, cost) and not bucket.owes(now, cost, self._restock):
                    noted.append(bucket.shape.name)
                    continue
                bucket.take(now, cost)
            taken.append(bucket)
            taken_costs.append(cost)
        if self._noted is not None:
            for name in noted:
                self._noted(name)
        return Held(self, tuple(taken), taken_costs, now, asked, lines(taken, now), tuple(noted))

    def _without(self, applying: Applying, costs: list[list[int]], now: int, asked: Amounts, would: tuple[str, ...]) -> Maybe[Reservation]:
        """There is too little: asks the store where that can help, and refuses otherwise."""
        buckets = applying.buckets
        needs = self._needs(buckets, costs, now)
        if not needs or self._restock is None:
            raise exceeded(buckets, costs, now)
        if self._waiting >= MAX_WAITING:
            raise Overloaded("Too many requests wait for their limits.", code="limits_unavailable", retry_after=1.0)
        for bucket in buckets:
            bucket.used = now  # it must not be forgotten meanwhile
        signal: Signal[Reservation] = Signal()
        waiting = _Waiting(self, applying, costs, asked, would, signal, now + WAIT)
        self._waiting += 1
        self._restock.ask(needs, waiting.again)
        return signal

    def _needs(self, buckets: tuple[Bucket, ...], costs: list[list[int]], now: int) -> list[Need]:
        needs: list[Need] = []
        for bucket, cost in zip(buckets, costs, strict=True):
            if bucket.shape.enforce and not bucket.admits(now, cost) and not bucket.lacking(now, cost, needs):
                return []
        return needs

    def retry(self, waiting: _Waiting) -> None:
        """The store has answered for a request that waits."""
        now = self._ticker.now()
        signal, buckets, costs = waiting.signal, waiting.applying.buckets, waiting.costs
        if not signal.awaited:  # the client has left
            self._waiting -= 1
            return
        fits = True
        for bucket, cost in zip(buckets, costs, strict=True):
            if bucket.shape.enforce and not bucket.admits(now, cost):
                fits = False
        if fits:
            self._waiting -= 1
            signal.set(self._admitted(waiting.applying, costs, now, waiting.asked, waiting.would))
            return
        needs = self._needs(buckets, costs, now)
        if needs and now < waiting.until and self._restock is not None:
            self._restock.ask(needs, waiting.again)
            return
        self._waiting -= 1
        signal.fail(exceeded(buckets, costs, now))

    def _resolve(self, principal: Principal, model: str, operation: str, now: int) -> Applying:
        buckets = self._registry.buckets(self._rules.applying(principal, model, operation), now, self._version)
        if self._generation != self._registry.generation:
            self._memo.clear()  # making room may have forgotten buckets that the memo holds
            self._generation = self._registry.generation
        if len(self._memo) >= self._memo_size:
            del self._memo[next(iter(self._memo))]
        found = self._memo[(principal, model, operation)] = Applying(buckets, self._rules.loops(principal, model, operation))
        return found

    def settle(self, held: Held, usage: Usage | None) -> None:
        """Ends a reservation; called once for each by the reservation itself."""
        if usage is None:
            for index, bucket in enumerate(held.buckets):
                bucket.give_back(held.taken_at, held.costs[index])
            return
        if self._learn is not None:
            self._learn(held.asked.model, held.asked.raw, usage)
        now = self._ticker.now()
        currency = held.asked.currency
        taken_at, costs = held.taken_at, held.costs
        for index, bucket in enumerate(held.buckets):
            bucket.finish(taken_at, now, costs[index], usage, currency)


class _Waiting:
    """A request that waits for the store."""

    __slots__ = ("_limiter", "applying", "asked", "costs", "signal", "until", "would")

    def __init__(
        self,
        limiter: LocalLimiter,
        applying: Applying,
        costs: list[list[int]],
        asked: Amounts,
        would: tuple[str, ...],
        signal: Signal[Reservation],
        until: int,
    ) -> None:
        self._limiter, self.applying, self.costs, self.asked, self.would = limiter, applying, costs, asked, would
        self.signal, self.until = signal, until

    def again(self) -> None:
        """The store has answered."""
        self._limiter.retry(self)


class Held:
    """A reservation in in-process buckets: what was taken from each, and when. not_enforced: limits that would have refused."""

    __slots__ = ("_limiter", "_settled", "asked", "buckets", "costs", "headers", "not_enforced", "taken_at")

    def __init__(
        self,
        limiter: LocalLimiter,
        buckets: tuple[Bucket, ...],
        costs: list[list[int]],
        taken_at: int,
        asked: Amounts,
        headers: bytes,
        not_enforced: tuple[str, ...] = (),
    ) -> None:
        self._limiter, self.buckets, self.costs, self.taken_at, self.headers = limiter, buckets, costs, taken_at, headers
        self.asked, self.not_enforced = asked, not_enforced
        self._settled = False

    @property
    def counts_tokens(self) -> bool:
        """Whether any of these buckets counts tokens, or money."""
        return any([bucket.shape.counts_tokens for bucket in self.buckets])

    def settle(self, usage: Usage | None) -> None:
        """Charges the actual usage, or refunds all (None). A second call does nothing."""
        if self._settled:
            return
        self._settled = True
        self._limiter.settle(self, usage)


class Unlimited:
    """The reservation of a request that no limit applies to."""

    __slots__ = ()
    headers = b""
    not_enforced: tuple[str, ...] = ()
    counts_tokens = False

    def settle(self, usage: Usage | None) -> None:
        return None


UNLIMITED: Final = Unlimited()
