"""A clock that is set forward, back, or drifts."""

from __future__ import annotations

from gateway.audit.clock_jump import PATIENCE, ClockJumpDetector
from gateway.core.clock import FakeClock

DAY = 86400.0


def test_a_clock_that_goes_on_has_not_jumped_whatever_time_passes() -> None:
    clock = FakeClock()
    detector = ClockJumpDetector(clock)
    for _ in range(100):
        clock.advance(30 * DAY)
        clock.step(1800.0)  # set right now and then
        assert not detector.jumped


def test_a_clock_that_was_set_forward_counts_again_after_a_day_or_once_it_is_set_back() -> None:
    clock = FakeClock()
    detector = ClockJumpDetector(clock)
    clock.step(400 * DAY)
    assert detector.jumped and detector.gained == 400 * DAY
    clock.advance(PATIENCE - 1)
    assert detector.jumped
    clock.advance(1)
    assert not detector.jumped and not detector.jumped
    clock.step(2 * DAY)
    assert detector.jumped and detector.gained == 2 * DAY
    clock.step(-2 * DAY)
    assert not detector.jumped and detector.gained == 0.0


def test_a_clock_that_was_set_back_is_taken_as_it_is() -> None:
    clock = FakeClock()
    detector = ClockJumpDetector(clock)
    clock.step(-30 * DAY)
    assert not detector.jumped
    clock.step(30 * DAY)
    assert detector.jumped, "which of the two was wrong, nobody can tell"
