"""What is a hint and what is not: anything may arrive."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.hints import LONGEST, MOST, Hint, decode, encode

HINTS = st.builds(
    Hint,
    origin=st.text("0123456789abcdef", max_size=64),
    seq=st.integers(0, 2**62),
    roll=st.booleans(),
    endpoints=st.lists(st.text("0123456789abcdef", max_size=16), max_size=MOST).map(tuple),
)


@given(HINTS)
def test_a_hint_arrives_as_it_was_sent_and_is_short_enough(hint: Hint) -> None:
    assert decode(encode(hint)) == hint and len(encode(hint)) <= LONGEST


@given(st.one_of(st.text(), st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode)))
def test_whatever_arrives_is_a_hint_or_nothing(payload: str | bytes) -> None:
    assert decode(payload) is None or isinstance(decode(payload), Hint)


@pytest.mark.parametrize(
    "payload",
    [
        *("", "x", "[]", "1", '{"c":"1"}', '{"c":1.5}', '{"r":1}', '{"e":"ab"}', '{"e":[1]}', '{"c":' + "9" * 40 + "}"),
        *('{"o":"' + "a" * 65 + '"}', '{"e":["' + "a" * 65 + '"]}', msgspec.json.encode({"e": ["a"] * (MOST + 1)}), "[" * 1900, "a" * 5000),
    ],
)
def test_what_is_no_hint(payload: str | bytes) -> None:
    assert decode(payload) is None


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert decode('{"c":7,"new":{"x":1}}') == Hint(seq=7)
