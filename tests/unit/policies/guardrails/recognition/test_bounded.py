"""The patterns of bounded length and their beginnings."""

from __future__ import annotations

import re
from itertools import product

import pytest

from policies.guardrails.recognition.bounded import bounded

PATTERNS = ["a", "ab?a", "(?:ab|b){2}a", "a{1,3}b", "[ab]{0,2}(?:a|bb)", "a(?:b(?:a|b){1,2})?b", "[^a]a", "(a|bab)", r"a\.?b"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_means_what_python_means(pattern: str) -> None:
    made, theirs = bounded(pattern), re.compile(pattern)
    every = ["".join(one) for size in range(8) for one in product("ab", repeat=size)]
    matched = [text for text in every if theirs.fullmatch(text)]
    assert [text for text in every if re.fullmatch(made.full, text)] == matched
    assert made.shortest == min(map(len, matched)) and made.longest >= max(map(len, matched))
    beginnings = {text[:end] for text in matched for end in range(len(text) + 1)}
    whole = {text for text in every if len(text) < 8 - made.longest or text in beginnings}
    assert {text for text in whole if re.fullmatch(made.start, text)} >= beginnings
    assert {text[0] for text in matched} <= made.first


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_no_beginning_of_a_match_is_none(pattern: str) -> None:
    made, theirs = bounded(pattern), re.compile(pattern)
    every = ["".join(one) for size in range(made.longest + 1) for one in product("ab.c", repeat=size)]
    matched = [text for text in every if theirs.fullmatch(text)]
    beginnings = {text[:end] for text in matched for end in range(len(text) + 1)}
    assert {text for text in every if re.fullmatch(made.start, text)} == beginnings


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a*", r"\* has no bound; write \{m,n\}"),
        ("a+", r"\+ has no bound"),
        ("a{3,1}", "the smaller number first"),
        ("a{,3}", r"must be \{n\} or \{m,n\}"),
        ("a{2}{3}", "a repetition of a repetition"),
        ("(a", "unexpected end"),
        ("a)", r"unexpected \) at character 2"),
        ("(?=a)", "only groups of the form"),
        ("[]", "unexpected end|an empty class"),
        ("[b-a]", "a range from a larger"),
        (r"\bword", r"unknown escape \\b at character 3"),
        ("^a", r"unexpected \^"),
        ("é", "no ASCII character"),
        ("a?", "matches an empty text"),
        ("a{512}b", "matches up to 513 characters"),
    ],
)
def test_what_it_refuses(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bounded(pattern)
