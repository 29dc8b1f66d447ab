"""The time of refusals: drawn from checks of late, never before nearly all of them, and shaped by no single account."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.pace import ACCOUNTS, ENOUGH, FIRST_SECONDS, Pace

MOST = 5.0
LITTLE = 0.001


def longest(known: Sequence[float]) -> float:
    return max(known)


def took(pace: Pace, seconds: float, checked: bool) -> float:
    return pace.answer(pace.busy(seconds, checked))


@pytest.mark.parametrize("seconds", [0.0, LITTLE, 0.3])
def test_before_anything_is_known_all_take_the_same(seconds: float) -> None:
    pace = Pace(MOST)
    assert took(pace, seconds, True) == took(pace, seconds, False) == FIRST_SECONDS


def test_the_first_slow_check_holds_for_all() -> None:
    pace = Pace(MOST)
    pace.wrong("alice", 2.0)
    assert took(pace, LITTLE, False) == took(pace, 1.9, True) == 2.0


def test_right_passwords_count_until_there_are_enough_wrong_ones() -> None:
    pace = Pace(MOST, longest)
    for number in range(ENOUGH):
        pace.right(f"user{number}", 0.9)
    assert took(pace, LITTLE, False) == 0.9
    for number in range(ENOUGH):
        pace.wrong(f"user{number}", 0.7)
    assert took(pace, LITTLE, False) == 0.7


def test_what_a_refusal_holds_is_what_a_check_would() -> None:
    pace = Pace(MOST, lambda known: known[0])
    for number in range(ENOUGH):
        pace.wrong(f"user{number}", float(number + 1) / 8)
    assert pace.busy(LITTLE, checked=False) == 0.125, "its place among the logins"
    assert pace.busy(LITTLE, checked=True) == LITTLE
    assert pace.answer(0.125) == pace.answer(LITTLE) == 1.0, "the answer"
    assert pace.answer(1.5) == 1.5, "what took longer is not held up"


def test_nobody_shapes_the_times_by_one_name() -> None:
    pace = Pace(MOST)
    for number in range(ENOUGH):
        pace.wrong(f"user{number}", 0.4)
    for _ in range(10 * ACCOUNTS):
        pace.wrong("mallory", LITTLE)
    assert took(pace, LITTLE, False) == 0.4


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0.0, 60.0), st.booleans()), max_size=300), st.floats(0.0, MOST), st.booleans())
def test_it_is_bounded_and_never_early(checks: list[tuple[int, float, bool]], seconds: float, checked: bool) -> None:
    pace = Pace(MOST)
    for account, each, right in checks:
        (pace.right if right else pace.wrong)(str(account), each)
    assert seconds <= pace.busy(seconds, checked) <= took(pace, seconds, checked) <= MOST
    assert len(pace._wrong) <= ACCOUNTS and len(pace._right) <= ACCOUNTS
