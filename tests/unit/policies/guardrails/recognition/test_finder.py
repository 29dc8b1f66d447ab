"""Many recognisers at once: the leftmost, then the longest match; what is undecided at the end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.guardrails.pii.table import RECOGNISERS
from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.normal import as_bytes, fold
from policies.guardrails.recognition.recogniser import Recogniser
from tests.unit.policies.guardrails.pii.finding import ALL, found


def finder(*patterns: str, **fields: object) -> Finder:
    return Finder([Recogniser(pattern, pattern, **fields) for pattern in patterns])  # type: ignore[arg-type]


def test_the_leftmost_then_the_longest_then_the_first_wins() -> None:
    made = finder("ab", "abc?", "b c", "[a]b")
    assert found("x abc c", made) == [("abc?", "abc")]
    assert found("x ab c", made) == [("ab", "ab")]


def test_a_match_never_begins_or_ends_inside_a_word() -> None:
    made = finder(r"\d{3}", r"[+]\d{2}")
    assert found("a123 123b 1234 _123 123_ é123 +12 +13+14", made) == [(r"[+]\d{2}", "+12"), (r"[+]\d{2}", "+13")]
    assert found("(123) 護123護", made) == [(r"\d{3}", "123")] * 2


def test_a_validator_may_take_less() -> None:
    made = finder("[a-z]{1,4}-?[a-z]{0,4}", valid=lambda text: text.index("-") if "-" in text else 0)
    assert found("one-two three", made) == [("[a-z]{1,4}-?[a-z]{0,4}", "one")]
    refuses = finder("[a-z]{3}", valid=has(lambda text: text == "yes"))
    assert found("no yes not", refuses) == [("[a-z]{3}", "yes")]


def test_a_context_word_stands_before() -> None:
    made = finder(r"\d{3}", words=("code",))
    assert found("123 code 456", made) == [(r"\d{3}", "456")]
    assert found("code " + "x " * 30 + "456", made) == found("encoded 456", made) == []


def test_a_part_of_a_longer_number_may_be_ruled_out() -> None:
    made = finder(r"\d{3}", apart=True)
    assert found("1 123", made) == [] and found("a 123", made) == [(r"\d{3}", "123")]
    assert found("-123", finder(r"\d{3}", not_after="-")) == []


@pytest.mark.parametrize(("text", "place"), [("x 12", 2), ("x 123", 2), ("x 12 ", 5), ("x 123 ", 6), ("x12", 3), ("12", 0), ("", 0)])
def test_what_is_open(text: str, place: int) -> None:
    assert finder(r"\d{3}").open(text.encode(), text, 0) == place


SAID = [
    "bob",
    "@",
    "x.de",
    " ",
    "+1 415",
    "4111 1111",
    "DE89 37",
    "tel ",
    "the",
    ".",
    "1",
    "12 March",
    "a-b",
    "born on ",
    "(",
    ":",
    "\\",
    "\x01",
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(SAID), max_size=9).map("".join), st.integers(0, 20))
def test_what_is_calm_is_what_a_search_says(text: str, place: int) -> None:
    data, place = text.encode(), min(place, len(text))
    calm = ALL.calm(data, place)
    if calm >= 0 and ALL.leading.open(data, 0) >= 0:
        assert ALL.open(data, text, place) == calm
        assert ALL.next(data, text, place, calm, lambda _: True) is None


@pytest.mark.parametrize(
    ("text", "place"), [("the token", 4), ("it is, ", 7), ("call 12", 5), ("bob@x.de ", -1), ("a\\n", -1), ("a\x00", -1), ("", 0)]
)
def test_what_is_calm(text: str, place: int) -> None:
    chosen = Finder([one for one in RECOGNISERS if one.entity in ("email", "phone")])
    assert chosen.calm(text.encode(), 0) == place


def test_what_depends_on_words_before_it_is_not_calm() -> None:
    made = finder(r"\d{3}", words=("code",))
    assert made.calm(b"x 12", 0) == -1 and made.calm(b"x y", 0) == 3


def test_nothing_is_open_that_needs_a_word_which_is_not_there() -> None:
    made = finder(r"\d{3}", words=("code",))
    assert made.open(b"x 12", "x 12", 0) == 4 and made.open(b"code 12", "code 12", 0) == 5


@given(
    st.lists(st.sampled_from(["bob@example.com", "born ", "1/2/1990", " ", "tel", "né", "4111111111111111", "x", "12"]), max_size=6).map(
        "".join
    )
)
@settings(deadline=None)
def test_what_occurs_nowhere_is_not_found(text: str) -> None:
    if not ALL.occurs(as_bytes(fold(text))):
        assert found(text) == []


def test_no_recogniser_is_refused() -> None:
    with pytest.raises(ValueError, match="no entity is looked for"):
        Finder([])
