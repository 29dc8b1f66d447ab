"""The vectors of kept answers: the nearest is found, within its bucket alone, and goes with its answer."""

from __future__ import annotations

from math import cos, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caches.near import NearAnswers, Vector, unit

BUCKET, DOMAIN = b"bucket", b"domain"


def at(angle: float) -> Vector:
    """A direction in a plane of 64 dimensions."""
    made = unit([cos(angle) * (1 + n % 3) + sin(angle) * (-1) ** n for n in range(64)])
    assert made is not None
    return made


def anything(question: str) -> bool:
    return True


def filled(*angles: float, most: int = 100) -> NearAnswers[str]:
    near: NearAnswers[str] = NearAnswers(most)
    for number, angle in enumerate(angles):
        near.add(b"%d" % number, "acme", DOMAIN, BUCKET, at(angle), f"q{number}", f"r{number}", 50)
    return near


def test_the_nearest_one_is_found_with_its_likeness() -> None:
    near = filled(0.0, 0.4, 0.8)
    found = near.find(BUCKET, at(0.41), 0.9, anything)
    assert found is not None
    assert (found.key, found.source) == (b"1", "r1")
    assert 0.999 < found.similarity <= 1.0 + 1e-9
    assert near.find(BUCKET, at(0.41), 0.9, lambda question: question != "q1") != found
    assert near.find(BUCKET, at(2.5), 0.9, anything) is None
    assert near.find(b"another", at(0.41), 0.0, anything) is None
    assert near.find(BUCKET, unit([1.0] * 8) or (), 0.0, anything) is None


def test_a_domain_and_all_have_bounds_and_the_oldest_goes() -> None:
    near: NearAnswers[str] = NearAnswers(5)
    for number in range(4):
        near.add(b"a%d" % number, "acme", b"one", b"b1", at(number), "", "", 3)
    assert len(near) == 3
    for number in range(4):
        near.add(b"b%d" % number, "globex", b"two", b"b2", at(number), "", "", 10)
    assert len(near) == 5
    left = near.find(b"b1", at(0), -1.0, anything)
    assert left is not None and left.key == b"a3"


def test_what_is_replaced_dropped_or_purged_leaves_nothing() -> None:
    near = filled(0.0, 0.4)
    near.add(b"0", "acme", DOMAIN, BUCKET, at(2.0), "", "later", 50)
    assert len(near) == 2
    found = near.find(BUCKET, at(2.0), 0.9, anything)
    assert found is not None and found.source == "later"
    near.purge(tenant="globex")
    near.purge(tenant="globex", key=b"0")
    assert len(near) == 2
    near.purge(tenant="acme", key=b"0")
    near.drop(b"never there")
    assert len(near) == 1
    near.keep(frozenset({"acme"}))
    assert near.any(BUCKET)
    near.keep(frozenset({"globex"}))
    assert (len(near), near.any(BUCKET)) == (0, False)
    near = filled(0.0, 0.4)
    near.purge()
    assert (len(near), near.any(BUCKET)) == (0, False)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.floats(0, 3)), max_size=30), st.floats(0, 3))
def test_nobody_finds_what_is_in_another_bucket(given_: list[tuple[str, int, float]], angle: float) -> None:
    near: NearAnswers[str] = NearAnswers(20)
    for number, (tenant, user, where) in enumerate(given_):
        domain = f"{tenant}{user}".encode()
        near.add(b"%d" % number, tenant, domain, domain, at(where), tenant, f"{tenant}{user}", 4)
        for other in "abc":
            for each in range(4):
                found = near.find(f"{other}{each}".encode(), at(angle), -1.0, anything)
                assert found is None or found.source == f"{other}{each}"
    near.purge(tenant="a")
    assert not any(near.any(f"a{each}".encode()) for each in range(4))


def test_vectors_without_a_direction_are_none() -> None:
    assert unit([0.0, 0.0]) is None
    assert unit([]) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e154, -1e308, 10**400])
def test_numbers_that_are_none_or_too_large_are_an_error(number: float) -> None:
    with pytest.raises(ValueError, match="infinite, none or too large"):
        unit([number, number, 1.0])
