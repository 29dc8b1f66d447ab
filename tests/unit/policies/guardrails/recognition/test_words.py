"""Context words: where they count, and that a text is searched for them once."""

from __future__ import annotations

import random

import pytest

from policies.guardrails.recognition.normal import MARK, as_bytes, escapes, fold
from policies.guardrails.recognition.words import CONTEXT, ContextWords, Zones

WORDS = ("né", "date of birth", "生日", "ss#", "tel", "telefon", "आधार", "ur.", "τηλ")


def covers(text: str, place: int, words: tuple[str, ...] = WORDS) -> bool:
    folded = fold(text)
    return ContextWords([words]).zones(escapes(as_bytes(folded)), folded)[0].cover(place)


@pytest.mark.parametrize(
    "before", ["né le ", "NÉ: ", "ne ", "Date of Birth = ", "我的生日是", "ss# ", "(né ", "ur.", "中tel ", r"\ntel ", "ΤΗΛ "]
)
def test_words_that_count(before: str) -> None:
    assert covers(before + "12", len(fold(before)))


@pytest.mark.parametrize("before", ["", "une ", "nez ", "date of  birth ", "dateofbirth ", "日生 ", "ss ", "ατηλ ", "telx "])
def test_words_that_do_not(before: str) -> None:
    assert not covers(before + "12", len(fold(before)))


def test_a_word_counts_up_to_so_many_characters_behind_its_beginning() -> None:
    text = "tel" + " " * 100
    assert [place for place in range(len(text)) if covers(text, place)] == list(range(3, CONTEXT + 1))


def _naive(folded: str, place: int) -> bool:
    """By the definition: a word in the characters before, with no letter next to it."""

    def letter(character: str) -> bool:
        return character.isalpha() and not "\u2e80" <= character <= "\u9fff" and not "\u1100" <= character <= "\u11ff"

    for word in (fold(one).replace(MARK, "") for one in WORDS):
        for begin in range(max(0, place - CONTEXT), place):
            end = begin + len(word)
            if end > place or folded[begin:end].lower() != word:
                continue
            spaceless = "\u2e80" <= word[0] <= "\u9fff" or "\u1100" <= word[0] <= "\u11ff"
            if spaceless or not ((begin and letter(folded[begin - 1])) or (end < place and letter(folded[end]))):
                return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_they_are_where_the_definition_says(seed: int) -> None:
    draw = random.Random(seed)
    pieces = (
        "ne",
        "tel",
        "TEL",
        "efon",
        "date of birth",
        "ss#",
        "ur.",
        " ",
        " ",
        ":",
        "1",
        "x",
        "ä",
        "आधार",
        "ΤΗΛ",
        "日",
        "生日",
        "-",
        "αβ",
    )
    hits = 0
    for _ in range(150):
        folded = fold("".join(draw.choices(pieces, k=30))).replace(MARK, "")
        data = as_bytes(folded)
        zones = ContextWords([("nowhere",), WORDS]).zones(data, folded)
        for place in range(1, len(folded)):
            if not (chr(data[place - 1]).isalnum() or data[place - 1] == 0x80):  # no candidate begins inside a word
                hits += zones[1].cover(place)
                assert zones[1].cover(place) == _naive(folded, place), (folded, place)
                assert not zones[0].cover(place)
    assert hits > 1000


def test_marks_do_not_hide_a_word_and_count_as_characters() -> None:
    text = "n\u0301\u0301e\u0301 12"
    assert covers(text, 6) and not covers(text, 2)
    assert not covers("tel" + "\u0301" * 60 + " 12", 64)


def test_a_mark_makes_no_escape_of_a_sign_and_a_word() -> None:
    assert covers("\\\u0345tel 12", 6) and covers("\\n\u0345tel 12", 7) and covers("\\ntel 12", 6)


def test_zones_are_asked_in_any_order() -> None:
    zones = Zones()
    for start, end in ((3, 9), (5, 12), (20, 25), (40, 41)):
        zones.add(start, end)
    assert zones.starts == [3, 20, 40] and zones.ends == [12, 25, 41]
    inside = {*range(3, 13), *range(20, 26), 40, 41}
    for place in (41, 2, 3, 12, 13, 26, 19, 40, 39, 25, 20, 0, 50):
        assert zones.cover(place) == (place in inside)
    assert not Zones().cover(3)
