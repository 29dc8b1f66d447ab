"""The ring: the same everywhere, fair, and still."""

from __future__ import annotations

import random
import subprocess
import sys
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.ring import HEAVIEST, MOST, POINTS, TURN, Ring, counts_of, point_blocks

_RANDOM = random.Random(7)
KEYS = [_RANDOM.getrandbits(64) for _ in range(5_000)]


def points_of(name: str, count: int) -> list[int]:
    return [point for points in point_blocks(name, count) for point in points]


def owners(ring: Ring, names: list[str]) -> list[str]:
    return [names[ring.owner(key)] for key in KEYS]


def test_points_never_change_between_versions():
    assert points_of("chat-a", 3) == [12935839973775444372, 8540453341278595043, 12206502878112347726]
    assert points_of("chat-a", 500) == points_of("chat-a", 512)[:500]


def test_owners_never_change_between_versions():
    ring = Ring(["chat-a", "chat-b", "chat-c"], [1.0, 1.0, 1.0])
    assert "".join(str(ring.owner(key)) for key in KEYS[:40]) == "2000021022002022220121212022101001221211"


def test_another_process_with_another_hash_seed_agrees():
    code = "from gateway.routing.ring import Ring; r=Ring(['a','b','c'],[1,2,1]); print([r.owner(k<<54) for k in range(1024)])"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    ring = Ring(["a", "b", "c"], [1, 2, 1])
    assert runs == {f"{[ring.owner(k << 54) for k in range(1024)]}\n"}


def test_order_in_the_configuration_does_not_matter():
    assert owners(Ring(["x", "y", "z"], [1, 1, 1]), ["x", "y", "z"]) == owners(Ring(["z", "x", "y"], [1, 1, 1]), ["z", "x", "y"])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=12, unique=True))
def test_removing_one_moves_its_keys_and_no_others(names: list[str]):
    before = owners(Ring(names, [1.0] * len(names)), names)
    after = owners(Ring(names[1:], [1.0] * (len(names) - 1)), names[1:])
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert all(new == old for old, new in zip(before, after, strict=True) if old != names[0])
    assert moved == before.count(names[0])
    assert moved / len(KEYS) <= 1 / len(names) + 0.05


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(min_value=0.25, max_value=HEAVIEST), min_size=2, max_size=6))
def test_shares_follow_the_weights(weights: list[float]):
    names = [f"engine-{number}" for number in range(len(weights))]
    found = owners(Ring(names, weights), names)
    for name, weight in zip(names, weights, strict=True):
        assert found.count(name) / len(KEYS) == pytest.approx(weight / sum(weights), abs=0.08)


def test_a_heavier_weight_takes_keys_from_all_and_gives_none_back():
    names = ["a", "b", "c"]
    before, after = owners(Ring(names, [1, 1, 1]), names), owners(Ring(names, [2, 1, 1]), names)
    assert all(new in (old, "a") for old, new in zip(before, after, strict=True))
    assert after.count("a") > before.count("a")


def test_a_weight_of_zero_owns_nothing():
    ring = Ring(["a", "b"], [0.0, 1.0])
    assert {ring.owner(key) for key in KEYS[:1000]} == {1}
    assert list(ring.walk(KEYS[0])) == [1]


def test_large_and_small_weights_make_a_ring_of_ordinary_size():
    assert counts_of([90, 10]) == [int(POINTS * HEAVIEST), round(POINTS * HEAVIEST / 9)]
    assert counts_of([0.01, 0.02]) == [POINTS // 2, POINTS]
    assert counts_of([1000, 0.001]) == [int(POINTS * HEAVIEST), 1]


def test_a_ring_of_many_members_is_bounded_and_each_has_its_place():
    assert counts_of([1.0] * 2048) == [POINTS] * 2048
    assert counts_of([1.0] * 4096) == [POINTS // 2] * 4096
    assert counts_of([8.0] + [0.0001] * 100_000)[1] == 1
    assert sum(counts_of([HEAVIEST] * 10_000)) <= MOST * 1.01
    names = [f"engine-{number}" for number in range(20_000)]
    ring = Ring(names, [1.0] * len(names))
    assert ring.size == len(names) == len(set(ring.owners)) and len(ring.positions) <= MOST * 1.01
    assert all(ring.at(key) == bisect_right(ring.positions, key) for key in KEYS[:500])
    fewer = Ring(names[:-1], [1.0] * (len(names) - 1))
    assert all(old == new for old, new in zip(owners(ring, names), owners(fewer, names), strict=True) if old != names[-1])


def test_the_walk_meets_every_member_once_and_starts_at_the_owner():
    ring = Ring([f"e{n}" for n in range(9)], [1.0] * 9)
    for key in KEYS[:200]:
        walk = list(ring.walk(key))
        assert walk[0] == ring.owner(key)
        assert sorted(walk) == list(range(9))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(min_value=0.001, max_value=HEAVIEST), min_size=1, max_size=40), st.randoms())
def test_the_search_finds_what_a_bisection_finds(weights: list[float], random: random.Random):
    ring = Ring([f"engine-{number}" for number in range(len(weights))], weights)
    points = ring.positions[:-1]
    around = [point + step for point in random.sample(points, min(50, len(points))) for step in (-1, 0, 1)]
    for key in (0, TURN - 1, *around, *(random.getrandbits(64) for _ in range(200))):
        if 0 <= key < TURN:
            assert ring.at(key) == bisect_right(points, key)


def test_the_ends_of_the_circle_meet():
    ring = Ring(["a", "b"], [1, 1])
    assert ring.owner(2**64 - 1) == ring.owners[0] == ring.owner(0)


@pytest.mark.parametrize(("names", "weights"), [(["a", "a"], [1, 1]), (["a"], [1, 1])])
def test_a_ring_needs_distinct_names_with_weights(names: list[str], weights: list[float]):
    with pytest.raises(ValueError, match="distinct names"):
        Ring(names, weights)


def test_an_empty_ring_walks_nowhere():
    assert list(Ring([], []).walk(1)) == []
