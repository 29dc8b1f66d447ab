"""The automaton against Python's `re`, and its bound."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.guardrails.recognition import automaton as module
from policies.guardrails.recognition.automaton import Automaton
from policies.guardrails.recognition.bounded import bounded

PATTERNS = ("ab?c", "a{1,3}b{0,2}", "(?:ab|a)(?:c|bcd){1,2}", "[a-c]{2,5}", "(?:a?b){2,4}", "x(?: ?[ab]){2,3}", "[^0]b", "(?:aa|a){3}c?")
EACH = [Automaton([bounded(pattern)]) for pattern in PATTERNS]
ALL = Automaton([bounded(pattern) for pattern in PATTERNS])
texts = st.text("abcdxAB ", max_size=14)


def longest(automaton: Automaton, text: str, place: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for numbers, end in automaton.ends(text.encode(), place, len(text)):
        for number in numbers:
            found[number] = end
    return found


def expected(pattern: str, text: str, place: int) -> int:
    """The longest match that begins there, or -1."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return max((end for end in range(place + 1, len(text) + 1) if compiled.fullmatch(text, place, end)), default=-1)


@settings(deadline=None)
@given(texts, st.integers(0, 13))
def test_it_finds_what_re_finds_alone_and_together(text: str, place: int) -> None:
    place = min(place, len(text))
    wanted = {number: end for number, pattern in enumerate(PATTERNS) if (end := expected(pattern, text, place)) >= 0}
    assert longest(ALL, text, place) == wanted
    for number, automaton in enumerate(EACH):
        assert longest(automaton, text, place).get(0, -1) == wanted.get(number, -1)


@settings(deadline=None)
@given(texts)
def test_open_is_what_more_text_could_lengthen(text: str) -> None:
    data = text.encode()
    if not data:
        return
    more = [a + b for a in " abcdx" for b in ("", *"abcdx ", "ab", "bcd", "bb", "aac", "bab", "bbb")]
    for number, pattern in enumerate(PATTERNS):
        now = expected(pattern, text, 0)
        grows = any(expected(pattern, text + rest, 0) > max(now, len(text)) for rest in more)
        if grows or now == len(text):
            assert number in ALL.open(data, 0, len(data))


@settings(deadline=None)
@given(texts, st.integers(0, 13))
def test_undecided_is_what_is_open_where_nothing_has_matched(text: str, place: int) -> None:
    data, place = text.encode(), min(place, len(text))
    matches = any(expected(pattern, text[:end], place) >= 0 for pattern in PATTERNS for end in range(place + 1, len(text) + 1))
    found = ALL.undecided(data, place, len(data))
    assert found is None if matches else found == ALL.open(data, place, len(data))


def test_where_a_pattern_begins() -> None:
    begins = Automaton([bounded("[ab]c"), bounded("x?y")]).begins
    assert {chr(code) for code in range(256) if begins[code]} == set("abxyABXY")


def test_states_are_bounded_and_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STATES", 3)
    small = Automaton([bounded(pattern) for pattern in PATTERNS])
    for text in ("abcbcd", "aabb", "x a b", "bcabc", "aac") * 3:
        assert longest(small, text, 0) == longest(ALL, text, 0)
        assert len(small._states) <= 4


@pytest.mark.parametrize("pattern", ["a[a-z0-9]{0,500}", "a[a-z0-9]{17,500}", "x(?:ab?){1,100}c{0,64}", "a(?:a|b{2,90}){0,5}"])
def test_what_is_repeated_has_few_ways_to_go_on(pattern: str) -> None:
    """A state costs as much to build as its members have ways to go on, and a text can ask for a state with each of its characters."""
    automaton = Automaton([bounded(pattern)])
    data = b"a" + bytes(97 + place % 2 for place in range(90))
    state = automaton._start
    for code in data:
        state = state.next[automaton._classes[code]] or automaton._built(state, automaton._classes[code])
        assert sum(len(automaton._follow[member]) for member in state.members) <= 300
