"""Context words and where candidates begin."""

from __future__ import annotations

import pytest

from policies.guardrails.recognition.normal import fold
from policies.guardrails.recognition.recogniser import Recogniser

WITH_WORDS = Recogniser("x", "a", words=("né", "date of birth", "生日", "ss#"))


@pytest.mark.parametrize("before", ["né le ", "NÉ: ", "ne ", "Date of Birth = ", "我的生日是", "ss# ", "(né "])
def test_words_in_context(before: str) -> None:
    assert WITH_WORDS.in_context(fold(before))


@pytest.mark.parametrize("before", ["", "une ", "nez ", "date of  birth", "dateofbirth", "日生", "ss "])
def test_words_that_are_not(before: str) -> None:
    assert not WITH_WORDS.in_context(fold(before))


def test_without_words_there_is_no_context_to_look_for() -> None:
    assert Recogniser("x", "a").in_context("")


def test_whether_a_candidate_begins_a_word() -> None:
    assert Recogniser("x", "[a-z]b").begins_word and not Recogniser("x", "[+]?a").begins_word
