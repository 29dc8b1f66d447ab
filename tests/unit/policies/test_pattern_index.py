"""Of many patterns, those that a name fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.pattern_index import PatternIndex
from policies.patterns import matches

TEXTS = st.text("ab*-", max_size=5)


@given(st.lists(TEXTS, max_size=12), st.text("ab-*", max_size=6))
def test_it_finds_what_looking_at_all_finds(patterns: list[str], name: str) -> None:
    assert list(PatternIndex(patterns).fits(name)) == [number for number, pattern in enumerate(patterns) if matches(pattern, name)]


def test_the_order_is_that_of_the_patterns() -> None:
    assert list(PatternIndex(["a*", "ab", "b", "*", "ab*", "ab"]).fits("ab")) == [0, 1, 3, 4, 5]
