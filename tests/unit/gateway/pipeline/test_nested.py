"""What JSON inside of texts says."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.core.slices import at_once
from gateway.pipeline import nested
from gateway.pipeline.nested import AT_ONCE, LEVELS
from tests.steady import at_most, uncollected

LONG = " " * AT_ONCE


def decoded(texts: Sequence[str]) -> list[str]:
    return at_once(nested.decoded(texts))


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


def test_json_that_is_too_deep_to_be_parsed_is_refused_or_read() -> None:
    with pytest.raises(GuardrailViolation, match="nested too deeply"):
        decoded(['"\\u0041"', "[" * 4_000 + '"\\u0041"' + "]" * 4_000])
    assert decoded(["[" * 200_000 + '"\\u0041"' + "]" * 200_000]) == ["A"]


@given(
    st.recursive(
        st.integers() | st.floats(allow_nan=False) | st.text(st.sampled_from('ab@,:[]{}\u00e9\U0001f600\u200b\n"\\\\'), max_size=12),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a"\u00e9'), max_size=3), inner, max_size=4),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_a_long_text_has_the_strings_of_a_short_one(value: Any, plain: bool) -> None:
    written = json.dumps(value, ensure_ascii=plain)
    short = decoded([f"[{written}]"])
    coded = [one for one in short if json.dumps(one, ensure_ascii=plain)[1:-1] != one]
    assert sorted(decoded([f"{LONG}[{written}]"])) == sorted(coded)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1023, 1024, 1025, 5000, 70_000])
def test_a_long_string_is_decoded_whole(size: int) -> None:
    for said in ("\U0001f600" * size, "x" + "\U0001f600" * size, "\n" * size, "a" * size + "\n", "\\\\" * size):
        for outside in ("", "0" * 3000 + ","):
            assert decoded([f"{LONG}[{outside}{json.dumps(said)}, 1]"])[:1] == [said]


@pytest.mark.parametrize("text", ['["a\\u00', '["a\\', '["\\x", 1]', '["\\uZZZZ"]', "[" + "9" * 5000 + '\\"]', '["\\n'])
def test_what_is_broken_is_not_decoded(text: str) -> None:
    assert decoded([LONG + text]) == []


HOSTILE = {
    "numbers": '["\\n",' + "1," * 2_000_000 + "1]",
    "strings": '["\\u0041",' + '"a",' * 1_000_000 + "1]",
    "strings with escapes": "[" + '"\\n",' * 800_000 + "1]",
    "one string": '"' + "\\n" * 2_000_000 + '"',
    "spaces": "[" + " " * 4_000_000 + '"\\n"]',
    "brackets": "[" * 4_000_000 + '"\\n"',
    "quotes": "[" + '"\\""' * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_step_is_long(name: str) -> None:
    def share() -> float:
        """Of what the longest step may take."""
        steps, longest, total = nested.decoded([HOSTILE[name]]), 0.0, 0.0
        with uncollected():
            for _ in iter(lambda: next(steps, True), True):
                began = time.thread_time()
                next(steps, None)
                took = time.thread_time() - began
                longest, total = max(longest, took), total + took
        return longest / max(0.06, 0.1 * total)

    at_most(1.0, share)
