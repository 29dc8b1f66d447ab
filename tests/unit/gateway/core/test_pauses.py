"""How long this process stood still."""

from __future__ import annotations

import pytest

from gateway.core.pauses import STALL, Pauses, slept


@pytest.mark.parametrize(("took", "found"), [(0.0, 0.0), (2.0, 0.0), (2.0 + STALL, 0.0), (17.0, 15.0)])
def test_what_takes_far_longer_than_it_can_was_held_up_by_a_pause(took: float, found: float) -> None:
    assert slept(100.0, 2.0, 100.0 + took) == found


def test_each_pause_is_told_once() -> None:
    pauses = Pauses(0.5, 100.0)
    assert [pauses.since(now) for now in (100.5, 101.0, 116.5, 117.0, 117.0)] == [0.0, 0.0, 15.0, 0.0, 0.0]


def test_who_is_late_all_the_time_stands_still_for_no_more_than_one_pause_in_a_while() -> None:
    pauses = Pauses(0.5, 0.0)
    told = [pauses.since(3.0 * number) for number in range(1, 101)]
    assert sum(told) == 2.5 * len([one for one in told if one]) and told.count(2.5) == 5
