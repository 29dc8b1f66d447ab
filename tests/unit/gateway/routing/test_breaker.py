"""The breaker as a table of dialogues, and as what holds whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.specs import BreakerSpec
from gateway.routing.breaker import Breaker

SPEC = BreakerSpec(failures=3, open_for=1.0, open_max=8.0)


def play(breaker: Breaker, events: str, now: float = 100.0) -> str:
    """s success, f failure, n neutral, r tripped, a admitted, d due (when its time is over). Returns each state's first letter."""
    states = []
    for event in events.split():
        match event:
            case "s":
                breaker.success(breaker.epoch)
            case "f":
                breaker.failure(breaker.epoch, now)
            case "n":
                breaker.neutral(breaker.epoch)
            case "r":
                breaker.trip(now)
            case "a":
                assert breaker.admits
                breaker.admitted()
            case "d":
                breaker.due(breaker.until)
        states.append(breaker.state[0])
    return "".join(states)


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ("f f f", "cco"),
        ("f f s f f", "ccccc"),
        ("f n f n f", "cccco"),
        ("r", "o"),
        ("f f f d", "ccoh"),
        ("r d a s", "ohhc"),
        ("r d a f", "ohho"),
        ("r d a n a s", "ohhhhc"),
        ("r d r", "oho"),
        ("r d a s f f", "ohhccc"),
        ("r r", "oo"),
    ],
)
def test_transitions(events: str, states: str):
    assert play(Breaker(SPEC), events) == states


def test_half_open_admits_one_probe():
    breaker = Breaker(SPEC)
    play(breaker, "r d")
    assert breaker.admits
    breaker.admitted()
    assert not breaker.admits


def test_it_is_due_only_after_its_time():
    breaker = Breaker(SPEC)
    breaker.trip(100.0)
    assert not breaker.due(100.99)
    assert breaker.due(101.0)


def test_openings_get_longer_up_to_a_maximum_and_short_again_after_a_good_while():
    breaker, now, lasted = Breaker(SPEC), 100.0, []
    for _ in range(6):
        breaker.trip(now)
        lasted.append(breaker.until - now)
        now = breaker.until
        breaker.due(now)
    assert lasted == [1, 2, 4, 8, 8, 8]
    breaker.success(breaker.epoch)
    breaker.trip(now + 8.1)
    assert breaker.until == now + 9.1


def test_an_answer_that_was_under_way_when_it_opened_does_not_close_it():
    breaker = Breaker(SPEC)
    old = breaker.epoch
    play(breaker, "f f f")
    assert not breaker.success(old)
    play(breaker, "d")
    assert not breaker.success(old)
    assert breaker.state == "half_open"


def test_a_late_failure_does_not_reopen_it():
    breaker = Breaker(SPEC)
    old = breaker.epoch
    play(breaker, "f f f d a s")
    assert not breaker.failure(old, 200.0)
    assert breaker.failures == 0


def test_operators_override():
    breaker = Breaker(SPEC)
    breaker.forced = "open"
    assert not breaker.admits
    breaker.forced = "closed"
    play(breaker, "r")
    assert breaker.admits
    assert breaker.effective == "closed"
    breaker.forced = None
    assert breaker.effective == "open"


def test_a_new_process_starts_clean():
    breaker = Breaker(SPEC)
    play(breaker, "r d r")
    assert breaker.reset()
    assert (breaker.state, breaker.openings, breaker.failures) == ("closed", 0, 0)
    assert not breaker.reset()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["s", "f", "n", "r", "d"]), max_size=60), st.integers(1, 5))
def test_it_opens_after_the_configured_number_of_consecutive_failures_at_the_latest(events: list[str], limit: int):
    breaker, streak = Breaker(BreakerSpec(failures=limit)), 0
    for event in events:
        before = breaker.state
        play(breaker, event)
        streak = streak + 1 if event == "f" and before == "closed" else 0 if event == "s" or before != breaker.state else streak
        assert breaker.failures < limit
        if breaker.state == "closed":
            assert streak < limit
