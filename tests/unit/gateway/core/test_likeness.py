"""How alike texts are found to be."""

from __future__ import annotations

import pytest

from gateway.core.likeness import MOST_WORDS, likeness
from tests.steady import at_most, spent


@pytest.mark.parametrize(
    ("one", "other", "least", "most"),
    [
        ("", "", 1.0, 1.0),
        ("", "word", 0.0, 0.0),
        ("The capital is Paris.", "the  capital is\nPARIS!", 1.0, 1.0),
        ("\u00e9t\u00e9", "e\u0301te\u0301", 1.0, 1.0),
        ("The capital is Paris.", "The capital is Lyon.", 0.5, 0.9),
        ("one two three four", "four three two one", 0.5, 0.6),
        ("apples and pears", "nothing of this here", 0.0, 0.0),
    ],
)
def test_words_and_their_order_count_and_nothing_else(one: str, other: str, least: float, most: float) -> None:
    assert least <= likeness(one, other) <= most
    assert likeness(one, other) == likeness(other, one)


def test_long_texts_cost_no_more_than_their_first_words() -> None:
    def compare() -> None:
        assert likeness("word " * MOST_WORDS * 100, "word " * MOST_WORDS * 100) == 1.0
        likeness("x" * 5_000_000, "y" * 5_000_000)

    at_most(2.0, lambda: spent(compare))
