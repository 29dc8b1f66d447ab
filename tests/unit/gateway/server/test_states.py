"""The tables of a connection's states: complete, and held against the comment that explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server import states
from gateway.server.states import ANSWERING, LIFE, NO, READING, SHIFT, IllegalTransition, after

SOURCE = Path(__file__).parents[4] / "gateway" / "server" / "states.py"
"""Read as text: a compiled module has no docstring."""
MACHINES = {
    "READING": (READING, states.ROWS_READING, ["BETWEEN", "HEAD", "UPGRADE", "BODY", "OVER"], "OVER"),
    "ANSWERING": (ANSWERING, states.ROWS_ANSWERING, ["NOTHING", "READY", "STARTING", "SERVING", "GONE"], "GONE"),
    "LIFE": (LIFE, states.ROWS_LIFE, ["OPEN", "DRAINING", "LINGERING", "CLOSING", "LOST"], "LOST"),
}


def documented(machine: str, names: list[str]) -> list[list[str]]:
    """The rows of a machine's table in the module's docstring: for each state, where each event leads ("" is illegal)."""
    text = SOURCE.read_text(encoding="utf-8").partition(f"\n{machine}: ")[2]
    header = next(line for line in text.splitlines() if line.startswith("    state "))
    columns = [m.start() for m in re.finditer(r"\S+", header)][1:]
    rows = []
    for name in names:
        line = next(line for line in text.splitlines() if line.startswith(f"    {name} "))
        ends = [*columns[1:], columns[-1] + 9]
        rows.append([line[a:b].strip() for a, b in zip(columns, ends, strict=True)])
    return rows


@pytest.mark.parametrize("machine", MACHINES)
def test_the_comment_says_what_the_table_does(machine: str) -> None:
    _, rows, names, _ = MACHINES[machine]
    assert documented(machine, names) == [["" if state == NO else names[state] for state in row] for row in rows]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_names_are_the_numbers_of_the_rows(machine: str) -> None:
    _, rows, names, _ = MACHINES[machine]
    assert [getattr(states, name) for name in names] == list(range(len(rows)))


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_the_last_one_is_never_left(machine: str) -> None:
    _, rows, names, last = MACHINES[machine]
    reached, frontier = {0}, [0]
    while frontier:
        for state in rows[frontier.pop()]:
            if state != NO and state not in reached:
                reached.add(state)
                frontier.append(state)
    assert reached == set(range(len(rows)))
    assert set(rows[names.index(last)]) <= {names.index(last), NO}


@given(st.sampled_from(sorted(MACHINES)), st.lists(st.integers(0, 4), max_size=30))
def test_an_event_leads_to_a_state_or_is_an_error(machine: str, events: list[int]) -> None:
    transitions, rows, _, _ = MACHINES[machine]
    state = 0
    for event in events:
        allowed = rows[state][event] if event < len(rows[state]) else NO
        if allowed == NO:
            with pytest.raises(IllegalTransition):
                after(transitions, state, event)
        else:
            state = after(transitions, state, event)
            assert state == allowed < len(transitions) >> SHIFT
