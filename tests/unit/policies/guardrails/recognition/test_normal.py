"""Normalised text and the way back to the original."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from policies.guardrails.recognition.normal import MARK, as_bytes, fold, places


def test_what_looks_alike_folds_alike() -> None:
    assert fold("４１１１－１１１１") == "4111-1111"
    assert fold("4\u200b1\u200d1\ufeff1") == "4111"
    assert fold("٤١١١") == fold("४१११") == "4111"
    assert fold("1\u20102\u20113\u20124\u20135\u20146\u22127") == "1-2-3-4-5-6-7"
    assert fold("a\u00a0b\u3000c\u2009d") == "a b c d"
    assert fold("ｂｏｂ＠ｅｘａｍｐｌｅ．ｃｏｍ") == "bob@example.com"
    assert fold("e\u0301").replace(MARK, "") == "e"


def test_bytes_tell_letters_from_signs() -> None:
    assert as_bytes("aжб—護") == b"a\x80\x80\x81\x81"


@given(st.text(), st.text())
def test_pieces_fold_like_the_whole(one: str, other: str) -> None:
    assert fold(one + other) == fold(one) + fold(other)
    assert len(as_bytes(fold(one))) == len(fold(one))


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_each_folded_character_has_its_place(text: str) -> None:
    where = places(text)
    assert len(where) == len(fold(text)) + 1 and where[-1] == len(text) and where == sorted(where)
    for number, character in enumerate(fold(text)):
        assert character in fold(text[where[number]])


def test_every_character_folds_to_what_folds_to_itself() -> None:
    for code in range(sys.maxunicode + 1):
        folded = fold(chr(code))
        assert fold(folded) == folded, hex(code)
