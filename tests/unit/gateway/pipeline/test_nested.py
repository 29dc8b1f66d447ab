"""What JSON inside of texts says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.pipeline.nested import LEVELS, decoded


@pytest.mark.parametrize("text", ["plain", "a\\nb", '{"a": "plain"}', '{"a": 1e999}', '{"a": "broken \\u0041', "\\u0041", ""])
def test_what_stands_there_is_not_read_again(text: str) -> None:
    assert decoded([text]) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": "bob\\u0040example.com"}', ["bob@example.com", "a"]),
        (' ["red\\nfalcon", "b"]', ["red\nfalcon"]),
        ('{"\\u0061": "x"}', ["x", "a"]),
        ('{"a": "x\\u0041", "a": "y"}', ["y", "a", "xA", "a"]),
        ('"\\u0041"', ["A"]),
        ('{"a\\"b": 1}', ['a"b']),
    ],
)
def test_strings_are_decoded(text: str, found: list[str]) -> None:
    assert decoded(["first", text]) == found


@given(st.text(st.sampled_from('ab@\u00e9\u200b\n"\\'), max_size=8), st.integers(1, 5))
def test_a_string_is_found_at_every_level(text: str, levels: int) -> None:
    written = f"{text}@\u00e9"
    for _ in range(levels):
        written = json.dumps({"k": written})
    assert f"{text}@\u00e9" in decoded([written])


def test_too_many_levels_are_refused() -> None:
    written = "\u00e9"
    for _ in range(LEVELS + 2):
        written = json.dumps([written])
    with pytest.raises(GuardrailViolation, match="JSON within JSON more than 8 times"):
        decoded([written])


def test_json_that_is_too_deep_to_be_read_is_refused() -> None:
    with pytest.raises(GuardrailViolation, match="nested too deeply"):
        decoded(['"\\u0041"', "[" * 200_000 + '"\\u0041"' + "]" * 200_000])
