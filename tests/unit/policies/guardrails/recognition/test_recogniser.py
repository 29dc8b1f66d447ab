"""Context words and shortened candidates."""

from __future__ import annotations

import pytest

from policies.guardrails.recognition.checks import luhn
from policies.guardrails.recognition.normal import fold
from policies.guardrails.recognition.recogniser import Recogniser, shortened

WITH_WORDS = Recogniser("x", "a", words=("né", "date of birth", "生日", "ss#"))


@pytest.mark.parametrize("before", ["né le ", "NÉ: ", "ne ", "Date of Birth = ", "我的生日是", "ss# ", "(né "])
def test_words_in_context(before: str) -> None:
    assert WITH_WORDS.in_context(fold(before))


@pytest.mark.parametrize("before", ["", "une ", "nez ", "date of  birth", "dateofbirth", "日生", "ss "])
def test_words_that_are_not(before: str) -> None:
    assert not WITH_WORDS.in_context(fold(before))


def test_without_words_there_is_no_context_to_look_for() -> None:
    assert Recogniser("x", "a").in_context("")


@pytest.mark.parametrize(
    ("text", "taken"),
    [("4111 1111 1111 1111 12", 19), ("4111111111111111", 16), ("411111111111111112", 0), ("4111 1111 1111 1112", 0), ("41", 0)],
)
def test_the_longest_group_of_digits_that_passes(text: str, taken: int) -> None:
    assert shortened(text, luhn, range(16, 20)) == taken


def test_whether_a_candidate_begins_a_word() -> None:
    assert Recogniser("x", "[a-z]b").begins_word and not Recogniser("x", "[+]?a").begins_word
