"""A Redis that answers late, wrongly, with errors or not at all: every request is decided, and nothing is counted for another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.ports import Reservation
from gateway.core.secret import Secret
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import Usage
from gateway.core.waiting import Signal, as_future
from gateway.limits.bucket import Shape
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.limiter import RedisLimiter
from gateway.limits.redis.script import LUA
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis import SharedProcess, TimedLimiter
from tests.fakes.redis_proxy import RedisProxy, same
from tests.waiting import reached

LIMIT = LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=10), on_failure="closed")
OPEN = LimitSpec(name="o", requests=RateSpec(rate=1, per=60.0, burst=1000), on_failure="open")
SHAPE, KEY = Shape(LIMIT), ("team", "api_key", "ci")


class World:
    def __init__(self, server: RedisServer, proxy: RedisProxy) -> None:
        self.server, self.proxy = server, proxy
        self.process = SharedProcess("", "test", url=f"unix://{proxy.path}")
        self.limiter = self.process.limiter([LIMIT])

    @property
    def up(self) -> bool:
        return self.process.shared.up

    def ask(self, name: str = "ci", limiter: RedisLimiter | None = None) -> asyncio.Future[Reservation]:
        found = (limiter or self.limiter).reserve(caller(name), request())
        assert isinstance(found, Signal)
        return as_future(found)

    async def used(self) -> int:
        """Requests that Redis has counted, asked without the proxy."""
        await reached(lambda: self.up and not self.process.shared.busy)
        (seen,) = await BucketBook(RedisSpec(url=Secret(f"unix://{self.server.socket}"), prefix="test")).look([(SHAPE, KEY)])
        return seen.amounts[0].used


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[World]:
    server = RedisServer(short_path)
    await asyncio.to_thread(server.start)
    made = World(server, await RedisProxy(server.socket, short_path / "proxy").start())
    made.process.start()
    await reached(lambda: made.up)
    yield made
    await made.process.aclose()
    await made.proxy.aclose()
    await asyncio.to_thread(server.stop)


def never() -> None:
    raise AssertionError("nobody waits for this any more")


def scripts(words: list[bytes]) -> bool:
    return words[0] in (b"EVALSHA", b"EVAL")


async def test_slow_answers_hold_nobody_else_up(world: World) -> None:
    """Calls are pipelined: what comes in a later turn does not wait for the answers to what came before."""
    world.proxy.open.clear()
    asked = []
    before = world.process.shared.called
    for turn in range(5):
        asked += [world.ask() for _ in range(3)]
        await reached(lambda turn=turn: world.process.shared.called == before + turn + 1, what="the call of this turn")
    assert not any(one.done() for one in asked)
    world.proxy.open.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, LimitExceeded) for one in found] == [False] * 10 + [True] * 5, "in the order in which they came"
    assert world.process.heard.said == ["back"]


async def test_an_answer_belongs_to_its_request_after_another_was_given_up(world: World) -> None:
    other = world.process.limiter([LIMIT, LimitSpec(name="slots", concurrent=1)])
    world.proxy.open.clear()
    called = world.process.shared.called
    gone = [world.limiter.reserve(caller("ci"), request()) for _ in range(3)]
    for one in gone:
        assert isinstance(one, Signal)
        one.add_callback(never)
    await reached(lambda: world.process.shared.called > called)
    kept = world.ask("other", other)
    for one in gone:
        assert isinstance(one, Signal)
        one.remove_callback(never)  # as when its client leaves
    world.proxy.open.set()
    held: Any = await kept
    assert [part.pot.key[-1] for part in held.parts] == ["other", "other"], "its own buckets"
    assert await world.used() == 0, "what was given up is given back"
    with pytest.raises(LimitExceeded):
        await world.ask("other", other)
    held.settle(None)


ERRORS = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "CLUSTERDOWN The cluster is down",
    "ASK 3999 127.0.0.1:1",
    "MOVED 3999 nowhere",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "NOAUTH Authentication required.",
    "NOSCRIPT No matching script. Please use EVAL.",
    "ERR unknown command 'EVALSHA'",
    "",
]


@pytest.mark.parametrize("error", ERRORS, ids=[error.partition(" ")[0] or "empty" for error in ERRORS])
async def test_an_error_is_an_outage_that_ends(world: World, error: str) -> None:
    assert (await world.ask()) is not None
    world.proxy.twist = lambda words, answer: f"-{error}\r\n".encode() if scripts(words) else answer
    with pytest.raises(Overloaded) as caught:
        await world.ask()
    assert (caught.value.status, caught.value.code) == (503, "limits_unavailable")
    assert not world.up
    with pytest.raises(Overloaded):
        world.limiter.reserve(caller("ci"), request())  # without a wait
    assert not isinstance(world.process.limiter([OPEN]).reserve(caller("ci"), request()), Signal)
    assert world.process.heard.said[0] == "back" and world.process.heard.said[1].startswith(error.split(" ")[0])
    world.proxy.twist = same
    await reached(lambda: world.up, what=f"the end of {error!r}")
    assert await world.ask() is not None


async def test_what_a_cluster_cannot_do_while_keys_move_is_asked_again(world: World) -> None:
    left = 3

    def moving(words: Any, answer: Any) -> Any:
        nonlocal left
        if not scripts(words) or not left:
            return answer
        left -= 1
        return b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"

    called = world.process.shared.called
    world.proxy.twist = moving
    held: Any = await world.ask()
    assert held is not None and not left and world.up and world.process.shared.called >= called + 4
    world.process.shared._patience, left = 30_000, 1 << 30
    with pytest.raises(Overloaded):
        await world.ask()
    assert not world.up, "when its time is over, its limits say what happens"
    world.proxy.twist, world.process.shared._patience = same, 30_000_000
    await reached(lambda: world.up)
    held.settle(None)


def packed(*numbers: int) -> bytes:
    """An answer to a call of one request of one bucket."""
    value = msgspec.msgpack.encode(numbers)
    return b"$%d\r\n%b\r\n" % (len(value), value)


WRONG = {
    "garbage": b"\x00\xff\x80 what\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half": b"$100\r\nabc",
    "another type": b"*2\r\n:1\r\n:2\r\n",
    "no string": b"$-1\r\n",
    "huge": b"$16777217\r\n",
    "many parts": b"*2000000\r\n",
    "deep": b"*1\r\n" * 40,
    "megabytes": b"$4000000\r\n" + b"\x00" * 4_000_000 + b"\r\n",
    "no msgpack": b"$3\r\n\xc1\xc1\xc1\r\n",
    "a text": b"$5\r\n\xa4text\r\n",
    "too short": b"$2\r\n\x91\x01\r\n",
    "a time that never comes": packed(1 << 60, 1, 0, 0, 0),
    "no time": packed(0, 1, 0, 0, 0),
    "a debt below nothing": packed(1_900_000_000_000_000, 1, 0, 0, -1),
    "an endless wait": packed(1_900_000_000_000_000, 0, 4, 1 << 63, 0),
    "too many answers": b":1\r\n:2\r\n:3\r\n",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
async def test_what_cannot_be_read_is_an_outage_that_ends(world: World, wrong: bytes) -> None:
    world.process.shared._patience = 200_000
    world.proxy.twist = lambda words, answer: wrong if scripts(words) else answer
    with pytest.raises(Overloaded):
        await world.ask()
    with pytest.raises(Overloaded):
        world.limiter.reserve(caller("ci"), request())
    world.proxy.twist, world.process.shared._patience = same, 30_000_000
    if world.process.shared._sent:
        # The rest of what has begun never comes. The process gives the connection up in the end; the test does not wait for that.
        line = world.process.shared._line
        assert line is not None
        line.close()
    await reached(lambda: world.up)
    assert await world.ask() is not None


@pytest.mark.parametrize("answers", ["none", "log-in only"])
async def test_a_server_that_accepts_and_never_answers_costs_one_wait(short_path: Path, answers: str) -> None:
    said = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal said
        writers.append(writer)
        while data := await reader.read(65536):
            if answers != "none" and b"SETNAME" in data:
                said += 1
                writer.write(b"+OK\r\n")

    server = await asyncio.start_unix_server(serve, short_path / "silent")
    process = SharedProcess("", "test", url=f"unix://{short_path}/silent", patience=0.05).start()
    try:
        if answers != "none":
            await reached(lambda: said > 0)
        limiter = process.limiter([LIMIT])
        for _ in range(100):
            with pytest.raises(Overloaded):
                limiter.reserve(caller("ci"), request())  # nobody waits
        assert not process.shared.up
    finally:
        await process.aclose()
        for writer in writers:
            writer.close()
        server.close()


async def test_settlements_that_redis_had_forgotten_the_script_of_are_done_in_any_order(world: World) -> None:
    """Another process brings the script back between two calls that are under way: the later one is done first."""
    slots = LimitSpec(name="slots", concurrent=8)
    limiter = world.process.limiter([slots])
    held = [await world.ask(limiter=limiter) for _ in range(8)]
    await reached(lambda: not world.process.shared.busy)
    assert world.server.command("SCRIPT", "FLUSH") == b"+OK"
    world.proxy.open.clear()
    before = len(world.proxy.asked)

    async def settle() -> None:
        called = world.process.shared.called
        for _ in range(4):
            held.pop().settle(None)
        await reached(lambda: world.process.shared.called > called)

    await settle()
    await reached(lambda: len(world.proxy.asked) > before)
    assert scripts(world.proxy.asked[before])
    await settle()
    assert len(world.proxy.asked) == before + 1, "the proxy waits with it for the answer to the first"
    assert world.server.command("SCRIPT", "LOAD", LUA.decode()).startswith(b"$40")
    world.proxy.open.set()
    await reached(lambda: not world.process.shared.busy)
    assert len(await asyncio.gather(*(world.ask(limiter=limiter) for _ in range(8)))) == 8, "all slots are free again"


async def test_what_was_lost_with_its_connection_is_settled_once(world: World) -> None:
    held = [await world.ask() for _ in range(5)]
    world.proxy.twist = lambda words, answer: None if scripts(words) else answer  # done, and nobody hears of it
    for one in held:
        one.settle(None)
    await reached(lambda: bool(world.process.shared._sent))
    line = world.process.shared._line
    assert line is not None
    line.close()
    world.proxy.twist = same
    assert await world.used() == 0
    found = await asyncio.gather(*(world.ask() for _ in range(15)), return_exceptions=True)
    assert [isinstance(one, LimitExceeded) for one in found].count(False) == 10


class Stepped(TimedLimiter):
    """The clock of Redis is off by `offset` seconds."""

    offset = 0.0

    def tell_time(self) -> None:
        assert self.process.clock is not None
        moment = round((self.process.clock.monotonic() + Stepped.offset) * 1_000_000)
        assert self._server.command("SET", "{limits}now", str(moment)) == b"+OK"


async def test_a_clock_that_steps_back_an_hour_makes_nobody_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monotonic=1_800_000_000.0)
    made = [SharedProcess(world.server.socket, "test", clock=clock).start() for _ in range(3)]
    try:
        one, two, three = [Stepped(world.server, process, [LIMIT, LimitSpec(name="s", concurrent=1)]) for process in made]
        for _ in range(9):
            (await one.reserve(caller("ci"), request())).settle(Usage(1, 1))
            await reached(lambda: not made[0].shared.busy)
        assert await two.reserve(caller("ci"), request())
        await made[1].aclose()  # without a word, with the only slot
        monkeypatch.setattr(Stepped, "offset", -3600.0)
        with pytest.raises(LimitExceeded):
            await three.reserve(caller("ci"), request())
        clock.advance(50.0)
        with pytest.raises(LimitExceeded) as caught:
            await three.reserve(caller("ci"), request())
        assert caught.value.code == "rate_limit_exceeded", "the slot is free; the hour that is repeated refills nothing"
        clock.advance(10.0)
        assert await three.reserve(caller("ci"), request()), "a minute later there is one more"
        with pytest.raises(LimitExceeded):
            await three.reserve(caller("ci"), request())
    finally:
        for process in made:
            await process.aclose()
