"""What each process took of budgets in a real Redis: kept beside the bucket, and settled when the process has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.limits.budget_ledger import BudgetLedger
from gateway.app.limits.times import LimitTimes
from gateway.core.secret import Secret
from gateway.core.specs import BudgetSpec, ConfigSpec, LimitSpec, RollingSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import Usage
from gateway.core.waiting import Signal, as_future
from gateway.limits.bucket import Shape
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.limiter import RedisLimiter
from gateway.limits.redis.names import Names, holder_of, took_of
from gateway.limits.redis.took import Item
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis import SharedProcess
from tests.fakes.redis_network import Member, Server
from tests.morning import TIMEZONE
from tests.waiting import reached

BUDGET = LimitSpec(name="budget", per="tenant", budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE))
ROLLING = LimitSpec(name="rolling", per="tenant", budget=BudgetSpec(amount=1000, window=RollingSpec(rolling=86_400.0)))
BOTH = pytest.mark.parametrize("limit", [BUDGET, ROLLING], ids=["calendar", "rolling"])
KEY = ("team",)
NAMES = Names("test")


@pytest.fixture
async def server(short_path: Path) -> AsyncIterator[RedisServer]:
    made = RedisServer(short_path)
    await asyncio.to_thread(made.start)
    yield made
    await asyncio.to_thread(made.stop)


class Side:
    """A process of a replica, and its limiter."""

    def __init__(self, server: RedisServer, limit: LimitSpec, replica: str) -> None:
        self.replica = replica
        self.process = SharedProcess(server.socket, "test", replica=replica).start()
        self.limiter: RedisLimiter = self.process.limiter([limit])

    @property
    def who(self) -> str:
        return self.process.shared.who

    async def reserve(self, tokens: int) -> Any:
        await reached(lambda: self.process.shared.up)
        found = self.limiter.reserve(caller("ci"), request(tokens))
        return await as_future(found) if isinstance(found, Signal) else found

    async def spend(self, reserved: int, used: int) -> None:
        (await self.reserve(reserved)).settle(Usage(used, 0))
        await self.heard()

    async def heard(self) -> None:
        await reached(lambda: not self.process.shared.busy)


class World:
    def __init__(self, server: RedisServer, limit: LimitSpec) -> None:
        self.server, self.limit, self.shape = server, limit, Shape(limit)
        self.book = BucketBook(RedisSpec(url=Secret(f"unix://{server.socket}"), prefix="test"))
        self.bucket = NAMES.bucket(self.shape, KEY)
        self.sides: list[Side] = []

    def side(self, replica: str) -> Side:
        self.sides.append(Side(self.server, self.limit, replica))
        return self.sides[-1]

    async def used(self) -> int:
        return (await self.book.look([(self.shape, KEY)]))[0].amounts[0].used

    async def took(self, replica: str) -> dict[str, int]:
        found = await self.book.took(self.shape, self.shape.meters[0], replica, await self.book.now())
        return {who: one.units for who, one in found.get(self.bucket, {}).items()}

    async def settle(
        self, side: Side, used: int, *, least: int | None = None, most: int | None = None, dead: bool = True, expected: int | None = None
    ) -> tuple[bool, int]:
        now = await self.book.now()
        (seen,) = await self.book.look([(self.shape, KEY)])
        slice = 0 if self.limit is BUDGET else now // (86_400_000_000 // 60)
        item = Item(self.bucket, seen.since[0], {slice: used}, used if least is None else least, used if most is None else most, expected)
        (found,) = await self.book.settle(self.shape, 0, side.replica, side.who, [item], now, dead=dead)
        return found


@pytest.fixture
async def made(server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    world = World(server, request.getfixturevalue("limit"))
    yield world
    for side in world.sides:
        await side.process.aclose()


@BOTH
async def test_what_processes_took_is_the_bucket(made: World, limit: LimitSpec) -> None:
    one, two, other = made.side("a"), made.side("a"), made.side("b")
    await one.spend(100, 30)
    await two.spend(50, 80)
    held = await other.reserve(200)
    assert await made.took("a") == {one.who: 30, two.who: 80} and await made.took("b") == {other.who: 200}
    assert await made.used() == 310
    held.settle(None)
    await other.heard()
    assert await made.took("b") == {} and await made.used() == 110


@BOTH
async def test_what_a_dead_process_had_reserved_comes_back_and_nothing_else(made: World, limit: LimitSpec) -> None:
    dead, other = made.side("a"), made.side("b")
    await dead.spend(100, 40)
    held = [await dead.reserve(100) for _ in range(3)]
    await other.spend(70, 70)
    assert await made.used() == 410
    late = Side(made.server, limit, "a")  # a call of the dead one that Redis carries out after its end
    made.sides.append(late)
    await reached(lambda: late.process.shared.up)
    for side in (dead, late):
        side.process.shared._pause = 3600.0  # neither comes back under another name, and says what Redis has not heard
    late.process.shared.who, late.process.shared._process = dead.who, dead.process.shared._process
    assert await made.settle(dead, 40 + 60) == (True, 240)
    assert await made.used() == 170 and await made.took("a") == {"": 100}
    assert await made.settle(dead, 40 + 60) == (True, 0), "once"
    for one in held:
        one.settle(Usage(5, 5))
    await reached(lambda: "STALE another connection of this process was heard" in dead.process.heard.said)
    assert await made.used() == 170, "what it says after its end is not heard"
    await late.reserve(10)
    assert await made.used() == 170 and late.process.heard.said[1].startswith("STALE")


@BOTH
async def test_what_a_dead_process_had_not_told_is_charged(made: World, limit: LimitSpec) -> None:
    dead, next_ = made.side("a"), made.side("a")
    await dead.spend(100, 40)
    assert await made.settle(dead, 90, least=60) == (True, -20), "as much as is certain"
    assert await made.used() == 60
    await next_.spend(10, 10)
    assert await made.took("a") == {"": 60, next_.who: 10}
    assert await made.settle(next_, 5, most=30) == (True, 0), "what is in doubt stays charged"
    assert await made.took("a") == {"": 70} and await made.used() == 70


@BOTH
async def test_of_one_that_lives_only_what_has_not_changed_comes_back(made: World, limit: LimitSpec) -> None:
    side = made.side("a")
    await side.spend(100, 40)
    lost = await side.reserve(100)
    assert await made.settle(side, 40, dead=False, expected=139) == (False, 0)
    assert await made.settle(side, 40, dead=False, expected=140) == (True, 100)
    assert await made.took("a") == {side.who: 40} and await made.used() == 40
    assert await made.settle(side, 500, dead=False, expected=40) == (True, 0), "nothing is charged to it"
    await side.spend(10, 10)
    assert await made.took("a") == {side.who: 50}
    del lost


@BOTH
async def test_what_was_taken_before_a_reset_is_forgotten(made: World, limit: LimitSpec) -> None:
    dead, other = made.side("a"), made.side("b")
    await dead.spend(100, 40)
    await dead.reserve(100)
    (before,) = await made.book.look([(made.shape, KEY)])
    assert await made.book.reset([made.bucket]) == 1
    assert await made.settle(dead, 0) == (True, 0) and await made.used() == 0
    await other.spend(70, 70)
    item = Item(made.bucket, before.since[0], {}, 0, 0)
    found = await made.book.settle(made.shape, 0, "b", other.who, [item], await made.book.now(), dead=True)
    assert found == [(False, 0)], "it counts since another time than was read"
    assert await made.used() == 70


@BOTH
async def test_a_bucket_that_was_made_full_again_says_so_even_when_nothing_is_used(made: World, limit: LimitSpec) -> None:
    side = made.side("a")
    await side.spend(100, 40)
    assert await made.book.reset([made.bucket]) == 1
    await side.spend(100, 0)
    (seen,) = await made.book.look([(made.shape, KEY)])
    assert seen.amounts[0].used == 0 and abs(seen.since[0] - seen.written) < 60_000_000


@BOTH
async def test_an_entry_that_is_not_ours_any_more_starts_anew(made: World, limit: LimitSpec) -> None:
    side = made.side("a")
    await side.spend(100, 40)
    key = took_of(made.bucket, holder_of("a", side.who)).decode()
    for vandal in (("SET", key, "rubbish"), ("DEL", key), ("LPUSH", key, "x")):
        made.server.command("DEL", key)
        made.server.command(*vandal)
        before = await made.used()
        await side.spend(10, 10)
        assert await made.took("a") == {side.who: 10} and await made.used() == before + 10
    made.server.command("LPUSH", took_of(made.bucket, holder_of("a")).decode(), "x")
    assert (await made.settle(side, 10))[0]
    assert await made.took("a") == {"": 10} and side.process.heard.said == ["back"]


async def test_what_comes_back_to_a_rolling_window_comes_back_where_it_was_taken(server: RedisServer) -> None:
    """Otherwise what others used later would end its time too early."""
    world = Server(server.socket)
    try:
        limit = LimitSpec(name="r", per="tenant", budget=BudgetSpec(amount=100, window=RollingSpec(rolling=600.0)))
        one, two = (Member(world, [limit], seed).up() for seed in range(2))

        def later(seconds: float) -> None:
            world.now += int(seconds * 1_000_000)
            for member in (one, two):
                member.pass_time(seconds)

        long = one.asked(caller("ci"), request(60))
        later(300)
        short = two.asked(caller("ci"), request(40))
        short.settle(Usage(40, 0))
        long.settle(Usage(10, 0))
        one.wire.settle()
        two.wire.settle()
        later(320)  # what was taken first has left the window
        one.wire.settle()
        two.wire.settle()
        refused = two.asked(caller("ci"), request(61))
        assert not hasattr(refused, "settle"), "40 are used still"
        later(0.1)
        assert hasattr(two.asked(caller("ci"), request(60)), "settle")
    finally:
        world.close()


async def test_what_was_taken_while_the_clock_of_redis_was_ahead_is_not_given_back(server: RedisServer, tmp_path: Path) -> None:
    """Redis goes on with the window that it had begun; the log has nothing of that window yet, so it cannot say what was used of it."""
    world = World(server, BUDGET)
    side = world.side("r1")
    await side.spend(50, 50)
    ledger = BudgetLedger(
        None,  # type: ignore[arg-type]  # what Redis counts is not in the store
        side.replica,
        lambda: 1,
        tmp_path,
        lambda: ConfigSpec(version=1, limits=(BUDGET,)),
        lambda: SimpleNamespace(all=list),  # type: ignore[arg-type,return-value]
        LimitTimes(tmp_path),
        world.book,
    )
    assert (await ledger.compare())["not_compared"] == []
    later = (
        "local s = cmsgpack.unpack(redis.call('GET', KEYS[1])); s[5] = s[5] + 3e12; redis.call('SET', KEYS[1], cmsgpack.pack(s), 'KEEPTTL')"
    )
    server.command("EVAL", later, "1", world.bucket.decode())
    server.command("EVAL", later.replace("s[5]", "s[1]"), "1", took_of(world.bucket, holder_of("r1", side.who)).decode())
    found = await ledger.compare()
    assert found["budgets"] == [] and [one["limit"] for one in found["not_compared"]] == ["budget"] and await ledger.settle()
    assert await world.used() == 50
    for one in world.sides:
        await one.process.aclose()
