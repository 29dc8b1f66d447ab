"""The log's states, and what a recovery tells."""

import pytest

from gateway.audit.fault import BROKEN, CLOSED, ENDED, FAILED, HUNG, NEW, OPEN, STARTED, TRANSITIONS, TRIED, TRYING, WRITTEN, Fault
from gateway.core.clock import FakeClock

STATES = (NEW, OPEN, BROKEN, TRYING, CLOSED)
EVENTS = (STARTED, FAILED, HUNG, TRIED, WRITTEN, ENDED)


def reached(*events: str) -> Fault:
    fault = Fault(FakeClock())
    for event in events:
        fault.happened(event)
    return fault


WAYS = {NEW: (), OPEN: (STARTED,), BROKEN: (STARTED, FAILED), TRYING: (STARTED, FAILED, TRIED), CLOSED: (STARTED, ENDED)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_leads_where_the_table_says_or_nowhere(state: str, event: str) -> None:
    fault = reached(*WAYS[state])
    assert fault.state == state
    fault.happened(event)
    assert fault.state == TRANSITIONS.get((state, event), state)


def test_only_an_open_log_has_no_reason() -> None:
    fault = Fault(FakeClock())
    assert fault.reason == "not started"
    fault.happened(STARTED)
    assert fault.reason is None
    fault.broke(FAILED, "no space")
    fault.broke(HUNG, "it hangs")
    assert fault.reason == "no space", "the first one"
    fault.trial()
    assert fault.reason == "no space"
    fault.recovered()
    assert fault.reason is None
    fault.end()
    assert (fault.state, fault.reason) == (CLOSED, "closed")


def test_a_trial_that_hangs_may_still_succeed() -> None:
    fault = reached(STARTED, FAILED, TRIED)
    fault.broke(HUNG, "it hangs")
    assert fault.state == TRYING


def test_a_recovery_tells_what_was_lost_since_the_last_one() -> None:
    fault = reached(STARTED)
    fault.broke(FAILED, "no space")
    fault.refused += 3
    fault.lose(2)
    assert not fault.silent
    first = fault.trial()
    fault.refused += 1  # while it is tried
    fault.recovered()
    assert (first["reason"], first["refused_intents"], first["lost_records"]) == ("no space", 3, 2) and fault.silent
    fault.broke(FAILED, "again")
    assert (fault.trial()["refused_intents"], fault.refused, fault.lost) == (1, 4, 2)


def test_a_trial_that_fails_tells_the_same_the_next_time() -> None:
    fault = reached(STARTED)
    fault.broke(FAILED, "no space")
    fault.refused += 3
    first = fault.trial()
    fault.broke(FAILED, "still none")
    assert fault.trial() == first
