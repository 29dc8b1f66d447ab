"""Places in JSON within JSON, and values as they are written there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.guardrails.pseudonyms.nesting import MOST, Nesting, escaped, unescaped

MARK = "<HERE_1>"


def nested(times: int) -> str:
    text = MARK
    for _ in range(times):
        text = json.dumps({"a": [1, {'b \\ " c': "é\n"}], "z": text})
    return text


def depth_at_mark(text: str) -> int:
    nesting = Nesting()
    nesting.feed(text[: text.index(MARK)])
    return nesting.depth


@pytest.mark.parametrize("times", range(5))
def test_the_depth_is_the_number_of_strings_around(times: int) -> None:
    assert depth_at_mark(nested(times)) == times


@pytest.mark.parametrize("text", [f'say "{MARK}"', f'x = {{"a": "{MARK}"}}', MARK, "", '"' + MARK])
def test_only_objects_and_lists_are_json(text: str) -> None:
    nesting = Nesting()
    nesting.feed(text)
    assert nesting.depth == 0


@given(st.integers(0, 4), st.data())
def test_the_cuts_make_no_difference(times: int, data: st.DataObject) -> None:
    text = nested(times)
    text = text[: text.index(MARK)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    nesting = Nesting()
    for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True):
        nesting.feed(text[low:high])
    assert nesting.depth == times


@given(st.text(), st.integers(0, 4))
def test_what_is_escaped_reads_as_it_was(value: str, depth: int) -> None:
    assert unescaped(escaped(value, depth), depth) == value


@given(st.text(max_size=20), st.integers(1, 4))
def test_an_escaped_value_keeps_the_json_around_it_readable(value: str, times: int) -> None:
    text = nested(times)
    text = text.replace(MARK, escaped(value, depth_at_mark(text)))
    for _ in range(times):
        text = json.loads(text)["z"]
    assert text == value


def test_half_of_an_escape_and_an_unknown_one_end_nothing() -> None:
    nesting = Nesting()
    nesting.feed('{"a": "\\u00zz \\q \\ud800')
    assert nesting.depth == 1
    assert unescaped("\\q", 2) == "\\q"


def test_strings_within_strings_are_followed_up_to_a_bound() -> None:
    nesting = Nesting()
    text = "x"
    for _ in range(MOST + 2):
        text = json.dumps([text])
    nesting.feed(text[: text.index("x")])
    assert nesting.depth == MOST
