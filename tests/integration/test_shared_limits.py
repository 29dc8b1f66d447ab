"""Limits in a real Redis over several processes' sides: exact while it answers, and as each limit says while it does not."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import LimitExceeded, Overloaded, QuotaExceeded
from gateway.core.ports import Reservation
from gateway.core.specs import BudgetSpec, LimitSpec, LoopSpec, RateSpec, RollingSpec
from gateway.core.types import Principal, Usage
from gateway.core.waiting import Signal, as_future
from gateway.limits.redis.calls import HOLD
from gateway.limits.redis.limiter import RedisLimiter
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis import SharedProcess, TimedLimiter
from tests.morning import TIMEZONE
from tests.waiting import reached

PER_MINUTE = LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=10))
SLOTS = LimitSpec(name="s", concurrent=4)


class World:
    """A Redis, and the sides of several processes that share it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.processes: list[SharedProcess] = []

    async def process(self, *, parts: int = 2, up: bool = True, **more: Any) -> SharedProcess:
        """One that waits for as long as it takes a Redis that is there."""
        made = SharedProcess(self.server.socket, "test", parts=parts, **more).start()
        self.processes.append(made)
        if up:
            await reached(lambda: made.shared.up)
        return made

    def freeze(self) -> None:
        """Redis stands still, and nobody waits long for it."""
        self.server.freeze()
        for process in self.processes:
            process.shared._patience = 50_000

    def thaw(self) -> None:
        for process in self.processes:
            process.shared._patience = 30_000_000
        self.server.thaw()

    def command(self, *words: str) -> bytes:
        return self.server.command(*words)

    def buckets(self) -> list[bytes]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.server.socket)
            connection.sendall(b"KEYS test:*bucket*\r\n")
            return [line for line in connection.recv(65536).split(b"\r\n") if line.startswith(b"test:")]


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[World]:
    server = RedisServer(short_path)
    await asyncio.to_thread(server.start)
    made = World(server)
    yield made
    for process in made.processes:
        await process.aclose()
    await asyncio.to_thread(server.stop)


CI = caller("ci")


async def reserve(limiter: RedisLimiter | TimedLimiter, tokens: int = 0) -> Reservation:
    found = limiter.reserve(CI, request(tokens))
    if isinstance(found, asyncio.Task):
        return await found
    return await as_future(found) if isinstance(found, Signal) else found  # type: ignore[return-value]


async def admitted(limiters: Sequence[RedisLimiter | TimedLimiter], each: int, tokens: int = 0) -> list[Reservation]:
    """What so many requests at once in each process get."""
    found = await asyncio.gather(*(reserve(one, tokens=tokens) for one in limiters for _ in range(each)), return_exceptions=True)
    errors = [one for one in found if isinstance(one, BaseException)]
    assert all(isinstance(one, LimitExceeded) for one in errors), errors
    return [one for one in found if not isinstance(one, BaseException)]


async def test_processes_share_one_bucket_exactly(world: World) -> None:
    limiters = [(await world.process()).limiter([PER_MINUTE]) for _ in range(4)]
    assert len(await admitted(limiters, 20)) == 10
    assert len(await admitted(limiters, 5)) == 0


async def test_all_or_none_over_several_buckets(world: World) -> None:
    narrow = LimitSpec(name="narrow", per="model", requests=RateSpec(rate=1, per=60.0, burst=3))
    limiters = [(await world.process()).limiter([PER_MINUTE, narrow]) for _ in range(2)]
    assert len(await admitted(limiters, 10)) == 3
    wide = [process.limiter([PER_MINUTE]) for process in world.processes]
    await asyncio.sleep(0.03)  # what a process remembers of a refusal
    assert len(await admitted(wide, 10)) == 7


async def test_tokens_are_charged_and_come_back_over_processes(world: World) -> None:
    limit = LimitSpec(name="t", tokens=RateSpec(rate=1, per=60.0, burst=1000))
    one, two = [(await world.process()).limiter([limit]) for _ in range(2)]
    held = await reserve(one, tokens=900)
    with pytest.raises(LimitExceeded) as caught:
        await reserve(two, tokens=200)
    assert caught.value.code == "tokens_exceeded" and "x-ratelimit-remaining-tokens: 100" not in caught.value.headers
    held.settle(Usage(100, 0))
    held.settle(Usage(100, 0))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            last = await reserve(two, tokens=900)
            break
        except LimitExceeded:
            await asyncio.sleep(0.005)
    last.settle(Usage(1000, 500))
    await reached(lambda: not world.processes[1].shared.busy)
    with pytest.raises(LimitExceeded) as late:
        await reserve(one, tokens=1)
    assert late.value.retry_after is not None and late.value.retry_after > 590 * 60, "600 tokens in debt, at one a minute"


async def test_slots_come_back_and_those_of_a_dead_process_expire(world: World) -> None:
    clock = FakeClock(monotonic=1_800_000_000.0)  # of Redis, too
    made = [await world.process(clock=clock, up=False, renew=0.02) for _ in range(2)]
    one, two = [TimedLimiter(world.server, process, [SLOTS]) for process in made]
    held = await admitted([one], 10)
    assert len(held) == 4
    for _ in range(3):  # longer than a slot lasts that nobody renews
        clock.advance(0.6 * HOLD / 1_000_000)
        one.tell_time()
        before = made[0].shared.called
        await reached(lambda before=before: made[0].shared.called >= before + 2, what="the renewal")  # the first may be of before
    assert not await admitted([two], 3)
    held.pop().settle(Usage(1, 1))
    await reached(lambda: not world.processes[0].shared.busy)
    await asyncio.sleep(0.01)
    clock.advance(0.03)  # what a process remembers of a refusal
    assert len(await admitted([two], 3)) == 1
    await made[0].aclose()  # without a word
    clock.advance(0.9 * HOLD / 1_000_000)
    assert not await admitted([two], 3)
    two.tell_time()
    clock.advance(0.2 * HOLD / 1_000_000)
    assert len(await admitted([two], 3)) == 3


async def test_slots_survive_what_redis_forgets(world: World) -> None:
    one, two = [(await world.process(renew=0.05)).limiter([SLOTS]) for _ in range(2)]
    held = await admitted([one], 3)
    assert world.command("FLUSHALL") == b"+OK"
    await reached(lambda: bool(world.buckets()), what="the renewal")
    assert len(await admitted([two], 5)) == 1
    for reservation in held:
        reservation.settle(None)
    await reached(lambda: not world.processes[0].shared.busy)
    await asyncio.sleep(0.01)
    assert len(await admitted([two], 5)) == 3


async def test_slots_that_redis_forgot_come_back_beside_new_ones(world: World) -> None:
    """The process has taken others since, so Redis knows of it, and of some of its slots."""
    process, other = [await world.process(renew=3600.0) for _ in range(2)]
    one, two = process.limiter([SLOTS]), other.limiter([SLOTS])
    held = await admitted([one], 3)
    assert world.command("FLUSHALL") == b"+OK"
    held += await admitted([one], 1)
    process.shared._renew()
    await reached(lambda: not process.shared.busy)
    assert not await admitted([one, two], 5), "four of four are taken"
    for _ in range(2):
        held.pop(0).settle(None)
    process.shared._renew()
    await reached(lambda: not process.shared.busy)
    await asyncio.sleep(0.01)  # what a process remembers of a refusal
    assert len(await admitted([two], 5)) == 2


async def test_a_script_that_redis_forgot_is_sent_again(world: World) -> None:
    limiter = (await world.process()).limiter([PER_MINUTE])
    await reserve(limiter)
    assert world.command("SCRIPT", "FLUSH") == b"+OK"
    assert len(await admitted([limiter], 20)) == 9
    assert world.processes[0].heard.said == ["back"]


async def test_keys_that_are_not_ours_any_more_start_anew(world: World) -> None:
    limiter = (await world.process()).limiter([PER_MINUTE, SLOTS])
    await admitted([limiter], 2)
    keys = world.buckets()
    assert len(keys) == 2
    for vandal in (
        [b"LPUSH", None, b"x"],
        [b"SET", None, b"\xc1\xff"],
        [b"SET", None, msgspec.msgpack.encode([1e300, {"x": "y"}, "a", None, -5, [1], {}])],
        [b"SET", None, msgspec.msgpack.encode("text")],
        [b"SET", None, msgspec.msgpack.encode([1 << 52, {}, 0, 1.5, 0, 0])],
    ):
        for key in keys:
            world.command("DEL", key.decode())
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(world.server.socket)
                words = [key if word is None else word for word in vandal]
                connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
                connection.recv(100)
        await asyncio.sleep(0.03)
        for reservation in await admitted([limiter], 1):
            reservation.settle(None)
        await reached(lambda: not world.processes[0].shared.busy)  # what comes back would mend it
    assert world.processes[0].heard.said == ["back"]


async def test_every_key_ends_by_itself(world: World) -> None:
    limiter = (await world.process()).limiter([PER_MINUTE, SLOTS, LimitSpec(name="short", requests=RateSpec(rate=1000, burst=1000))])
    await reserve(limiter)
    for key in world.buckets():
        assert int(world.command("PTTL", key.decode())[1:]) != -1, "-2 where it has ended already"
    await reached(lambda: not any(b":short:" in key for key in world.buckets()))


BUDGET = LimitSpec(name="b", budget=BudgetSpec(amount=1000, unit="tokens", window="day", timezone=TIMEZONE))
ROLLING = LimitSpec(name="r", budget=BudgetSpec(amount=1000, unit="tokens", window=RollingSpec(rolling=3600.0)))


@pytest.mark.parametrize("limit", [BUDGET, ROLLING], ids=["calendar", "rolling"])
async def test_a_budget_counts_once_over_processes(world: World, limit: LimitSpec) -> None:
    one, two = [(await world.process()).limiter([limit]) for _ in range(2)]
    held = await admitted([one, two], 4, tokens=200)
    assert len(held) == 5
    for reservation in held[:4]:
        reservation.settle(Usage(50, 0))
    await reached(lambda: not any(process.shared.busy for process in world.processes))
    await asyncio.sleep(0.03)
    more = await admitted([two], 5, tokens=200)
    assert len(more) == 3, "200 + 4 x 50 + 3 x 200"
    with pytest.raises(QuotaExceeded) as caught:
        await reserve(two, tokens=100)
    assert caught.value.code == "insufficient_quota" and caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= (86400 if limit is BUDGET else 3660)


@pytest.mark.parametrize("window", ["day", "rolling"])
async def test_another_window_begins_with_all_of_the_budget(world: World, window: str) -> None:
    clock = FakeClock(monotonic=1_800_000_000.0)  # eight in the morning
    span: Any = "day" if window == "day" else RollingSpec(rolling=86400.0)
    process = await world.process(clock=clock, up=False)
    limiter = TimedLimiter(world.server, process, [LimitSpec(name="b", budget=BudgetSpec(amount=1000, window=span))])

    async def taken() -> int:
        return len(await admitted([limiter], 12, tokens=100))

    assert await taken() == 10
    clock.advance(3600)
    assert await taken() == 0
    clock.advance(86400)
    assert await taken() == 10
    clock.advance(40_000)
    assert await taken() == 0, "the same day still, and the last hours"


async def test_a_session_is_bounded_in_calls_and_time(world: World) -> None:
    clock = FakeClock(monotonic=1_800_000_000.0)
    process = await world.process(clock=clock, up=False)
    limit = LimitSpec(name="s", per="session", session=LoopSpec(calls=5, wall_time=600.0))
    limiter = TimedLimiter(world.server, process, [limit])
    mine, other = (Principal("ci", "team", "api_key", ("*",), session=name) for name in ("one", "two"))
    found = await asyncio.gather(*(limiter.reserve(mine, request()) for _ in range(7)), return_exceptions=True)
    assert [getattr(one, "code", "") for one in found if isinstance(one, BaseException)] == ["session_exceeded"] * 2
    await limiter.reserve(other, request())
    clock.advance(601)
    with pytest.raises(LimitExceeded, match="time"):
        await limiter.reserve(other, request())


async def test_a_limit_that_is_not_enforced_only_says_so(world: World) -> None:
    process = await world.process()
    soft = LimitSpec(name="soft", requests=RateSpec(rate=1, per=60.0, burst=2), enforce=False)
    limiter = process.limiter([soft, PER_MINUTE])
    found = await admitted([limiter], 12)
    assert len(found) == 10
    assert sorted(one.not_enforced for one in found) == [()] * 2 + [("soft",)] * 8
    for one in found:
        one.settle(None)
    await reached(lambda: not process.shared.busy)
    await asyncio.sleep(0.03)
    assert [one.not_enforced for one in await admitted([limiter], 3)] == [(), (), ("soft",)]


async def test_a_changed_limit_keeps_what_is_used(world: World) -> None:
    clock = FakeClock(monotonic=1_800_000_000.0)  # of Redis, too: the raised limit refills in some tenths of a second
    one, two = [await world.process(clock=clock, up=False) for _ in range(2)]
    raised = LimitSpec(name="l", requests=RateSpec(rate=60, per=7.0, burst=30))
    before, after, other = [
        TimedLimiter(world.server, process, [limit]) for process, limit in ((one, PER_MINUTE), (one, raised), (two, raised))
    ]
    assert len(await admitted([before], 8)) == 8
    assert len(await admitted([other], 40)) == 22
    assert len(await admitted([after], 40)) == 0


# --- Redis is away


async def test_a_frozen_redis_costs_one_wait_and_then_none(world: World) -> None:
    process = await world.process()
    limiter = process.limiter([LimitSpec(name="l", requests=RateSpec(rate=100))])
    await reserve(limiter)
    world.freeze()
    began = time.monotonic()
    await reserve(limiter)
    assert time.monotonic() - began > 0.04
    assert not process.shared.up
    for _ in range(20):
        assert not isinstance(limiter.reserve(CI, request()), Signal), "decided at once"
    world.thaw()
    await reached(lambda: process.shared.up)
    assert process.heard.said == ["back", "it does not answer in time", "back"]
    assert process.shared.late == 1


@pytest.mark.parametrize("mode", ["closed", "open", "local"])
async def test_a_start_without_redis(world: World, mode: str) -> None:
    await asyncio.to_thread(world.server.stop)
    process = await world.process(up=False, parts=2)
    limiter = process.limiter([LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=10), on_failure=mode)])  # type: ignore[arg-type]
    if mode == "closed":
        with pytest.raises(Overloaded) as caught:
            await reserve(limiter)
        assert (caught.value.status, caught.value.code) == (503, "limits_unavailable")
    else:
        assert len(await admitted([limiter], 20)) == (20 if mode == "open" else 5)
    await asyncio.to_thread(world.server.start)
    await reached(lambda: process.shared.up)
    await reached(lambda: not process.shared.busy)
    assert len(await admitted([limiter], 20)) == (5 if mode == "local" else 10), "what was admitted locally is known to Redis now"


async def test_local_parts_go_on_from_where_redis_was(world: World) -> None:
    """Over an outage no more is admitted than burst + rate x time, though each process decides for itself."""
    limit = LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=12))
    limiters = [(await world.process(parts=2)).limiter([limit]) for _ in range(2)]
    assert len(await admitted(limiters, 2)) == 4
    await reserve(limiters[0])  # both know how the bucket is
    await reserve(limiters[1])
    world.freeze()
    local = await admitted(limiters, 10)
    assert 5 <= len(local) <= 6
    world.thaw()
    for process in world.processes:
        await reached(lambda process=process: process.shared.up and not process.shared.busy)
    assert len(await admitted(limiters, 10)) <= 12 - 6 - len(local) + 1


async def test_slots_of_an_outage_are_told(world: World) -> None:
    one, two = [(await world.process(parts=2)).limiter([SLOTS]) for _ in range(2)]
    world.freeze()
    held = await admitted([one], 5)
    assert len(held) == 2, "half of them"
    world.thaw()
    for process in world.processes:
        await reached(lambda process=process: process.shared.up and not process.shared.busy)
    others = await admitted([two], 5)
    assert len(others) == 2
    for reservation in held:
        reservation.settle(Usage(1, 1))
    await reached(lambda: not world.processes[0].shared.busy)
    await asyncio.sleep(0.01)
    assert len(await admitted([two], 5)) == 2


async def test_settlements_wait_for_redis_and_are_done_once(world: World) -> None:
    limit = LimitSpec(name="t", tokens=RateSpec(rate=1, per=60.0, burst=1000))
    process = await world.process()
    limiter = process.limiter([limit])
    held = [await reserve(limiter, tokens=100) for _ in range(10)]
    world.freeze()
    for reservation in held:
        reservation.settle(None)
    await reached(lambda: not process.shared.up)
    line = process.shared._line
    assert line is not None
    line.close()  # nobody knows whether they arrived; they did not: or did they?
    world.thaw()
    await reached(lambda: process.shared.up and not process.shared.busy)
    await asyncio.sleep(0.03)
    assert len(await admitted([limiter], 20, tokens=100)) == 10


async def test_calls_of_an_older_connection_do_nothing(world: World) -> None:
    process = await world.process()
    limiter = process.limiter([PER_MINUTE])
    await reserve(limiter)
    process.shared._epoch -= 1
    assert await reserve(limiter), "decided here"
    assert process.heard.said[1].startswith("STALE")
    await reached(lambda: process.shared.up)
    assert process.heard.said[-1] == "back"


@pytest.mark.parametrize(
    ("setting", "value", "error"), [("maxmemory", "1", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS")], ids=["full", "no replicas"]
)
async def test_a_redis_that_takes_no_writes_is_away(world: World, setting: str, value: str, error: str) -> None:
    process = await world.process()
    limiter = process.limiter([LimitSpec(name="l", requests=RateSpec(rate=1000))])
    await reserve(limiter)
    assert world.command("CONFIG", "SET", setting, value) == b"+OK"
    await reserve(limiter)
    assert not process.shared.up and process.heard.said[1].startswith(error)
    assert world.command("CONFIG", "SET", setting, "0") == b"+OK"
    await reached(lambda: process.shared.up)


@pytest.mark.parametrize(
    "answer",
    [b"220 mail.example ESMTP\r\n", b"$5\r\nhello\r\n" * 9, b"*1000001\r\n", b"-ERR\r\n" * 9, b"", b"$99999999\r\n", b":1\r\n:1\r\n:1\r\n"],
)
async def test_what_is_no_redis_is_away(world: World, short_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                writer.write(answer)
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_unix_server(serve, short_path / "other")
    process = await world.process(up=False, parts=1, patience=0.05, url=f"unix://{short_path}/other")
    limiter = process.limiter([LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=10))])
    assert len(await admitted([limiter], 20)) == 10
    await asyncio.sleep(0.2)
    assert not process.shared.up
    assert len(await admitted([limiter], 20)) == 0
    server.close()


async def test_many_buckets(world: World) -> None:
    """10,000 buckets in one turn of the loop: several calls, each bounded."""
    process = await world.process()
    limiter = process.limiter([PER_MINUTE])
    found = [limiter.reserve(caller(f"key-{number}"), request()) for number in range(10_000)]
    waiting = [as_future(one) for one in found if isinstance(one, Signal)]
    assert len(waiting) == 10_000
    await asyncio.gather(*waiting)
    assert process.shared.called >= 10_000 // 256
    with pytest.raises(Overloaded):
        for number in range(10_001):
            limiter.reserve(caller(f"key-{number}"), request())
