"""Buckets in a real Redis as operators see and reset them, and what is told of budgets that are nearly spent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.secret import Secret
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec, RollingSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import Principal, Usage
from gateway.core.waiting import Signal, as_future
from gateway.limits.bucket import Shape
from gateway.limits.redis.alerts import BudgetAlerts
from gateway.limits.redis.book import MOST_LISTED, BucketBook
from gateway.limits.redis.limiter import RedisLimiter
from gateway.limits.redis.names import Names
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis import SharedProcess
from tests.morning import TIMEZONE
from tests.waiting import reached

RATE = LimitSpec(name="rate", requests=RateSpec(rate=1, per=60.0, burst=10), concurrent=8)
BUDGET = LimitSpec(name="budget", per="tenant", budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE))
ROLLING = LimitSpec(name="rolling", per="model", budget=BudgetSpec(amount=1000, window=RollingSpec(rolling=86_400.0)))
LIMITS = [RATE, BUDGET, ROLLING]
KEY = ("team", "api_key", "ci")
NAMES = Names("test")
Told = list[tuple[str, tuple[str, ...], int]]


@pytest.fixture
async def server(short_path: Path) -> AsyncIterator[RedisServer]:
    made = RedisServer(short_path)
    await asyncio.to_thread(made.start)
    yield made
    await asyncio.to_thread(made.stop)


@pytest.fixture
async def processes(server: RedisServer) -> AsyncIterator[list[SharedProcess]]:
    made = [SharedProcess(server.socket, "test").start() for _ in range(2)]
    for one in made:
        await reached(lambda one=one: one.shared.up)
    yield made
    for one in made:
        await one.aclose()


def book(server: RedisServer) -> BucketBook:
    return BucketBook(RedisSpec(url=Secret(f"unix://{server.socket}"), prefix="test"))


async def reserve(limiter: RedisLimiter, tokens: int = 0, who: Principal | None = None) -> Any:
    found = limiter.reserve(who or caller("ci"), request(tokens))
    return await as_future(found) if isinstance(found, Signal) else found


async def heard(processes: list[SharedProcess]) -> None:
    await reached(lambda: not any(one.shared.busy for one in processes))


async def test_what_processes_use_is_seen_and_made_full_again(server: RedisServer, processes: list[SharedProcess]) -> None:
    limiters = [one.limiter(LIMITS) for one in processes]
    held = [await reserve(limiter, 100) for limiter in limiters for _ in range(3)]
    rate, budget, rolling = (Shape(limit) for limit in LIMITS)
    asked = [(rate, KEY), (budget, ("team",)), (rolling, ("m",)), (rate, ("team", "api_key", "other"))]
    seen = await book(server).look(asked)
    assert [(one.amounts[0].used, one.in_use) for one in seen] == [(6, 6), (600, 0), (600, 0), (0, 0)]
    strange = Principal("b c/ü", "team", "api_key", ("*",))
    await reserve(limiters[0], who=strange)
    listed = await book(server).all_of(rate, 100)
    assert [scope for scope, _ in listed][1] == "team/api_key/ci" and listed[0][0].startswith("#") and len(listed) == 2
    assert len(await book(server).all_of(rate, 1)) == 1
    shapes = (budget, rate, rolling)
    walked = [[(scope, one.amounts[0].used) for scope, one in found] for found in await book(server).all_of_each(shapes, 100, 100)]
    assert walked[0] == [("team", 600)] and walked[2] == [("m", 600)]
    assert walked[1] == [(scope, one.amounts[0].used) for scope, one in listed], "all in one walk"
    assert [len(one) for one in await book(server).all_of_each(shapes, 1, 100)] == [1, 1, 1]
    assert await book(server).meant(rate, listed[0][0]) == await book(server).meant(rate, "team/api_key/b c/ü") != []

    for shape in (rate, budget, rolling):
        names = await book(server).names_of(shape)
        assert await book(server).reset(names) == len(names) == (2 if shape is rate else 1)
    seen = await book(server).look(asked)
    assert [(one.amounts[0].used, one.in_use) for one in seen] == [(0, 6), (0, 0), (0, 0), (0, 0)], "slots stay taken"
    more = await reserve(limiters[1], 300)
    for one in held:
        one.settle(None)
    await heard(processes)
    seen = await book(server).look(asked)
    assert [(one.amounts[0].used, one.in_use) for one in seen] == [(1, 1), (300, 0), (300, 0), (0, 0)], "nothing is given back twice"
    more.settle(Usage(10, 10))
    await heard(processes)
    assert [one.amounts[0].used for one in await book(server).look(asked)] == [1, 20, 20, 0]


async def test_a_bucket_that_is_used_up_is_open_again_for_all_processes(server: RedisServer, processes: list[SharedProcess]) -> None:
    limiters = [one.limiter([LimitSpec(name="r", requests=RateSpec(rate=1, per=60.0, burst=2))]) for one in processes]
    for _ in range(2):
        (await reserve(limiters[0])).settle(Usage(1, 1))
    for limiter in limiters:
        with pytest.raises(LimitExceeded):
            await reserve(limiter)
    shape = Shape(LimitSpec(name="r", requests=RateSpec(rate=1, per=60.0, burst=2)))
    assert await book(server).reset(await book(server).meant(shape, "team/api_key/ci")) == 1
    await asyncio.sleep(0.03)  # what a process remembers of a refusal
    for limiter in limiters:
        (await reserve(limiter)).settle(Usage(1, 1))
    assert await book(server).meant(shape, "team/api_key/nobody") == []
    (name,) = await book(server).names_of(shape)
    server.command("DEL", name.decode())
    server.command("LPUSH", name.decode(), "x")
    assert await book(server).reset([name]) == 1, "what is no bucket is removed"
    assert await book(server).names_of(shape) == []


@pytest.mark.parametrize("limit", [BUDGET, ROLLING], ids=["calendar", "rolling"])
async def test_a_share_of_a_budget_is_told_of_once(server: RedisServer, limit: LimitSpec) -> None:
    told: Told = []
    made: list[SharedProcess] = []
    for _ in range(2):
        place = len(made)
        alerts = BudgetAlerts(NAMES, lambda *what: told.append(what), lambda place=place: made[place].shared.line)
        made.append(SharedProcess(server.socket, "test", spent=alerts.crossed).start())
    try:
        for one in made:
            await reached(lambda one=one: one.shared.up)
        limiters = [one.limiter([limit]) for one in made]
        for used, shares in ((400, []), (500, [50]), (700, [50]), (900, [50, 80]), (1000, [50, 80, 100])):
            before = sum(one.amounts[0].used for one in await book(server).look([(Shape(limit), scope(limit))]))
            held = await reserve(limiters[used // 100 % 2], used - before)
            held.settle(Usage(used - before, 0))
            for limiter in limiters:  # each process hears of it
                try:
                    (await reserve(limiter, 1)).settle(None)
                except LimitExceeded:
                    pass
            await heard(made)
            for one in made:
                line = one.shared.line
                assert line is not None
                await line.must("PING")  # the answers that came before have been heard
            assert [share for _, _, share in told] == shares
        assert {(name, key) for name, key, _ in told} == {(limit.name, scope(limit))}
        assert await book(server).reset(await book(server).names_of(Shape(limit))) == 1
        await asyncio.sleep(0.03)
        (await reserve(limiters[0], 600)).settle(Usage(600, 0))
        await reached(lambda: len(told) == 4, what="an alert after the reset")
        assert told[-1][2] == 50
        ttl = server.command("PTTL", NAMES.told((await book(server).names_of(Shape(limit)))[0]).decode())
        assert int(ttl[1:]) > 0, "it ends with the window"
        key = NAMES.told((await book(server).names_of(Shape(limit)))[0]).decode()
        assert server.command("DEL", key) == b":1" and server.command("LPUSH", key, "what is not ours") == b":1"
        (await reserve(limiters[0], 900 - 600)).settle(Usage(300, 0))
        await reached(lambda: len(told) == 5, what="an alert although something else lay there")
        assert told[-1][2] == 80
    finally:
        for one in made:
            await one.aclose()


def scope(limit: LimitSpec) -> tuple[str, ...]:
    return ("team",) if limit is BUDGET else ("m",)


async def test_a_redis_that_is_away_says_so(short_path: Path) -> None:
    missing = BucketBook(RedisSpec(url=Secret(f"unix://{short_path}/none")))
    shape = Shape(RATE)
    for ask in (missing.look([(shape, KEY)]), missing.all_of(shape, 1), missing.meant(shape, "a"), missing.names_of(shape)):
        with pytest.raises(Overloaded, match="Redis") as caught:
            await ask
        assert (caught.value.status, caught.value.code) == (503, "limits_unavailable")
    assert await missing.look([]) == []


async def test_one_replica_of_all_that_share_a_redis_tells(server: RedisServer) -> None:
    one = book(server)
    assert await one.claim(["x", "y"], "a", 60.0) == {"x", "y"} == await one.claim(["x", "y"], "a", 60.0)
    assert await one.claim(["x", "y", "z"], "b", 60.0) == {"z"} and await one.claim([], "b", 60.0) == set()
    await one.keep({"x": 3600.0}, "a")
    await one.keep({}, "a")
    assert server.command("PTTL", "test:{limits}:alert:x") > b":3000000"
    assert await one.claim(["later"], "killed", 0.001) == {"later"}
    await reached(lambda: server.command("EXISTS", "test:{limits}:alert:later") == b":0")
    assert await one.claim(["later"], "b", 60.0) == {"later"}, "what a killed replica has claimed is told by another one"


@pytest.mark.parametrize("limit", [BUDGET, ROLLING])
async def test_what_was_reserved_before_a_reset_costs_nothing_after_it(
    server: RedisServer, processes: list[SharedProcess], limit: LimitSpec
) -> None:
    limiter, shape = processes[0].limiter([limit]), Shape(limit)
    key = ("team",) if limit is BUDGET else ("m",)
    before = [await reserve(limiter, 100) for _ in range(2)]
    assert await book(server).reset(await book(server).names_of(shape)) == 1
    (seen,) = await book(server).look([(shape, key)])
    assert abs(seen.since[0] - seen.written) < 1_000_000, "the audit log is held against what came later"
    after = await reserve(limiter, 100)
    before[0].settle(Usage(500, 0))
    before[1].settle(None)
    after.settle(Usage(130, 0))
    await heard(processes)
    assert (await book(server).look([(shape, key)]))[0].amounts[0].used == 130


async def test_buckets_are_read_page_by_page(server: RedisServer, processes: list[SharedProcess]) -> None:
    limiter = processes[0].limiter([BUDGET])
    names = [f"t{number}" for number in range(7)]
    for name in names:
        await reserve(limiter, 10, Principal("ci", name, "api_key", ("*",)))
    found: list[str] = []
    after = None
    for size in (3, 3, 1):
        buckets, after, more = await book(server).page(Shape(BUDGET), 3, after)
        assert len(buckets) == size and more == (size != 1)
        found += [scope for scope, _ in buckets]
    assert found == names
    assert await book(server).page(Shape(BUDGET), 0, None) == ([], None, True), "a page that is full already says that there is more"
    assert await book(server).page(Shape(BUDGET), 0, "t6") == ([], "t6", False)


async def test_the_one_bucket_of_a_limit_for_all_is_on_a_page(server: RedisServer, processes: list[SharedProcess]) -> None:
    limit = LimitSpec(name="week", per="global", budget=BudgetSpec(amount=1000, window="week"))
    await reserve(processes[0].limiter([limit]), 10)
    buckets, last, more = await book(server).page(Shape(limit), 3, None)
    assert [bucket.amounts[0].used for _, bucket in buckets] == [10] and (last, more) == ("", False)
    assert await book(server).page(Shape(limit), 3, last) == ([], "", False)


async def test_pages_are_of_the_buckets_that_there_were_at_the_first_one(server: RedisServer, processes: list[SharedProcess]) -> None:
    """The keys of the database are walked over once for all pages."""
    limiter, shape = processes[0].limiter([RATE]), Shape(RATE)
    for number in (1, 3, 5, 7):
        await reserve(limiter, who=caller(f"k{number}"))
    asked = book(server)
    first, last, more = await asked.page(shape, 2, None)
    assert [scope for scope, _ in first] == ["team/api_key/k1", "team/api_key/k3"] and more
    await reserve(limiter, who=caller("k6"))
    server.command("DEL", NAMES.bucket(shape, ("team", "api_key", "k5")).decode())
    rest, _, more = await asked.page(shape, 2, last)
    assert [scope for scope, _ in rest] == ["team/api_key/k7"] and not more, "one is gone, and one is new since"
    anew, last, more = await asked.page(shape, 10, None)
    assert [scope[-2:] for scope, _ in anew] == ["k1", "k3", "k6", "k7"] and not more
    assert await asked.page(shape, 10, last) == ([], last, False)
    elsewhere, _, _ = await book(server).page(shape, 10, "team/api_key/k3")
    assert [scope[-2:] for scope, _ in elsewhere] == ["k6", "k7"], "another gateway goes on with the same cursor"


async def test_few_limits_are_remembered_for_pages(server: RedisServer, processes: list[SharedProcess]) -> None:
    limits = [LimitSpec(name=f"l{number}", requests=RateSpec(rate=1, per=60.0, burst=10)) for number in range(6)]
    await reserve(processes[0].limiter(limits))
    asked = book(server)
    for limit in (*limits, limits[0]):
        found, _, more = await asked.page(Shape(limit), 10, None)
        assert len(found) == 1 and not more
    assert len(asked._listed) == MOST_LISTED
