"""Blocks of what the store counts: taken when they are needed, many at once, given back when they lie unused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, LimitExceeded, Overloaded, QuotaExceeded, StoreUnavailable
from gateway.core.ports import Reservation
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal, as_future
from gateway.core.wire import WireApi
from gateway.limits.counter import LIFE, Ask, Given, counted, used
from gateway.limits.local import LocalLimiter
from gateway.limits.meter import meters_of
from gateway.limits.refills import Refills
from gateway.limits.registry import BucketRegistry
from gateway.limits.stock import Stock
from policies.limits import LimitRules, estimate
from tests.waiting import reached

CALLER = Principal("ci", "t", "api_key", ("*",))


class Shelf:
    """The rows of a store. down: it does not answer. late: what it is asked is done once this is set, if it is."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.rows, self.calls, self.down = clock, {}, 0, False  # type: ignore[var-annotated]
        self.late: asyncio.Event | None = None

    async def count(self, asks: Sequence[Ask]) -> Sequence[Given]:
        if self.late is not None:
            await self.late.wait()
        if self.down:
            raise StoreUnavailable("away")
        self.calls += 1
        answers = []
        for ask in asks:
            self.rows[ask.key], given = counted(self.rows.get(ask.key), ask, self.clock.wall())
            answers.append(given)
        await asyncio.sleep(0)
        return answers


class Replica:
    def __init__(self, shelf: Shelf, limits: Sequence[LimitSpec], name: str = "a", replicas: int = 1) -> None:
        self.shelf = shelf
        self.refills = Refills(shelf.count, name, TaskOwner("test"), replicas=lambda: replicas, clock=shelf.clock)
        self.registry = BucketRegistry(durable=True)
        self.reload(limits)

    def reload(self, limits: Sequence[LimitSpec]) -> None:
        self.limiter = LocalLimiter(LimitRules(limits), self.registry, estimate=estimate, restock=self.refills, clock=self.shelf.clock)

    async def ask(self, tokens: int = 0, who: Principal = CALLER) -> Reservation:
        found: Any = self.limiter.reserve(who, InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=tokens))
        return await as_future(found) if isinstance(found, Signal) else found  # type: ignore[no-any-return]

    async def many(self, count: int, tokens: int = 0) -> int:
        """How many of so many at once are admitted."""
        found = await asyncio.gather(*(self.ask(tokens) for _ in range(count)), return_exceptions=True)
        assert all(not isinstance(one, Exception) or isinstance(one, GatehouseError) for one in found), found
        return sum(not isinstance(one, Exception) for one in found)


def daily(amount: float = 1000, **settings: Any) -> LimitSpec:
    return LimitSpec(name="day", budget=BudgetSpec(amount=amount, window="day"), **settings)


def spent(shelf: Shelf, limit: LimitSpec) -> int:
    return used(shelf.rows.get(("t", "api_key", "ci")), meters_of(limit)[0], shelf.clock.wall())


async def test_a_budget_is_used_to_the_end_and_never_beyond() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily()])
    assert await replica.many(300, 10) == 100
    with pytest.raises(QuotaExceeded, match=r"has 0 tokens left; this needs about 10 tokens") as caught:
        await replica.ask(10)
    error = caught.value
    assert (error.status, error.type, error.code) == (429, "insufficient_quota", "insufficient_quota")
    assert ("x-should-retry", "false") in error.headers
    assert error.retry_after == pytest.approx(86400 - shelf.clock.wall() % 86400, abs=2)
    shelf.clock.advance(error.retry_after)
    assert await replica.many(300, 10) == 100


async def test_most_requests_need_no_answer_of_the_store() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily(1_000_000)])
    for _ in range(2000):
        (await replica.ask(10)).settle(Usage(5, 5))
        shelf.clock.advance(0.001)
    assert shelf.calls < 40


async def test_replicas_share_it_and_a_killed_one_loses_what_it_had_in_hand() -> None:
    shelf = Shelf(FakeClock())
    one, two = (Replica(shelf, [daily()], name, 2) for name in "ab")
    first = await one.many(30, 10)
    again = Replica(shelf, [daily()], "c", 2)
    rest = await two.many(200, 10) + await again.many(200, 10)
    assert first == 30 and 40 <= rest <= 70
    assert spent(shelf, daily()) == 1000


async def test_what_lies_unused_goes_back_and_an_end_in_order_loses_nothing() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily(10_000)])
    for _ in range(20):
        (await replica.ask(100)).settle(Usage(50, 0))
    assert spent(shelf, daily(10_000)) > 1000
    await replica.refills.aclose()
    assert spent(shelf, daily(10_000)) == 1000
    (await replica.ask(100)).settle(Usage(50, 0))
    shelf.clock.advance(10.0)
    await replica.refills._look()
    await reached(lambda: spent(shelf, daily(10_000)) == 1050)
    assert (await replica.ask(100)) is not None


async def test_more_than_was_reserved_is_owed_and_paid() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily()])
    (await replica.ask(100)).settle(Usage(700, 250))
    assert await replica.many(5, 100) == 0
    await replica.refills._look()
    await reached(lambda: spent(shelf, daily()) == 950)


async def test_a_raised_budget_counts_at_once() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily()])
    assert await replica.many(200, 10) == 100
    replica.reload([daily(1500)])
    assert await replica.many(200, 10) == 50
    replica.reload([daily(500)])
    assert await replica.many(200, 10) == 0


async def test_a_long_rate_is_durable_and_shows_what_is_left() -> None:
    shelf = Shelf(FakeClock())
    twice = LimitSpec(name="twice", requests=RateSpec(rate=2, per=86400.0))
    replica = Replica(shelf, [twice])
    assert b"x-ratelimit-remaining-requests: 1\r\n" in (await replica.ask()).headers
    await replica.refills.aclose()
    restarted = Replica(shelf, [twice])
    assert await restarted.many(10) == 1
    with pytest.raises(LimitExceeded) as caught:
        await restarted.ask()
    assert caught.value.code == "rate_limit_exceeded" and caught.value.retry_after == pytest.approx(43200, abs=1)


@pytest.mark.parametrize(("mode", "least", "most"), [("closed", 0, 0), ("local", 45, 50), ("open", 200, 200)])
async def test_while_the_store_is_away_the_limit_says_what_happens(mode: Any, least: int, most: int) -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily(on_failure=mode)], replicas=2)
    (await replica.ask(10)).settle(Usage(10, 0))
    shelf.clock.advance(30.0)
    await replica.refills._look()
    await reached(lambda: spent(shelf, daily()) == 10 and not replica.refills._running)
    shelf.down = True
    admitted = await replica.many(200, 10)
    assert least <= admitted <= most
    if mode == "closed":
        with pytest.raises(Overloaded) as caught:
            await replica.ask(10)
        assert (caught.value.status, caught.value.code) == (503, "limits_unavailable")
    shelf.down = False
    shelf.clock.advance(2.0)
    await replica.refills._look()
    await reached(lambda: not replica.refills._running)
    assert spent(shelf, daily()) == min(1000, 10 + 10 * admitted)


async def test_a_client_that_leaves_while_it_waits_takes_nothing() -> None:
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [daily()])
    for _ in range(100):
        replica.limiter.reserve(CALLER, InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=10))
    assert await replica.many(200, 10) == 100


def test_a_stock_of_an_earlier_window_is_gone() -> None:
    stock = Stock("l", "m", ())
    stock.heard_of(5, 100, 50, 1, 1000, 1000, 100)
    stock.take(30)
    stock.heard_of(1000, 20, 50, 2, 2000, 2000, 100)
    stock.give_back(900, 30)
    assert stock.hand == 20
    stock.give_back(1000, 30)
    assert stock.hand == 50 and not stock.covers(2000, 1)


async def test_a_rate_that_becomes_one_of_a_longer_time_is_counted_in_the_store_with_what_is_used_and_back() -> None:
    """The period of a limit may change while it is used: nothing is forgotten, and what was in hand of the store goes back."""
    minute = LimitSpec(name="rate", requests=RateSpec(rate=60, per=60.0, burst=10))
    day = LimitSpec(name="rate", requests=RateSpec(rate=86_400, per=86_400.0, burst=10))
    shelf = Shelf(FakeClock())
    replica = Replica(shelf, [minute])
    assert await replica.many(4) == 4 and not shelf.rows
    replica.reload([day])
    assert await replica.many(9) == 6
    shelf.clock.advance(3)
    again = Replica(shelf, [day], "b")
    assert await again.many(9) == 3, "what was used before the change counts for others, too"
    shelf.clock.advance(5)
    assert await replica.many(1) == 1
    replica.reload([minute])
    shelf.clock.advance(100)
    assert await replica.many(30) == 10
    await replica.refills._look()
    await replica.refills.aclose()
    assert spent(shelf, day) == 0


async def test_what_the_store_does_too_late_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 0.01)
    clock = FakeClock()
    shelf, slow = Shelf(clock), asyncio.Event()
    plain = shelf.count

    async def count(asks: Sequence[Ask]) -> Sequence[Given]:
        answers = await plain(asks)  # it is done
        await slow.wait()
        return answers

    shelf.count = count  # type: ignore[method-assign]
    one = Replica(shelf, [daily(on_failure="local")])
    with pytest.raises(GatehouseError):
        await one.ask(100)
    assert used(shelf.rows[("t", "api_key", "ci")], meters_of(daily())[0], clock.wall()) >= 100 and not one.refills.empty
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 60.0)
    slow.set()
    await reached(lambda: not one.refills._late)
    (stock,) = one.refills._known
    assert stock.hand >= 100
    await one.refills.aclose()
    assert used(shelf.rows[("t", "api_key", "ci")], meters_of(daily())[0], clock.wall()) == 0 and one.refills.empty
    shelf.down = True
    clock.advance(10)
    (await one.ask(100)).settle(None)
    assert not one.refills.empty, "nobody knows whether it was done: the next start settles this run"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_store_that_answers_late_admits_no_more_than_one_that_answers_in_time(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """What it grants late is out of what it had left, which may be owed meanwhile; and what is owed is said once, however late it is."""
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 0.01)
    shelf = Shelf(FakeClock())
    one = Replica(shelf, [daily(120, on_failure="local")])
    admitted = await one.many(4, 10)
    shelf.late = asyncio.Event()
    for _ in range(3):
        admitted += await one.many(3, 10)
        shelf.clock.advance(1.5)
        await one.refills._look()
        await reached(lambda: not one.refills._running)
    shelf.down = fails
    shelf.late.set()
    await reached(lambda: not one.refills._late and not one.refills._running)
    shelf.down, shelf.late = False, None
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 60.0)
    for _ in range(3):
        shelf.clock.advance(1.5)
        admitted += await one.many(10, 10)
    assert admitted == 12 and spent(shelf, daily(120)) == 120


async def test_a_budget_of_which_the_store_has_said_nothing_yet_is_not_called_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 0.01)
    shelf = Shelf(FakeClock())
    one = Replica(shelf, [daily(100)])
    shelf.late = asyncio.Event()
    for _ in range(2):
        with pytest.raises(Overloaded) as caught:
            await one.ask(10)
        assert (caught.value.code, caught.value.retry_after) == ("limits_unavailable", 1.0)
    shelf.late.set()
    await reached(lambda: not one.refills._late)
    assert await one.many(20, 10) == 10


async def test_a_budget_that_a_late_answer_brings_near_its_end_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 0.01)
    shelf, told = Shelf(FakeClock()), list[int]()
    one = Replica(shelf, [daily(100)])
    one.refills._alert = lambda limit, key, percent: told.append(percent)
    shelf.late = asyncio.Event()
    assert await one.many(1, 90) == 0 and not told
    shelf.late.set()
    await reached(lambda: told == [80])


async def test_what_was_granted_before_a_reset_is_not_in_hand_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have granted it before it forgot what was used: then nobody counts it."""
    monkeypatch.setattr("gateway.limits.refills.PATIENCE", 0.01)
    shelf = Shelf(FakeClock())
    one = Replica(shelf, [daily(100)])
    shelf.late = asyncio.Event()
    assert await one.many(1, 90) == 0
    (stock,) = one.refills._known
    shelf.clock.advance(0.1)
    stock.reset(one.refills.now())
    shelf.late.set()
    await reached(lambda: not one.refills._late)
    assert stock.hand == 0 and not one.refills.empty, "the next start settles what the store counts and nobody has"


@pytest.mark.parametrize(("mode", "most"), [("local", 5), ("open", 100)])
async def test_an_outage_that_outlasts_a_block_is_decided_as_the_limit_says(mode: Any, most: int) -> None:
    """A block of a rate is good for some seconds. What was in hand is gone then, and what was left in the store is not."""
    shelf = Shelf(FakeClock())
    rate = LimitSpec(name="rate", requests=RateSpec(rate=1, per=86400.0, burst=10), on_failure=mode)
    replica = Replica(shelf, [rate])
    assert await replica.many(5) == 5
    await reached(lambda: not replica.refills._running)
    shelf.down = True
    shelf.clock.advance(LIFE + 1)
    assert await replica.many(100) == most
    shelf.clock.advance(LIFE + 1)
    assert await replica.many(100) == (0 if mode == "local" else 100)


async def test_a_refusal_names_the_limit_that_refuses_and_not_a_budget_that_only_has_too_little_in_hand() -> None:
    limits = [LimitSpec(name="fast", requests=RateSpec(rate=2, per=10)), daily(1000)]
    replica = Replica(Shelf(FakeClock()), limits)
    for _ in range(2):
        await replica.ask(10)
    with pytest.raises(LimitExceeded, match="the limit 'fast' is reached") as caught:
        await replica.ask(900)  # the store has as much, but so much is in hand nowhere
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.retry_after is not None and caught.value.retry_after <= 10
    assert ("x-should-retry", "false") not in caught.value.headers


@pytest.mark.parametrize(
    ("unit", "amount", "tokens", "said"),
    [
        ("requests", 1, 0, "has 0 requests left; this needs 1 request."),
        ("tokens", 2, 1, "has 1 token left; this needs about 2 tokens."),
    ],
)
async def test_a_refusal_counts_in_plain_english(unit: str, amount: float, tokens: int, said: str) -> None:
    replica = Replica(Shelf(FakeClock()), [LimitSpec(name="day", budget=BudgetSpec(amount=amount, unit=unit, window="day"))])
    await replica.ask(tokens)
    with pytest.raises(QuotaExceeded) as caught:
        await replica.ask(2 * tokens)
    assert caught.value.message == f"The budget 'day' {said}"


def test_a_small_amount_of_money_is_not_written_as_nothing() -> None:
    (meter,) = meters_of(LimitSpec(name="day", budget=BudgetSpec(amount=1, unit="usd", window="day")))
    assert [meter.written(one) for one in (0, 250, 1_000, 1_234_567_890)] == ["0 usd", "0.00000025 usd", "0.000001 usd", "1.234568 usd"]
    assert meter.needed(500_000_000) == "about 0.5 usd"


async def test_of_two_limits_that_refuse_the_one_with_the_longer_wait_is_named() -> None:
    replica = Replica(Shelf(FakeClock()), [LimitSpec(name="fast", requests=RateSpec(rate=2, per=10)), daily(30)])
    for _ in range(2):
        await replica.ask(10)
    with pytest.raises(QuotaExceeded, match="has 10 tokens left; this needs about 20 tokens"):
        await replica.ask(20)  # by the store's last word, which is fresh
