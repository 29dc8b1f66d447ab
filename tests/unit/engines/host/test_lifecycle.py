"""The table of a sidecar's life: complete, closed, and without a way back from the dead but `start`."""

from __future__ import annotations

from typing import get_args

import pytest

from engines.host.lifecycle import BACKOFF_MAX, TABLE, Event, IllegalTransition, State, backoff, next_state

STATES, EVENTS = get_args(State), get_args(Event)
IMPOSSIBLE = {
    *((state, "start") for state in ("starting", "loading", "ready", "draining")),
    *((state, "adopt") for state in ("starting", "loading", "ready", "draining", "failed")),
    *((state, "loading") for state in ("stopped", "ready", "draining", "failed")),
    *((state, "ready") for state in ("stopped", "draining", "failed")),
    ("stopped", "failed"),
    ("failed", "failed"),
}


def test_the_table_knows_only_states_and_events() -> None:
    assert {state for state, _ in TABLE} <= set(STATES)
    assert {event for _, event in TABLE} <= set(EVENTS)
    assert set(TABLE.values()) <= set(STATES)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_pair_is_decided(state: State, event: Event) -> None:
    if (state, event) in IMPOSSIBLE:
        with pytest.raises(IllegalTransition, match=f"{state} cannot take {event}"):
            next_state(state, event)
    else:
        assert next_state(state, event) == TABLE[state, event]


def test_the_process_may_end_in_every_state() -> None:
    """Nobody asks before a process dies; `draining` and `stopped` expect it, all others have failed."""
    assert {state: next_state(state, "exited") for state in STATES} == {
        "stopped": "stopped", "starting": "failed", "loading": "failed", "ready": "failed", "draining": "stopped", "failed": "failed",
    }  # fmt: skip


def test_a_drain_may_come_in_every_state_and_leads_to_an_end() -> None:
    for state in STATES:
        assert next_state(next_state(state, "drain"), "exited") == "stopped"


def test_every_state_is_reached_from_stopped_and_leads_back() -> None:
    def reach(start: State) -> set[State]:
        found: set[State] = {start}
        while True:
            more = {after for (before, _), after in TABLE.items() if before in found} - found
            if not more:
                return found
            found |= more

    for state in STATES:
        assert reach(state) == set(STATES)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (20, 30.0), (10**9, 30.0)])
def test_the_pause_grows_to_its_bound(failures: int, seconds: float) -> None:
    assert backoff(failures) == seconds <= BACKOFF_MAX


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.5), (7, 32.0), (10, 256.0), (11, 300.0), (10**9, 300.0)])
def test_one_that_only_crashes_waits_longer(failures: int, seconds: float) -> None:
    assert backoff(failures, crashing=True) == seconds
