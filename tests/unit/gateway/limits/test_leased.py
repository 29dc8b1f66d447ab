"""Limits over several workers, in a simulated gateway: never above the limit, and nothing is lost, whatever happens."""

from __future__ import annotations

from fractions import Fraction

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.specs import LimitMatchSpec, LimitSpec, RateSpec
from gateway.core.types import Usage
from gateway.limits.account import Account
from gateway.limits.bucket import SECOND
from gateway.limits.share import Share
from tests.fakes.leases import Try, Worker, World

CALLERS = ("ann", "bob", "cid", "dan")
SMALL = (
    LimitSpec(name="key", requests=RateSpec(rate=2, burst=4), tokens=RateSpec(rate=20, burst=50), concurrent=2),
    LimitSpec(name="all", per="global", requests=RateSpec(rate=3, burst=6), tokens=RateSpec(rate=30, burst=80), concurrent=3),
)
LARGE = (
    LimitSpec(name="key", requests=RateSpec(rate=50, burst=100), tokens=RateSpec(rate=2000, burst=4000), concurrent=30),
    LimitSpec(name="all", per="global", requests=RateSpec(rate=80, burst=150), concurrent=40),
)
ODD = (
    LimitSpec(name="key", requests=RateSpec(rate=7, per=0.3, burst=1), concurrent=1),
    LimitSpec(name="all", per="global", tokens=RateSpec(rate=33.3, per=0.7, burst=45.5)),
)
PLAIN = (LimitSpec(name="all", per="global", requests=RateSpec(rate=20, burst=16)),)
TOKENS = (LimitSpec(name="all", per="global", tokens=RateSpec(rate=400, burst=300)),)
CHANGED = LimitSpec(name="new", per="tenant", requests=RateSpec(rate=5, burst=9), concurrent=5)


class Leases(RuleBasedStateMachine):
    """Random requests, ends, kills, stops, reloads and upgrades. `exact`: everything costs what was reserved, so that the bound must hold
    between any two admissions, not only since the start; unless something was charged for a request that had been abandoned: that is
    refunded, and a refund counts from when it was charged."""

    @initialize(
        limits=st.sampled_from([PLAIN, TOKENS, SMALL, LARGE, ODD]),
        workers=st.integers(1, 4),
        exact=st.booleans(),
        seed=st.integers(0, 99),
        delay=st.sampled_from([0.0003, 0.002, 0.06]),
        capacity=st.sampled_from([3, 1000]),
    )
    def begin(self, limits: tuple[LimitSpec, ...], workers: int, exact: bool, seed: int, delay: float, capacity: int) -> None:
        self.world = World(limits, workers, seed=seed, delay=delay, capacity=capacity)
        self.limits, self.exact, self.delay = limits, exact, delay
        self.start = self.world.clock.monotonic()
        self.tries: list[Try] = []
        self.used: dict[Try, int] = {}

    def worker(self, number: int) -> Worker:
        workers = [worker for worker in self.world.workers.values() if not worker.stopped]
        return workers[number % len(workers)]

    @precondition(lambda self: any(not worker.stopped for worker in self.world.workers.values()))
    @rule(
        number=st.integers(0, 3), who=st.sampled_from(CALLERS), tokens=st.integers(0, 40), more=st.integers(0, 60), times=st.integers(1, 30)
    )
    def ask(self, number: int, who: str, tokens: int, more: int, times: int) -> None:
        for _ in range(times):
            self.tries.append(self.worker(number).ask(who, tokens, more))

    @precondition(lambda self: any(not worker.stopped for worker in self.world.workers.values()))
    @rule(number=st.integers(0, 3), who=st.sampled_from(CALLERS), tokens=st.integers(0, 9), times=st.integers(2, 12))
    def talk(self, number: int, who: str, tokens: int, times: int) -> None:
        """One after the other, so that the worker is granted some ahead."""
        worker = self.worker(number)
        for _ in range(times):
            self.tries.append(worker.ask(who, tokens))
            self.world.run(3 * self.delay)
            if self.tries[-1].under_way:
                self.end(self.tries[-1], 100)

    @rule(number=st.integers(0, 99), share=st.sampled_from([0, 50, 100, None]), times=st.integers(1, 20))
    def settle(self, number: int, share: int | None, times: int) -> None:
        for _ in range(times):
            ready = [one for one in self.tries if one.under_way and not one.worker.stopped]
            if ready:
                self.end(ready[number % len(ready)], share)

    def end(self, one: Try, share: int | None) -> None:
        if self.exact:
            one.settle(Usage(one.tokens, 0))
        elif share is None:
            self.used[one] = -1
            one.settle(None)
        else:
            self.used[one] = one.tokens * share // 100
            one.settle(Usage(self.used[one], 0))

    @rule(milliseconds=st.sampled_from([1, 1, 3, 10, 60, 300, 1000, 3000]))
    def wait(self, milliseconds: int) -> None:
        self.world.run(milliseconds / 1000)

    @precondition(lambda self: len(self.world.workers) > 1)
    @rule(number=st.integers(0, 3))
    def kill(self, number: int) -> None:
        self.world.kill(list(self.world.workers.values())[number % len(self.world.workers)])

    @precondition(lambda self: len(self.world.workers) < 4)
    @rule()
    def another(self) -> None:
        self.world.start()

    @rule(number=st.integers(0, 3))
    def stop_or_go_on(self, number: int) -> None:
        worker = list(self.world.workers.values())[number % len(self.world.workers)]
        if worker.stopped:
            worker.go_on()
        else:
            worker.stopped = True

    @rule()
    def stop_control_or_go_on(self) -> None:
        if self.world.control.stopped:
            self.world.control.go_on()
        else:
            self.world.control.stopped = True

    @precondition(lambda self: not self.world.control.stopped)
    @rule()
    def upgrade(self) -> None:
        self.world.replace_control()

    @rule(more=st.booleans())
    def reload(self, more: bool) -> None:
        self.world.reload((*self.limits, CHANGED) if more else self.limits)

    @invariant()
    def never_above_the_limit(self) -> None:
        elapsed = Fraction(self.world.clock.monotonic() - self.start)
        for limit in self.limits:
            for who in CALLERS if limit.per == "key" else (None,):
                mine = [one for one in self.world.admitted if who in (None, one.who)]
                assert sum(one.under_way for one in mine) <= (limit.concurrent or 10**9)
                requests = [one for one in mine if self.used.get(one) != -1]
                most(limit.requests, len(requests), elapsed)
                burst = 0 if limit.tokens is None else limit.tokens.burst or limit.tokens.rate
                most(limit.tokens, sum(min(self.used.get(one, one.tokens), burst) for one in requests), elapsed)

    @invariant()
    def the_book_knows_of_everything(self) -> None:
        """What workers could use is charged: so no fault of a worker or a link can make it more."""
        now = self.world.book.now()
        for key, account in self.world.book.registry.all():
            assert isinstance(account, Account)
            amounts, slots = [0] * len(account.out), 0
            for worker in self.world.workers.values():
                shape = worker.shares.registry.shape(account.shape.spec)
                share = worker.shares.registry.known(shape, key)
                if isinstance(share, Share):
                    slots += max(share.slots, share.in_use) if shape.concurrent else 0
                    if now < share.expires:
                        amounts = [one + more for one, more in zip(amounts, share.amounts, strict=True)]
            assert all(one <= out for one, out in zip(amounts, account.out, strict=True)) and slots <= account.in_use

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for party in (world.control, *world.workers.values()):
            party.go_on()
        world.run(6.0)
        assert not any(one.pending and one.worker.alive for one in self.tries), "everybody got an answer"
        if self.exact and not any(one.abandoned for one in self.tries):
            self.bound_between_any_two()
        for one in self.tries:
            if one.under_way:
                one.settle(Usage(0, 0))
        world.run(200.0)
        self.nothing_is_lost()
        self.one_worker_gets_everything()

    def bound_between_any_two(self) -> None:
        for limit in self.limits:
            for who in CALLERS if limit.per == "key" else (None,):
                mine = sorted((one for one in self.world.admitted if who in (None, one.who)), key=lambda one: one.at)
                strict(limit.requests, [(one.at, Fraction(1)) for one in mine])
                if limit.tokens is not None:
                    burst = Fraction(str(limit.tokens.burst))
                    strict(limit.tokens, [(one.at, min(Fraction(one.tokens), burst)) for one in mine])

    def nothing_is_lost(self) -> None:
        world = self.world
        assert world.book.waiting == 0
        for _, account in world.book.registry.all():
            assert isinstance(account, Account)
            account.settle(world.book.now())
            assert account.in_use == 0 and not any(account.out)
            assert not account.leases
        for worker in world.workers.values():
            assert worker.shares.waiting == 0 and not worker.shares._listed
            for _, share in worker.shares.registry.all():
                assert isinstance(share, Share)
                assert (share.in_use, share.slots, share.waiting, share.listed) == (0, 0, 0, False)

    def one_worker_gets_everything(self) -> None:
        world, limit = self.world, self.limits[0]
        world.reload([msgspec.structs.replace(limit, match=LimitMatchSpec())])
        worker = next(iter(world.workers.values()))
        burst = 0 if limit.requests is None else int(limit.requests.burst or 0)
        slots = limit.concurrent or 0
        for _ in range(burst):
            one = worker.ask("ann")
            world.run(10 * self.delay if one.pending else 0.0)
            assert one.reservation is not None
            one.settle(Usage(0, 0))
        world.run(200.0)
        held = [worker.ask("ann") for _ in range(slots)]
        world.run(1.0)
        assert sum(one.reservation is not None for one in held) == min(slots, burst)


def most(rate: RateSpec | None, given: float, elapsed: Fraction) -> None:
    if rate is not None:
        burst = rate.rate if rate.burst is None else rate.burst
        assert given <= Fraction(str(burst)) + Fraction(str(rate.rate)) / Fraction(str(rate.per)) * elapsed + Fraction(1, 10**6)


def strict(rate: RateSpec | None, admitted: list[tuple[int, Fraction]]) -> None:
    """Between any two admissions at most burst + rate x time, by a bucket of exact fractions."""
    if rate is None:
        return
    burst = Fraction(str(rate.rate if rate.burst is None else rate.burst))
    speed = Fraction(str(rate.rate)) / Fraction(str(rate.per)) / SECOND
    level, last = burst, admitted[0][0] if admitted else 0
    for when, units in admitted:
        level, last = min(burst, level + (when - last) * speed), when
        level -= units
        assert level >= 0, (when, units, level)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=50, stateful_step_count=40, phases=(Phase.explicit, Phase.generate))
