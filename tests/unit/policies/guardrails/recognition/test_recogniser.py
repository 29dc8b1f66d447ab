"""Where candidates begin."""

from __future__ import annotations

from policies.guardrails.recognition.recogniser import Recogniser


def test_whether_a_candidate_begins_a_word() -> None:
    assert Recogniser("x", "[a-z]b").begins_word and not Recogniser("x", "[+]?a").begins_word
