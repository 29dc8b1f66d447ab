"""The table of used proofs: each counts once for as long as it could, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Overloaded
from gateway.core.proofs import ClaimProof
from gateway.identity.replays import Replays


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def wish(clock: Clock, name: bytes, key: bytes = b"k", *, issued: float | None = None, window: float = 70.0) -> ClaimProof:
    return ClaimProof(key, name, clock.now if issued is None else issued, window, 10.0)


def test_a_proof_counts_once_for_each_key() -> None:
    clock = Clock()
    table = Replays(clock)
    assert table.claim(wish(clock, b"a")) and not table.claim(wish(clock, b"a"))
    assert table.claim(wish(clock, b"a", b"other")), "nobody uses up the names of another key"
    clock.now += 69.9
    assert not table.claim(wish(clock, b"a"))
    clock.now += 0.2
    assert table.claim(wish(clock, b"b")) and len(table) == 1, "what cannot count any more is forgotten"


def test_a_full_table_turns_away_and_one_key_does_not_fill_it() -> None:
    clock = Clock()
    table = Replays(clock, capacity=8, share=4)
    for number in range(4):
        assert table.claim(wish(clock, b"%d" % number, b"greedy"))
    with pytest.raises(Overloaded):
        table.claim(wish(clock, b"5", b"greedy"))
    for number in range(4):
        assert table.claim(wish(clock, b"%d" % number, b"k%d" % number))
    with pytest.raises(Overloaded):
        table.claim(wish(clock, b"new", b"another"))
    assert not table.claim(wish(clock, b"0", b"greedy")), "a full table still knows what was used"
    clock.now += 71
    assert table.claim(wish(clock, b"new", b"another")) and len(table) == 1


@given(st.lists(st.tuples(st.sampled_from(["claim", "wait"]), st.integers(0, 5), st.integers(0, 60), st.integers(11, 300)), max_size=60))
def test_none_counts_twice_whatever_the_window_becomes(steps: list[tuple[str, int, int, int]]) -> None:
    """A proof is claimed as a reader would: only while it is within the window that is in force."""
    clock, used, made = Clock(), set(), {}
    table = Replays(clock)
    for what, name, seconds, window in steps:
        if what == "wait":
            clock.now += seconds
            continue
        issued = made.setdefault(name, clock.now + seconds % 11)
        if not clock.now - (window - 10.0) <= issued <= clock.now + 10.0:
            continue
        fresh = table.claim(wish(clock, b"%d" % name, issued=issued, window=float(window)))
        assert not (fresh and name in used)
        if fresh:
            used.add(name)
