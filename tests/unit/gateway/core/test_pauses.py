"""How long this process stood still."""

from __future__ import annotations

import pytest

from gateway.core.pauses import LONGEST_REST_SECONDS, STALL, Pauses, slept


@pytest.mark.parametrize(("took", "found"), [(0.0, 0.0), (2.0, 0.0), (2.0 + STALL, 0.0), (17.0, 15.0)])
def test_what_takes_far_longer_than_it_can_was_held_up_by_a_pause(took: float, found: float) -> None:
    assert slept(100.0, 2.0, 100.0 + took) == found


def test_each_pause_is_told_once() -> None:
    pauses = Pauses(0.5, 100.0)
    assert [pauses.since(now) for now in (100.5, 101.0, 116.5, 117.0, 117.0)] == [0.0, 0.0, 15.0, 0.0, 0.0]


PERIOD = 0.5


def looks(*after: float) -> list[tuple[float, bool]]:
    """What each look finds that comes so many seconds after the one before: how long it stood still, and whether it rests."""
    now = 100.0
    pauses, found = Pauses(PERIOD, now), []
    for seconds in after:
        now += seconds
        found.append((pauses.since(now), pauses.resting(now)))
    return found


def test_after_a_pause_it_rests_for_as_long_and_not_for_ever() -> None:
    assert looks(PERIOD + 3.0, *[PERIOD] * 7) == [(3.0, True), *[(0.0, True)] * 5, *[(0.0, False)] * 2]
    assert looks(1000.0 + PERIOD, *[PERIOD] * 30) == [(1000.0, True), *[(0.0, True)] * 29, (0.0, False)]


def test_a_pause_soon_after_another_one_counts_as_much() -> None:
    """During a rest, and as soon as one look has judged."""
    assert looks(PERIOD + 3.0, PERIOD, PERIOD + 20.0, *[PERIOD] * 30)[2:] == [(20.0, True), *[(0.0, True)] * 29, (0.0, False)]
    assert looks(PERIOD + 3.0, *[PERIOD] * 6, PERIOD + 4.0, *[PERIOD] * 8)[6:] == [
        (0.0, False),
        (4.0, True),
        *[(0.0, True)] * 7,
        (0.0, False),
    ]
    assert looks(PERIOD + 15.0, PERIOD, PERIOD + 2.0, *[PERIOD] * 29)[2:] == [(2.0, True), *[(0.0, True)] * 28, (0.0, False)], (
        "what was left"
    )


@pytest.mark.parametrize("every", [1.6, 3.0, 16.0, 60.0])
def test_a_process_that_is_late_all_the_time_judges_still(every: float) -> None:
    found = looks(*[every] * 200)
    assert found[0] == (pytest.approx(every - PERIOD), True)
    longest = max(len(run) for run in "".join(str(int(rests)) for _, rests in found).split("0"))
    assert (longest - 1) * every <= LONGEST_REST_SECONDS
    assert all(rests or not stood for stood, rests in found)


def test_what_was_not_looked_at_is_no_pause() -> None:
    pauses = Pauses(PERIOD, 100.0)
    pauses.begin(900.0)
    assert pauses.since(901.0) == 0.0 and not pauses.resting(901.0)
