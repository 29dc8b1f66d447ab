"""Folding: what people read as the same is the same."""

from __future__ import annotations

from unicodedata import combining, normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.guardrails.folding import MAX_HIDDEN, encoded, fold, fold_character, hidden_run, in_order, is_word, trim_hidden

texts = st.text(max_size=40) | st.text(st.sampled_from("aé\u0301\u0323\u0345ͺᾳ ﬁßİ℡\u200b\u00ad\n\u2028가\u1161禁ัก"), max_size=30)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Hello\tWORLD\r\n", "hello world  "),
        ("ＦＵＬＬ １", "full 1"),
        ("ﬁsh", "fish"),
        ("Straße", "strasse"),
        ("b\u200ba\u00add", "bad"),
        ("b\x01a\x7fd\x1c", "bad "),
        ("b\x01\u00e9\x90\x85", "be\u0301 "),
        ("a\u00a0b\u2003c\u2028d\u1680e\u0085f", "a b c d e f"),
        ("℡", "tel"),
        ("İ", "i\u0307"),
        ("à", "a\u0300"),
        ("\ud800", "?"),
    ],
)
def test_examples(text: str, folded: str) -> None:
    assert fold(text) == folded


@settings(deadline=None)
@given(texts)
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert encoded(text) == fold(text).encode()


@settings(deadline=None)
@given(texts)
def test_canonically_equal_texts_fold_alike(text: str) -> None:
    for form in ("NFC", "NFD"):
        assert fold(normalize(form, text)) == fold(text)


@settings(deadline=None)
@given(texts)
def test_character_by_character_is_the_same(text: str) -> None:
    """What a stream does: starters at once, marks in order when the next starter comes."""
    out: list[str] = []
    marks: list[str] = []
    for character in text:
        for folded in fold_character(character):
            if combining(folded):
                marks.append(folded)
            else:
                out += [*in_order(marks), folded]
                marks = []
    assert "".join(out + in_order(marks)) == fold(text)


def test_every_character_of_unicode_folds_without_spaces_other_than_one() -> None:
    for code in range(0, 0x110000, 53):
        folded = fold_character(chr(code))
        assert all(not character.isspace() or character == " " for character in folded), hex(code)


@pytest.mark.parametrize(
    ("character", "word"), [("a", True), ("_", True), ("9", True), ("é", True), ("\u0301", True), ("я", True), ("-", False)]
)
def test_word_characters(character: str, word: bool) -> None:
    assert is_word(character) is word


@pytest.mark.parametrize("character", [" ", "-", "\x00", "禁", "の", "カ", "ก", "ั", "。", "\ud800", "€", "😀"])
def test_what_a_word_ends_at(character: str) -> None:
    assert not is_word(character)


def tagged(text: str) -> str:
    """ASCII in letters of the tag block; `.` is the tag that ends a flag."""
    return "".join(chr(0xE0000 + (0x7F if character == "." else ord(character))) for character in text)


FLAG = "\U0001f3f4"
PIECES = [
    "a",
    "é",
    "\u200b",
    "\u200d" * 20,
    "\u200b" * 40,
    "",
    FLAG,
    *map(tagged, ["g", "gb", "eng", "eng.", "wls.", "x", "."]),
    FLAG + tagged("gbsct."),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_runs_of_invisible_characters_are_cut_however_they_arrive(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole, state, cut = trim_hidden(text, "")
    for way in (pieces, list(text)):
        parts, after, any_cut = [], "", False
        for piece in way:
            part, after, one = trim_hidden(piece, after)
            parts.append(part)
            any_cut = any_cut or one
        assert ("".join(parts), any_cut) == (whole, cut)
        assert trim_hidden(tagged("gbeng."), after)[::2] == trim_hidden(tagged("gbeng."), state)[::2]
    longest = max((len(part) for part in whole.replace("é", "a").replace(FLAG, "a").split("a")), default=0)
    assert longest <= MAX_HIDDEN
    assert cut == (whole != text) == hidden_run(text)
    assert trim_hidden(whole, "")[0] == whole


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (tagged("kill"), ""),
        ("a" + tagged("bad") + "b\U000e0001", "ab"),
        (FLAG + tagged("gbeng.") + "rules", FLAG + tagged("gbeng.") + "rules"),
        (FLAG + tagged("gbwls.bomb"), FLAG + tagged("gbwls.")),
        (FLAG + tagged("bomb."), FLAG),
        (FLAG + "\u200d" + tagged("gbeng."), FLAG + "\u200d"),
        (FLAG + tagged("xgbeng."), FLAG),
    ],
)
def test_only_flags_are_written_with_tags(text: str, left: str) -> None:
    assert trim_hidden(text, "")[0] == left
    assert hidden_run(text) == (text != left)
