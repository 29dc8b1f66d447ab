"""Validators without regular expressions find what the expressions say."""

from __future__ import annotations

import re
from collections import Counter
from math import isclose, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.guardrails.secrets.randomness import STAND_INS, entropy, password, stands_in

NAMES = re.compile(r"[A-Za-z]{2,}\d{0,2}(?:[._/-]+[A-Za-z]{2,}\d{0,2})*|[A-Za-z]+\d{0,3}")
PARTS = st.sampled_from([*STAND_INS, *(word[:-1] for word in STAND_INS), *"aBz19_-/.!\x80\xe9", "Ex", "aMple", "cd", "123"])
TEXTS = st.lists(PARTS, max_size=9).map("".join)


@given(TEXTS)
def test_stand_ins_are_found_anywhere_in_any_case(text: str) -> None:
    assert stands_in(text) == any(word in text.lower() for word in STAND_INS)


@given(TEXTS | st.text(st.characters(max_codepoint=255), max_size=40))
def test_entropy_is_shannons(text: str) -> None:
    expected = sum(count / len(text) * log2(len(text) / count) for count in Counter(text).values())
    assert isclose(entropy(text), expected, abs_tol=1e-9)


@given(TEXTS)
def test_a_name_or_a_path_is_no_password(text: str) -> None:
    if NAMES.fullmatch(text):
        assert not password(text)


@pytest.mark.parametrize("text", ["Tr0ub4dor&3x", "a1b2c3d4e5f6", "word-1234"])
def test_passwords(text: str) -> None:
    assert password(text) and not NAMES.fullmatch(text)


@pytest.mark.parametrize("text", ["settings.api_key", "path/to/key", "token123", "aaaaaaaa1", "example-4Kd9s", "short1"])
def test_no_passwords(text: str) -> None:
    assert not password(text)
