"""What every Limiter keeps to: gateway.core.ports.Limiter and the contract's headers and codes."""

from __future__ import annotations

import asyncio
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import LimitExceeded
from gateway.core.messages import Message
from gateway.core.ports import Limiter, Reservation
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal, as_future
from gateway.core.wire import WireApi
from gateway.limits.lease_book import LeaseBook
from gateway.limits.lease_messages import LeaseRecall, LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from gateway.limits.shares import Shares
from policies.limits import LimitRules, estimate
from tests.cluster.servers import RedisServer
from tests.fakes.redis import SharedProcess, TimedLimiter

Make = Callable[[Sequence[LimitSpec], FakeClock], Limiter]


def local(limits: Sequence[LimitSpec], clock: FakeClock) -> Limiter:
    return LocalLimiter(LimitRules(limits), BucketRegistry(), estimate=estimate, clock=clock)


def leased(limits: Sequence[LimitSpec], clock: FakeClock) -> Limiter:
    """A worker with its control process, in one loop."""
    loop = asyncio.get_running_loop()
    found: list[Shares] = []

    def hear(worker: str, message: Message) -> None:
        if isinstance(message, LeaseReply):
            loop.call_soon(found[0].heard, message)
        elif isinstance(message, LeaseRecall):
            loop.call_soon(found[0].recalled, message)

    book = LeaseBook(hear, clock=clock, later=loop.call_later)
    book.joined("w")
    shares = Shares(partial(book.heard, "w"), loop.call_soon, loop.call_later, clock=clock)
    found.append(shares)
    return LeasedLimiter(LimitRules(limits), shares, estimate=estimate)


IMPLEMENTATIONS: dict[str, Make] = {"local": local, "leased": leased}
SHARED = "redis"
CALLER = Principal("ci", "t", "api_key", ("*",))
_LINE = re.compile(rb"x-ratelimit-(limit|remaining)-(requests|tokens): \d+\r\n|x-ratelimit-reset-(requests|tokens): \d+\.\d{3}s\r\n")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name:
        server = RedisServer(Path(name)).start()
        yield server
        server.stop()


@pytest.fixture(params=[*IMPLEMENTATIONS, SHARED])
async def make(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Make]:
    opened: list[SharedProcess] = []

    def shared(limits: Sequence[LimitSpec], clock: FakeClock) -> Limiter:
        """One process and its Redis, whose time is the clock's."""
        opened.append(SharedProcess(redis.socket, secrets.token_hex(8), clock).start())
        return TimedLimiter(redis, opened[-1], limits)

    yield shared if request.param == SHARED else IMPLEMENTATIONS[request.param]
    for process in opened:
        await process.aclose()


async def reserve(limiter: Limiter, tokens: int = 0, completion: int = 0) -> Reservation:
    return await reserve_for(limiter, InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=tokens, max_tokens=completion))


async def reserve_for(limiter: Limiter, request: InferenceRequest) -> Reservation:
    found = limiter.reserve(CALLER, request)
    if isinstance(found, Signal):
        found = as_future(found)
    return await found if isinstance(found, asyncio.Future) else found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("limit", "tokens", "code"),
    [
        (LimitSpec(name="l", requests=RateSpec(rate=1, burst=2)), 0, "rate_limit_exceeded"),
        (LimitSpec(name="l", tokens=RateSpec(rate=1, burst=20)), 10, "tokens_exceeded"),
        (LimitSpec(name="l", concurrent=2), 0, "concurrency_exceeded"),
    ],
)
async def test_two_pass_and_the_third_is_told_when_to_come_back(make: Make, limit: LimitSpec, tokens: int, code: str) -> None:
    limiter = make([limit], FakeClock())
    for _ in range(2):
        await reserve(limiter, tokens)
    with pytest.raises(LimitExceeded) as caught:
        await reserve(limiter, tokens)
    error = caught.value
    assert (error.status, error.code) == (429, code)
    assert error.retry_after is not None and error.retry_after > 0


async def test_the_headers_are_lines_of_the_contract(make: Make) -> None:
    both = LimitSpec(name="l", requests=RateSpec(rate=5), tokens=RateSpec(rate=7, per=60.0))
    headers = (await reserve(make([both], FakeClock()), 3)).headers
    assert _LINE.sub(b"", headers) == b"" and headers.count(b"\r\n") == 6
    assert (await reserve(make([], FakeClock()))).headers == b""


async def test_everything_comes_back_when_nothing_was_served(make: Make) -> None:
    limiter = make([LimitSpec(name="l", requests=RateSpec(rate=1), tokens=RateSpec(rate=10), concurrent=1)], FakeClock())
    for _ in range(5):
        reservation = await reserve(limiter, 10)
        reservation.settle(None)
        reservation.settle(None)


async def test_a_reservation_says_whether_it_holds_tokens(make: Make) -> None:
    counting = make([LimitSpec(name="n", requests=RateSpec(rate=9)), LimitSpec(name="t", tokens=RateSpec(rate=9))], FakeClock())
    assert (await reserve(counting, 1)).counts_tokens
    assert not (await reserve(make([LimitSpec(name="n", requests=RateSpec(rate=9), concurrent=3)], FakeClock()), 1)).counts_tokens
    assert not (await reserve(make([], FakeClock()), 1)).counts_tokens


@pytest.mark.parametrize(
    ("rate", "burst", "most", "cautious", "reserved", "unsure"),
    [
        (1, 1000, 400, False, 400, False),  # half is left
        (1, 1000, 600, False, 100, True),
        (1, 1000, 600, True, 600, False),
        (1, 1000, 5000, True, 1000, False),  # never more than there is, and no refusal for good
        (1, 1000, 50, False, 100, False),
        (1, 90, 5000, False, 90, True),
    ],
)
async def test_the_most_that_a_prompt_can_have_is_reserved_where_there_is_plenty(
    make: Make, rate: int, burst: int, most: int, cautious: bool, reserved: int, unsure: bool
) -> None:
    limiter = make([LimitSpec(name="l", tokens=RateSpec(rate=rate, burst=burst, per=60.0)), LimitSpec(name="n", concurrent=9)], FakeClock())
    (await reserve(limiter)).settle(None)  # workers learn here what there is
    request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=100)
    request.most, request.cautious = most, cautious
    headers = (await reserve_for(limiter, request)).headers
    assert b"x-ratelimit-remaining-tokens: %d\r\n" % (burst - reserved) in headers
    assert request.unsure == unsure and request.prompt_tokens == 100, "records say what was guessed"


async def test_nothing_is_to_be_counted_where_no_limit_depends_on_it(make: Make) -> None:
    limiter = make([LimitSpec(name="n", requests=RateSpec(rate=9), concurrent=3)], FakeClock())
    request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=100)
    request.most = 10_000
    await reserve_for(limiter, request)
    assert not request.unsure


async def test_what_was_not_used_comes_back_and_what_was_is_charged(make: Make) -> None:
    limiter = make([LimitSpec(name="l", tokens=RateSpec(rate=1, burst=100))], FakeClock())
    (await reserve(limiter, 10, 90)).settle(Usage(10, 20))
    (await reserve(limiter, 70)).settle(Usage(70, 50))
    with pytest.raises(LimitExceeded):
        await reserve(limiter, 1)


async def test_a_refusal_takes_nothing(make: Make) -> None:
    clock = FakeClock()
    limits = [LimitSpec(name="a", requests=RateSpec(rate=1, burst=2)), LimitSpec(name="b", requests=RateSpec(rate=1, per=10.0, burst=1))]
    limiter = make(limits, clock)
    await reserve(limiter)
    for _ in range(5):
        with pytest.raises(LimitExceeded):
            await reserve(limiter)
    clock.advance(10)
    await reserve(limiter)


async def test_never_more_than_burst_and_rate_times_time(make: Make) -> None:
    clock = FakeClock()
    limiter = make([LimitSpec(name="l", requests=RateSpec(rate=10, per=3.0, burst=4))], clock)
    admitted = 0
    for _ in range(300):
        try:
            await reserve(limiter)
            admitted += 1
        except LimitExceeded:
            pass
        clock.advance(0.1)
    assert admitted == 4 + int(29.9 * 10 / 3)


async def test_waiting_as_long_as_it_says_is_enough(make: Make) -> None:
    clock = FakeClock()
    limiter = make([LimitSpec(name="l", requests=RateSpec(rate=7, per=3.0, burst=1), tokens=RateSpec(rate=1000, per=60.0))], clock)
    await reserve(limiter, 1000)
    for tokens in (13, 700, 999, 1, 1, 1000, 3):
        with pytest.raises(LimitExceeded) as caught:
            await reserve(limiter, tokens)
        assert caught.value.retry_after is not None
        clock.advance(caught.value.retry_after)
        await reserve(limiter, tokens)


async def test_a_prompt_beyond_the_burst_is_refused_for_good_and_a_longer_answer_takes_all_of_it(make: Make) -> None:
    for others in ((), (LimitSpec(name="m", requests=RateSpec(rate=5)),)):
        limiter = make([LimitSpec(name="l", tokens=RateSpec(rate=100, burst=100)), *others], FakeClock())
        with pytest.raises(LimitExceeded) as caught:
            await reserve(limiter, 101)
        assert (caught.value.code, caught.value.retry_after) == ("tokens_exceeded", None)
        assert dict(caught.value.headers) == {"x-should-retry": "false"}
        first = await reserve(limiter, 10, 4000)
        with pytest.raises(LimitExceeded):
            await reserve(limiter, 1)
        first.settle(Usage(10, 20))
        await reserve(limiter, 70)


async def test_slots_come_back_with_each_end(make: Make) -> None:
    limiter = make([LimitSpec(name="l", concurrent=3), LimitSpec(name="m", per="global", concurrent=2)], FakeClock())
    held = [await reserve(limiter) for _ in range(2)]
    for usage in (Usage(1, 1), None, Usage()):
        with pytest.raises(LimitExceeded) as caught:
            await reserve(limiter)
        assert "'m'" in caught.value.message and caught.value.code == "concurrency_exceeded"
        held.pop(0).settle(usage)
        held.append(await reserve(limiter))


async def test_the_tightest_limit_is_shown(make: Make) -> None:
    limits = [
        LimitSpec(name="a", requests=RateSpec(rate=10), tokens=RateSpec(rate=1000)),
        LimitSpec(name="b", requests=RateSpec(rate=5, per=2.0)),
        LimitSpec(name="c", tokens=RateSpec(rate=500)),
    ]
    lines = (await reserve(make(limits, FakeClock()), 100)).headers.decode().split("\r\n")
    assert "x-ratelimit-remaining-requests: 4" in lines and "x-ratelimit-reset-requests: 0.400s" in lines
    assert "x-ratelimit-remaining-tokens: 400" in lines and "x-ratelimit-limit-tokens: 500" in lines


async def test_the_longest_wait_is_told(make: Make) -> None:
    limits = [LimitSpec(name="short", requests=RateSpec(rate=1, burst=1)), LimitSpec(name="long", requests=RateSpec(rate=1, per=60.0))]
    limiter = make(limits, FakeClock())
    await reserve(limiter)
    for _ in range(3):
        with pytest.raises(LimitExceeded) as caught:
            await reserve(limiter)
        assert (caught.value.retry_after, "'long'" in caught.value.message) == (60.0, True)


async def test_many_at_once_get_exactly_what_there_is(make: Make) -> None:
    limiter = make([LimitSpec(name="l", requests=RateSpec(rate=1, burst=7), tokens=RateSpec(rate=1, burst=1000))], FakeClock())
    found = await asyncio.gather(*(reserve(limiter, 10) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(one, LimitExceeded) for one in found) == 13
