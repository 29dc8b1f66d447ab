"""The table of a worker's life, and the pauses after quick deaths."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.workers.states import LIVE, MAX_PAUSE, QUICK_DEATHS, STATES, TABLE, Event, State, after, pause


def test_every_state_is_reached_and_the_last_ones_have_no_way_on() -> None:
    assert {"starting", *TABLE.values()} == set(STATES) == set(get_args(State))
    assert {state for state, _ in TABLE} == set(STATES) - {"gone", "failed"}


def test_a_process_may_end_at_any_time() -> None:
    for state in ("starting", "ready", "draining"):
        assert after(state, "die") == "failed"  # type: ignore[arg-type]  # a plain text is no Literal


@pytest.mark.parametrize("event", get_args(Event))
def test_what_is_over_stays_over(event: Event) -> None:
    for state in ("gone", "failed"):
        with pytest.raises(ValueError, match=f"{state} cannot {event}"):
            after(state, event)  # type: ignore[arg-type]  # as above


def test_only_who_was_asked_to_finish_ends_well() -> None:
    assert [state for (state, event) in TABLE if event == "end"] == ["draining"]
    assert {"starting", "ready"} == LIVE


@given(st.integers(0, 10_000))
def test_pauses_begin_after_several_deaths_grow_and_are_bounded(deaths: int) -> None:
    assert (pause(deaths) == 0.0) == (deaths < QUICK_DEATHS)
    assert pause(deaths) <= pause(deaths + 1) <= MAX_PAUSE
