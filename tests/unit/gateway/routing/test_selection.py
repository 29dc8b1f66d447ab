"""Which endpoint of a pool a request gets, by each policy, through a route."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.specs import EngineSpec, ModelSpec, PoolMemberSpec, QueueSpec, RoutingSpec
from gateway.routing.router import PoolAttempt
from tests.unit.gateway.routing.fleet import FAILURE, SUCCESS, Fleet


def test_an_attempt_carries_what_the_pipeline_needs():
    fleet = Fleet(1)
    attempt = fleet.attempt()
    assert attempt.endpoint_name == "a"
    assert attempt.endpoint_header == b"x-gatehouse-endpoint: a\r\n"
    assert attempt.client is fleet.clients[0]
    assert (attempt.upstream_model, attempt.request_headers) == (None, b"")
    assert (attempt.first_byte_timeout, attempt.idle_timeout) == (120.0, 60.0)


def test_a_conversation_stays_where_it_is_and_conversations_spread():
    fleet = Fleet(3)
    homes = set()
    for talk in range(40):
        seen = set()
        for _ in range(5):
            attempt = fleet.attempt(f"conversation {talk}")
            seen.add(attempt.endpoint_name)
            attempt.close(SUCCESS)
        assert len(seen) == 1
        homes |= seen
    assert homes == {"a", "b", "c"}


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.sampled_from([1.0, 1.25, 2.0]), st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=80))
def test_no_endpoint_exceeds_the_bound(count: int, bound: float, steps: list[tuple[bool, int]]):
    fleet = Fleet(count, engine={"slots": 1000}, routing=RoutingSpec(bound=bound))
    held: list[PoolAttempt] = []
    for arrives, which in steps:
        if arrives or not held:
            attempt = fleet.attempt(f"hot {which}")
            held.append(attempt)
            loads = Counter(other.endpoint_name for other in held)
            assert loads[attempt.endpoint_name] <= -(-bound * len(held) // count)
        else:
            held.pop(which % len(held)).close(SUCCESS)


def test_one_hot_key_spills_to_the_next_on_the_ring_and_always_the_same():
    fleet = Fleet(3, engine={"slots": 100})
    first, second = fleet.attempt("hot"), fleet.attempt("hot")
    spilled = second.endpoint_name
    assert spilled != first.endpoint_name
    second.close(SUCCESS)
    again = fleet.attempt("hot")
    assert again.endpoint_name == spilled


def test_the_bound_gives_way_to_free_slots():
    fleet = Fleet(2)
    fleet.load(engines=(fleet.engines[0], EngineSpec(name="b", runtime="external", url="http://b:80", slots=10)))
    assert Counter(fleet.attempt(str(n)).endpoint_name for n in range(12)) == {"a": 2, "b": 10}


def routed(policy: str, count: int, requests: int, **options: object) -> Counter[str]:
    fleet = Fleet(count, engine={"slots": 1000}, entropy=random_entropy(), routing=RoutingSpec(policy=policy), **options)  # type: ignore[arg-type]
    return Counter(fleet.attempt(str(n)).endpoint_name for n in range(requests))


def random_entropy() -> object:
    generator = random.Random(3)

    class Entropy:
        def bytes(self, n: int) -> bytes:
            return generator.randbytes(n)

        def uniform(self) -> float:
            return generator.random()

    return Entropy()


def test_least_outstanding_fills_evenly():
    assert routed("least_outstanding", 3, 30) == {"a": 10, "b": 10, "c": 10}


def test_least_outstanding_stays_even_in_a_large_pool():
    engines = tuple(EngineSpec(name=f"e{n}", runtime="external", url=f"http://e{n}") for n in range(150))
    fleet = Fleet(1)
    model = ModelSpec(name="m", pool=tuple(e.name for e in engines), routing=RoutingSpec(policy="least_outstanding"))
    fleet.load(engines=(*fleet.engines, *engines), models=(model, ModelSpec(name="keep", pool=("a",))))
    loads = Counter(fleet.attempt().endpoint_name for _ in range(600))
    assert set(loads.values()) <= {3, 4, 5}


def test_least_outstanding_follows_weights():
    pool = (PoolMemberSpec(engine="a", weight=2), PoolMemberSpec(engine="b", weight=1))
    fleet = Fleet(2, engine={"slots": 1000}, routing=RoutingSpec(policy="least_outstanding"))
    fleet.load(models=(ModelSpec(name="m", pool=pool, routing=RoutingSpec(policy="least_outstanding")),))
    assert Counter(fleet.attempt().endpoint_name for _ in range(30)) == {"a": 20, "b": 10}


def test_least_outstanding_takes_turns_when_idle():
    fleet = Fleet(3, routing=RoutingSpec(policy="least_outstanding"))
    seen = []
    for _ in range(6):
        attempt = fleet.attempt()
        seen.append(attempt.endpoint_name)
        attempt.close(SUCCESS)
    assert Counter(seen) == {"a": 2, "b": 2, "c": 2}


def test_round_robin():
    assert routed("round_robin", 3, 9) == {"a": 3, "b": 3, "c": 3}


def test_round_robin_follows_weights():
    pool = (PoolMemberSpec(engine="a", weight=3), PoolMemberSpec(engine="b", weight=1))
    routing = RoutingSpec(policy="round_robin")
    fleet = Fleet(2, engine={"slots": 1000})
    fleet.load(models=(ModelSpec(name="m", pool=pool, routing=routing),))
    assert [fleet.attempt().endpoint_name for _ in range(8)] == list("aabaaaba")


def test_power_of_two_stays_close_to_even():
    loads = routed("power_of_two", 8, 800)
    assert max(loads.values()) - min(loads.values()) <= 12


def test_a_canary_gets_its_share_and_keeps_its_keys():
    def choices(canary: float) -> list[str]:
        pool = (PoolMemberSpec(engine="a", weight=1 - canary), PoolMemberSpec(engine="b", weight=canary))
        fleet = Fleet(2, engine={"slots": 1024})
        fleet.load(models=(ModelSpec(name="m", pool=pool, routing=RoutingSpec(policy="weighted", queue=QueueSpec(size=0))),))
        seen = []
        for n in range(2000):
            attempt = fleet.attempt(f"user {n}")
            seen.append(attempt.endpoint_name)
            attempt.close(SUCCESS)
        return seen

    five, ten = choices(0.05), choices(0.1)
    assert five.count("b") / 2000 == pytest.approx(0.05, abs=0.015)
    assert ten.count("b") / 2000 == pytest.approx(0.1, abs=0.02)
    assert all(after == "b" for before, after in zip(five, ten, strict=True) if before == "b")


def test_a_member_of_weight_zero_gets_nothing():
    fleet = Fleet(2, engine={"slots": 4})
    fleet.load(models=(ModelSpec(name="m", pool=("a", PoolMemberSpec(engine="b", weight=0))),))
    assert {fleet.attempt(str(n)).endpoint_name for n in range(4)} == {"a"}


@pytest.mark.parametrize("policy", ["consistent_hash", "least_outstanding", "power_of_two", "round_robin", "weighted"])
def test_every_policy_uses_every_slot_and_avoids_what_was_tried(policy: str):
    fleet = Fleet(3, engine={"slots": 2}, routing=RoutingSpec(policy=policy))  # type: ignore[arg-type]
    assert fleet.attempt(tried=("a", "b")).endpoint_name == "c"
    assert Counter(fleet.attempt("same").endpoint_name for _ in range(5)) == {"a": 2, "b": 2, "c": 1}
    fleet.wait()


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 8), st.integers(0, 7), st.sampled_from([1.0, 1.25, 2.0]), st.lists(st.integers(0, 30), max_size=40))
def test_when_one_fails_only_its_conversations_move_and_those_that_the_bound_moves(count: int, which: int, bound: float, busy: list[int]):
    fleet = Fleet(count, engine={"slots": 1000}, routing=RoutingSpec(bound=bound))
    talks = [f"conversation {number}" for number in range(31)]

    def home(talk: str) -> str:
        attempt = fleet.attempt(talk)
        attempt.close(SUCCESS)
        return attempt.endpoint_name

    homes = {talk: home(talk) for talk in talks}
    failing = sorted(set(homes.values()))[which % len(set(homes.values()))]
    victim = next(talk for talk in talks if homes[talk] == failing)
    for _ in range(5):
        fleet.attempt(victim).close(FAILURE)
    held = [fleet.attempt(talks[number]) for number in busy]
    loads = Counter(attempt.endpoint_name for attempt in held)
    assert loads[failing] == 0
    for talk in talks:
        now = home(talk)
        assert now != failing
        full = loads[homes[talk]] + 1 > -(-bound * (len(held) + 1) // (count - 1))
        assert now == homes[talk] or homes[talk] == failing or full, "its own endpoint had room"
