"""The limiter over in-process buckets: all or none, settled once, kept over reloads, bounded."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.clock import FakeClock
from gateway.core.errors import LimitExceeded
from gateway.core.ports import Reservation
from gateway.core.specs import LimitMatchSpec, LimitSpec, LoopSpec, RateSpec, WeightsSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.wire import WireApi
from gateway.limits.bucket import Amounts
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import PART, SHAPES, SWEEP, BucketRegistry
from gateway.wire import table
from policies.limits import LimitRules, estimate

ALICE, BOB = Principal("alice", "team", "api_key", ("*",)), Principal("bob", "team", "api_key", ("*",))


def request(tokens: int = 0, completion: int = 0, model: str = "demo-chat") -> InferenceRequest:
    return InferenceRequest(WireApi("chat"), b"/", model, {}, None, prompt_tokens=tokens, max_tokens=completion)


class World:
    def __init__(self, *limits: LimitSpec, capacity: int = 1000, memo_size: int = 100) -> None:
        self.clock = FakeClock()
        self.registry = BucketRegistry(capacity)
        self.memo_size = memo_size
        self.noted: list[str] = []
        self.limiter = self.reloaded(*limits)

    def reloaded(self, *limits: LimitSpec) -> LocalLimiter:
        self.limiter = LocalLimiter(
            LimitRules(limits), self.registry, estimate=estimate, noted=self.noted.append, clock=self.clock, memo_size=self.memo_size
        )
        return self.limiter

    def ask(self, principal: Principal = ALICE, tokens: int = 0, completion: int = 0, model: str = "demo-chat") -> Reservation:
        return self.limiter.reserve(principal, request(tokens, completion, model))

    def refused(self, principal: Principal = ALICE, tokens: int = 0, completion: int = 0, model: str = "demo-chat") -> LimitExceeded:
        with pytest.raises(LimitExceeded) as caught:
            self.ask(principal, tokens, completion, model)
        assert caught.value.status == 429
        return caught.value


def names(headers: bytes) -> dict[str, str]:
    lines = headers.decode().split("\r\n")
    assert lines.pop() == ""
    return dict(line.split(": ", 1) for line in lines)  # type: ignore[misc]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_step_of_the_wall_clock_changes_nothing(hours: int) -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=3), tokens=RateSpec(rate=60, per=60.0)))
    for _ in range(3):
        world.ask(tokens=5)
    world.clock.step(3600.0 * hours)
    assert world.refused(tokens=5).retry_after == 60.0
    world.clock.advance(59.0)
    assert world.refused(tokens=5).retry_after == 1.0
    world.clock.step(-3600.0 * hours)
    world.clock.advance(1.0)
    world.ask(tokens=5)
    world.refused(tokens=5)


def test_requests() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1, per=1.0, burst=3)))
    for _ in range(3):
        world.ask()
    error = world.refused()
    assert (error.code, error.retry_after, error.message) == ("rate_limit_exceeded", 1.0, "Too many requests: the limit 'l' is reached.")
    assert dict(error.headers) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "3.000s",
    }
    world.clock.advance(0.75)
    assert world.refused().retry_after == pytest.approx(0.25, abs=0.002)
    world.clock.advance(0.25)
    world.ask()
    world.refused()


def test_waiting_as_long_as_it_says_is_enough() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=7, per=3.0, burst=1), tokens=RateSpec(rate=1000, per=60.0)))
    world.ask(tokens=1000)
    for tokens in (13, 700, 999, 1, 1, 1000, 3):
        error = world.refused(tokens=tokens)
        assert error.retry_after is not None
        world.clock.advance(error.retry_after)
        world.ask(tokens=tokens)


def test_tokens_are_reserved_and_then_corrected() -> None:
    world = World(LimitSpec(name="l", tokens=RateSpec(rate=100, per=1.0, burst=1000)))
    first = world.ask(tokens=100, completion=800)
    assert names(first.headers)["x-ratelimit-remaining-tokens"] == "100"
    assert world.refused(tokens=101).code == "tokens_exceeded"
    first.settle(Usage(100, 50))
    assert names(world.ask(tokens=0).headers)["x-ratelimit-remaining-tokens"] == "850"


def test_more_than_reserved_is_charged_and_the_level_may_be_negative() -> None:
    world = World(LimitSpec(name="l", tokens=RateSpec(rate=100, per=1.0, burst=1000)))
    world.ask(tokens=900).settle(Usage(900, 600))
    assert world.refused(tokens=1).retry_after == pytest.approx(5.01, abs=0.002)
    world.clock.advance(5.011)
    world.ask(tokens=1)


def test_an_exchange_that_was_not_served_costs_nothing() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1, burst=1), tokens=RateSpec(rate=10), concurrent=1))
    for _ in range(50):
        world.ask(tokens=10).settle(None)


def test_settling_twice_does_nothing() -> None:
    world = World(LimitSpec(name="l", tokens=RateSpec(rate=10), concurrent=1))
    first = world.ask(tokens=10)
    first.settle(Usage(10, 0))
    first.settle(None)
    first.settle(Usage(0, 0))
    assert world.refused(tokens=1).code == "tokens_exceeded"
    world.clock.advance(1)
    world.ask(tokens=1)
    assert world.refused().code == "concurrency_exceeded"


def test_concurrency() -> None:
    world = World(LimitSpec(name="l", concurrent=2))
    held = [world.ask() for _ in range(2)]
    error = world.refused()
    assert (error.code, error.retry_after, error.headers) == ("concurrency_exceeded", 1.0, ())
    assert held[0].headers == b""
    held[0].settle(Usage(1, 1))
    world.ask()
    world.refused()


def test_an_estimate_beyond_the_burst_takes_all_of_it() -> None:
    world = World(LimitSpec(name="l", tokens=RateSpec(rate=100, burst=100)))
    first = world.ask(tokens=10, completion=4000)
    world.refused(tokens=1)
    first.settle(Usage(10, 20))
    world.ask(tokens=70)


def test_a_prompt_beyond_the_burst_is_refused_for_good() -> None:
    for others in ((), (LimitSpec(name="m", requests=RateSpec(rate=5)),)):
        world = World(LimitSpec(name="l", tokens=RateSpec(rate=100, burst=100)), *others)
        error = world.refused(tokens=101)
        assert (error.code, error.retry_after) == ("tokens_exceeded", None)
        assert dict(error.headers) == {"x-should-retry": "false"}
        world.ask(tokens=100)


def test_all_or_none() -> None:
    """A request that one limit refuses takes nothing from the others."""
    world = World(
        LimitSpec(name="wide", per="tenant", requests=RateSpec(rate=1, burst=3), tokens=RateSpec(rate=1, burst=100), concurrent=3),
        LimitSpec(name="narrow", per="key", requests=RateSpec(rate=1, burst=1)),
    )
    world.ask(ALICE, tokens=10)
    for _ in range(10):
        assert "'narrow'" in world.refused(ALICE, tokens=10).message
    left = names(world.ask(BOB, tokens=10).headers)
    assert (left["x-ratelimit-limit-tokens"], left["x-ratelimit-remaining-tokens"]) == ("100", "80")


def test_the_longest_wait_is_told() -> None:
    world = World(
        LimitSpec(name="short", requests=RateSpec(rate=1, per=1.0, burst=1)), LimitSpec(name="long", requests=RateSpec(rate=1, per=60.0))
    )
    world.ask()
    error = world.refused()
    assert (error.retry_after, "'long'" in error.message) == (60.0, True)


def test_the_tightest_limit_is_shown() -> None:
    world = World(
        LimitSpec(name="a", requests=RateSpec(rate=10), tokens=RateSpec(rate=1000)),
        LimitSpec(name="b", requests=RateSpec(rate=5, per=2.0)),
        LimitSpec(name="c", tokens=RateSpec(rate=500)),
    )
    assert names(world.ask(tokens=100).headers) == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "0.400s",
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "0.200s",
    }


@pytest.mark.parametrize("limits", [("requests",), ("tokens",), ("requests", "tokens")])
def test_one_limit_shows_the_same_as_several(limits: tuple[str, ...]) -> None:
    given_limits = {name: RateSpec(rate=10, per=3.0) for name in limits}
    alone = World(LimitSpec(name="a", **given_limits))  # type: ignore[arg-type]
    beside = World(LimitSpec(name="a", **given_limits), LimitSpec(name="b", concurrent=9))  # type: ignore[arg-type]
    for tokens in (0, 3, 2):
        assert alone.ask(tokens=tokens).headers == beside.ask(tokens=tokens).headers != b""


def test_nothing_applies() -> None:
    world = World(LimitSpec(name="l", match=LimitMatchSpec(tenant="other"), requests=RateSpec(rate=1)))
    for _ in range(10):
        reservation = world.ask()
        reservation.settle(Usage(1, 1))
        reservation.settle(None)
        assert reservation.headers == b""
    assert len(world.registry) == 0


def test_a_reload_keeps_the_state_of_what_did_not_change() -> None:
    rate, slow = RateSpec(rate=1, burst=1), RateSpec(rate=1, burst=1, per=9.0)
    world = World(LimitSpec(name="same", requests=rate), LimitSpec(name="other", per="tenant", requests=slow))
    world.ask()
    world.reloaded(LimitSpec(name="new", concurrent=5), LimitSpec(name="same", match=LimitMatchSpec(tenant="t*"), requests=rate))
    assert "'same'" in world.refused().message
    world.reloaded(LimitSpec(name="same", requests=RateSpec(rate=1, burst=2)))
    world.ask()


def test_an_exchange_that_began_before_a_reload_is_settled_after_it() -> None:
    limit = LimitSpec(name="l", concurrent=1)
    world = World(limit)
    held = world.ask()
    world.reloaded(limit)
    world.refused()
    held.settle(None)
    world.ask()


def principals(count: int) -> list[Principal]:
    return [Principal(f"p{n}", "team", "api_key", ("*",)) for n in range(count)]


def test_full_and_unused_buckets_are_forgotten() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1)), capacity=100, memo_size=10_000)
    for principal in principals(1000):
        world.ask(principal).settle(Usage())
        world.clock.advance(0.02)
        assert len(world.registry) <= 100


def test_buckets_of_callers_who_do_not_come_any_more_do_not_pile_up() -> None:
    """10,000 callers come and go within ten hours; 50 are there all the time."""
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1)), capacity=100_000, memo_size=16_384)
    regulars, most = [Principal(f"r{n}", "team", "api_key", ("*",)) for n in range(50)], 0
    for number, principal in enumerate(principals(10_000)):
        for caller in (principal, regulars[number % 50]):
            world.ask(caller).settle(Usage())
        world.clock.advance(3.6)
        most = max(most, len(world.registry), len(world.limiter._memo))
    assert most < 150


def test_a_look_forgets_no_bucket_that_means_something() -> None:
    """Of 300 callers, who come once, 200 have a bucket that is full again; one that is not refuses as before."""
    world = World(LimitSpec(name="l", per="key", requests=RateSpec(rate=1, per=3600.0)), memo_size=1000)
    short, long = principals(300)[:100], principals(300)[100:]
    for principal in long:
        world.ask(principal).settle(None)
    for principal in short:
        world.ask(principal).settle(Usage())
    held = world.ask(long[0])
    world.clock.advance(400.0)
    world.ask(BOB)
    assert len(world.registry) == 102
    for principal in (*short, long[0]):
        world.refused(principal)
    held.settle(None)
    world.ask(long[0])


def test_a_large_table_is_looked_at_in_parts() -> None:
    """Of 30,000 callers, every tenth has a bucket that still means something. No look walks all of them."""
    short = LimitSpec(name="s", per="key", requests=RateSpec(rate=1, per=3600.0))
    registry, second = BucketRegistry(), 10**12
    for number in range(30_000):
        (bucket,) = registry.buckets([(short, (f"p{number}",))], 0)
        if number % 10 == 0:
            bucket.charge(0, bucket.shape.costs(Amounts(request(), 0, 0, 0)))
    sizes = []
    for turn in range(1, 30):
        registry.look(turn * 100 * second)
        sizes.append(len(registry))
    assert sizes[-1] == 3000 and all(a - b <= PART for a, b in pairwise(sizes))
    assert {key for key, _ in registry.all()} == {(f"p{number}",) for number in range(0, 30_000, 10)}


def test_a_table_that_is_too_large_is_swept_in_parts() -> None:
    """Of 30,000 sessions nearly all mean something: no new one waits until all are looked at, and those that mean nothing go."""
    short, registry = LimitSpec(name="s", per="key", requests=RateSpec(rate=1, per=3600.0)), BucketRegistry(10_000)
    for number in range(30_000):
        before = len(registry)
        (bucket,) = registry.buckets([(short, (f"p{number}",))], 0)
        if number % 10:
            bucket.charge(0, bucket.shape.costs(Amounts(request(), 0, 0, 0)))
        assert before - len(registry) <= SWEEP
    left = {int(key[0][1:]) for key, _ in registry.all()}
    assert {number for number in range(30_000) if number % 10} <= left, "what means something is never forgotten"
    assert len([number for number in left if number % 10 == 0]) < 1000, "of 3,000"


def test_limits_that_have_no_bucket_any_more_are_forgotten() -> None:
    registry = BucketRegistry(10)
    for number in range(3 * SHAPES):
        registry.buckets([(LimitSpec(name=f"l{number}", requests=RateSpec(rate=10)), ("k",))], number * 10**12)
    assert len(registry._shapes) <= 2 * SHAPES


def test_all_buckets_are_seen_in_parts_while_some_come_and_go() -> None:
    registry, limit = BucketRegistry(), LimitSpec(name="l", requests=RateSpec(rate=10))
    made = [registry.buckets([(limit, (f"k{number}",))], 1)[0] for number in range(10)]
    parts = registry.in_parts(4)
    seen = next(parts)
    registry.forget(made[5].shape, ("k5",))
    registry.buckets([(limit, ("new",))], 1)
    seen += [one for part in parts for one in part]
    assert seen == [((f"k{number}",), made[number]) for number in range(10) if number != 5]


def test_few_unused_buckets_among_many_are_left_alone() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1)), capacity=10_000, memo_size=1000)
    everybody = principals(600)
    for principal in everybody:
        world.ask(principal).settle(Usage())
    world.clock.advance(50.0)
    for principal in everybody[:400]:
        world.ask(principal).settle(Usage())
    world.clock.advance(20.0)
    generation = world.registry.generation
    world.ask(BOB)
    assert len(world.registry) == 601 and world.registry.generation == generation, "nobody is decided anew for so little"


def test_buckets_that_still_mean_something_are_never_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1, per=3600.0)), capacity=10)
    everybody = principals(100)
    for principal in everybody:
        world.ask(principal).settle(Usage())
    for principal in everybody:
        world.refused(principal)
    assert len(world.registry) == 100
    assert len([record for record in caplog.records if "grows beyond its capacity" in record.message]) == 1


def test_a_bucket_under_way_is_not_forgotten_and_no_limiter_uses_a_forgotten_one() -> None:
    limit = LimitSpec(name="l", requests=RateSpec(rate=100), concurrent=1)
    world = World(limit, capacity=4, memo_size=10_000)
    held = world.ask(ALICE)
    other = world.limiter
    world.reloaded(limit)
    for _ in range(3):
        for principal in principals(50):
            world.ask(principal).settle(Usage())
            world.clock.advance(1.0)
    for limiter in (other, world.limiter):
        with pytest.raises(LimitExceeded):
            limiter.reserve(ALICE, request())
    held.settle(Usage())
    first = other.reserve(BOB, request())
    with pytest.raises(LimitExceeded):
        world.limiter.reserve(BOB, request())
    first.settle(None)


def test_several_limits_in_a_table_that_is_too_small_for_them() -> None:
    """Making room for one bucket of a request never takes away another of the same request."""
    limits = [LimitSpec(name=f"l{n}", requests=RateSpec(rate=1, per=60.0, burst=2 if n else 1)) for n in range(5)]
    world = World(*limits, capacity=2, memo_size=3)
    for principal in principals(20):
        world.ask(principal).settle(Usage())
        assert "'l0'" in world.refused(principal).message
    assert len(world.registry) == 100


def test_what_is_remembered_is_bounded() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=100)), memo_size=7)
    for principal in principals(50):
        world.ask(principal)
    assert len(world.limiter._memo) == 7


operations = st.lists(
    st.tuples(st.sampled_from(["ask", "settle", "fail", "wait"]), st.integers(0, 3), st.integers(0, 40), st.integers(0, 60)), max_size=80
)


@settings(max_examples=150, deadline=None)
@given(operations)
def test_random_interleavings(steps: list[tuple[str, int, int, int]]) -> None:
    """Two limits shared by four callers. Over any stretch that begins with nothing under way, no bucket gives out more than
    burst + rate x time; concurrency is exact; at the end, everything settled, buckets fill up completely."""
    limits = (
        LimitSpec(name="key", requests=RateSpec(rate=2, burst=4), tokens=RateSpec(rate=20, burst=50), concurrent=2),
        LimitSpec(name="all", per="global", requests=RateSpec(rate=3, burst=6), tokens=RateSpec(rate=30, burst=80), concurrent=3),
    )
    world = World(*limits)
    callers = principals(4)
    under_way: list[tuple[int, int, Reservation]] = []
    start, requests_given, tokens_given = world.clock.monotonic(), 0, 0
    for action, who, tokens, completion in steps:
        if action == "wait":
            world.clock.advance(tokens / 20)
        elif action == "ask":
            try:
                reservation = world.ask(callers[who], tokens, completion)
            except LimitExceeded:
                continue
            reserved = min(tokens + completion, 50)
            under_way.append((who, reserved, reservation))
            requests_given, tokens_given = requests_given + 1, tokens_given + reserved
        elif under_way:
            _, reserved, reservation = under_way.pop(who % len(under_way))
            reservation.settle(None if action == "fail" else Usage(min(tokens, reserved), 0))
            requests_given -= action == "fail"
            tokens_given -= reserved if action == "fail" else reserved - min(tokens, reserved)
        elapsed = world.clock.monotonic() - start
        assert requests_given <= 6 + 3 * elapsed + 1e-6
        assert tokens_given <= 80 + 30 * elapsed + 1e-6
        assert len(under_way) <= 3
        assert max((sum(one == caller for one, _, _ in under_way) for caller in range(4)), default=0) <= 2
    for _, _, reservation in under_way:
        reservation.settle(None)
    world.clock.advance(60)
    left = names(world.ask(callers[0]).headers)
    assert (left["x-ratelimit-remaining-requests"], left["x-ratelimit-remaining-tokens"]) == ("3", "50")


def sized(size: int, model: str = "demo-chat") -> InferenceRequest:
    one = request(model=model)
    one.size = size
    return one


def test_bytes_of_bodies() -> None:
    world = World(LimitSpec(name="l", bytes=RateSpec(rate=1000, per=1.0)))
    world.limiter.reserve(ALICE, sized(600)).settle(Usage())
    with pytest.raises(LimitExceeded, match="Too many bytes") as caught:
        world.limiter.reserve(ALICE, sized(600))
    assert caught.value.code == "rate_limit_exceeded" and caught.value.retry_after == 0.2
    with pytest.raises(LimitExceeded, match="never allows more than 1000"):
        world.limiter.reserve(ALICE, sized(1001))


def test_elements_are_those_of_tensors_only() -> None:
    world = World(LimitSpec(name="l", elements=RateSpec(rate=1000, per=1.0)))
    tensor = InferenceRequest(WireApi("infer"), b"/", "m", {}, None, prompt_tokens=800)
    world.limiter.reserve(ALICE, tensor)
    with pytest.raises(LimitExceeded, match="elements"):
        world.limiter.reserve(ALICE, tensor)
    world.ask(tokens=10**6)


def test_tokens_by_weight() -> None:
    weights = WeightsSpec(prompt=1.0, completion=4.0, cached=0.1, reasoning=0.5)
    world = World(LimitSpec(name="l", tokens=RateSpec(rate=1, per=60.0, burst=1000), weights=weights))
    first = world.ask(tokens=200, completion=100)
    assert names(first.headers)["x-ratelimit-remaining-tokens"] == "400"
    first.settle(Usage(200, 100, cached_tokens=100, reasoning_tokens=50))
    assert names(world.ask().headers)["x-ratelimit-remaining-tokens"] == str(1000 - 100 - 10 - 200 - 25)
    assert world.refused(tokens=666).code == "tokens_exceeded"
    assert dict(world.refused(tokens=1001).headers) == {"x-should-retry": "false"}


def test_what_is_not_enforced_only_counts() -> None:
    world = World(
        LimitSpec(name="new", requests=RateSpec(rate=1, per=60.0), enforce=False),
        LimitSpec(name="old", requests=RateSpec(rate=3, per=60.0)),
    )
    assert [world.ask().not_enforced for _ in range(3)] == [(), ("new",), ("new",)]
    assert "'old'" in world.refused().message
    assert world.noted == ["new", "new"]
    world.reloaded(LimitSpec(name="new", requests=RateSpec(rate=1, per=60.0)))
    assert world.refused().retry_after == 60.0, "requests that it would have refused are not charged"


PERSON = Principal("sub", "team", "oidc", ("*",), user="alice", session="s1")
OTHER_SESSION = Principal("sub", "team", "oidc", ("*",), user="alice", session="s2")


def test_bounds_on_sessions() -> None:
    world = World(LimitSpec(name="loop", per="session", session=LoopSpec(calls=3, tokens=100, wall_time=600.0)))
    for _ in range(3):
        world.ask(PERSON, tokens=10).settle(Usage(10, 0))
    error = world.refused(PERSON)
    assert (error.code, error.retry_after, dict(error.headers)) == ("session_exceeded", None, {"x-should-retry": "false"})
    world.clock.advance(3600)
    world.refused(PERSON)
    world.ask(OTHER_SESSION, tokens=100).settle(Usage(100, 20))
    assert "tokens" in world.refused(OTHER_SESSION, tokens=1).message
    for _ in range(10):
        world.ask(ALICE)


def test_a_session_ends_with_its_time() -> None:
    world = World(LimitSpec(name="loop", per="session", session=LoopSpec(wall_time=600.0)))
    world.ask(PERSON).settle(Usage())
    world.clock.advance(599)
    world.ask(PERSON).settle(Usage())
    world.clock.advance(2)
    assert "has used up its time" in world.refused(PERSON).message
    world.ask(OTHER_SESSION)


def test_bounds_on_conversations_need_no_session() -> None:
    def talk(turns: int) -> InferenceRequest:
        call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}, *[call] * turns]})
        return table.parse(b"/v1/chat/completions", body.encode(), {}, max_depth=64, max_nodes=65536)

    world = World(LimitSpec(name="deep", per="session", session=LoopSpec(depth=5)))
    world.limiter.reserve(ALICE, talk(5))
    with pytest.raises(LimitExceeded, match="6 times in a row") as caught:
        world.limiter.reserve(ALICE, talk(6))
    assert caught.value.code == "session_exceeded"
    world.reloaded(LimitSpec(name="same", per="session", session=LoopSpec(same_tool_calls=2), enforce=False))
    assert world.limiter.reserve(ALICE, talk(3)).not_enforced == ("same",)


def test_a_changed_limit_keeps_what_is_used() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=10, per=60.0), concurrent=2))
    for _ in range(10):
        world.ask().settle(Usage())
    world.refused()
    world.reloaded(LimitSpec(name="l", requests=RateSpec(rate=15, per=60.0), concurrent=9))
    for _ in range(5):
        world.ask().settle(Usage())
    world.refused()
    world.reloaded(LimitSpec(name="l", requests=RateSpec(rate=5, per=60.0), concurrent=9))
    world.ask(BOB)
    world.clock.advance(131)
    world.refused()
    world.clock.advance(2)
    world.ask()
    world.reloaded(LimitSpec(name="another", requests=RateSpec(rate=5, per=60.0), concurrent=9))
    assert names(world.ask().headers)["x-ratelimit-remaining-requests"] == "4"


def test_an_earlier_configuration_does_not_take_a_change_back() -> None:
    world = World(LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0)))
    earlier = world.limiter
    world.reloaded(LimitSpec(name="l", requests=RateSpec(rate=5, per=60.0)))
    world.ask()
    earlier.reserve(BOB, request())
    assert names(world.ask().headers)["x-ratelimit-limit-requests"] == "5"
    assert names(earlier.reserve(BOB, request()).headers)["x-ratelimit-limit-requests"] == "5"


def test_a_limit_that_is_not_enforced_is_not_shown_to_callers() -> None:
    hard = LimitSpec(name="hard", requests=RateSpec(rate=100, per=1))
    world = World(hard, LimitSpec(name="soft", requests=RateSpec(rate=2, per=3600), enforce=False))
    assert [b"limit-requests: 100\r\n" in world.ask().headers for _ in range(3)] == [True] * 3
    assert world.noted == ["soft"]
