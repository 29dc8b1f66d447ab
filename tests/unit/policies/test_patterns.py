"""Patterns of names with `*`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.patterns import matches, within


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("demo-*", "demo-chat", True),
        ("demo-*", "demo-", True),
        ("demo-*", "demo", False),
        ("demo-chat", "demo-chat2", False),
        ("*-chat", "demo-chat", True),
        ("a*a", "a", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("demo.chat", "demoxchat", False),
        ("d[e]mo", "demo", False),
        ("?", "a", False),
        ("Demo", "demo", False),
    ],
)
def test_examples(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


@settings(deadline=None)
@given(st.text("ab*.", max_size=8), st.text("ab.", max_size=10))
def test_the_same_as_a_regular_expression(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert matches(pattern, name) is (re.fullmatch(expression, name, re.DOTALL) is not None)


def test_many_stars_take_linear_time() -> None:
    """Whoever tries each way to share the letters out among the stars never ends."""
    assert not matches("a*" * 1000 + "c*b", "a" * 10_000 + "b")
    assert matches("a*" * 1000 + "b", "a" * 10_000 + "b")


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("*", "a", True),
        ("*", "a@1", True),
        ("a*", "ab@1", True),
        ("a*", "b@1", False),
        ("*-small", "big@x-small", False),
        ("a@1", "a@1", True),
        ("a@1*", "a@1*", True),
        ("a@1", "a", False),
        ("*@*", "a", False),
        ("a@1", "a@2", False),
        ("*@1", "b@x@1", True),
    ],
)
def test_what_a_pattern_of_models_may_hand_on(outer: str, inner: str, expected: bool) -> None:
    assert within(outer, inner) is expected
