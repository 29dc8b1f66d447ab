"""Texts in pieces: nothing is left out, and pieces overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.core.errors import EngineError
from gateway.core.slices import at_once
from gateway.core.types import MOST_FINDINGS, Finding, Usage
from gateway.guardrails.pieces import AT_ONCE, Piece, bounded, found_as, in_turns, pieces, readable, sendable


def test_every_character_is_in_a_piece_and_neighbours_overlap() -> None:
    text = "".join(chr(97 + number % 26) for number in range(1000))
    found = at_once(pieces([" ", text], 300, 50))
    assert [piece.number for piece in found] == [1] * len(found)
    assert all(piece.text == text[piece.start : piece.start + 300] for piece in found)
    assert all(later.start == earlier.start + 250 for earlier, later in pairwise(found))
    assert found[-1].start + len(found[-1].text) == 1000


async def test_very_many_texts_are_gone_through_between_other_work() -> None:
    texts = ["a"] * (3 * AT_ONCE)
    steps = pieces(texts, 300, 50)
    turns = 0
    while next(steps, texts) is None:
        turns += 1
    assert turns == 3
    assert len(await in_turns(texts, pieces(texts, 300, 50))) == len(texts)
    assert await in_turns(["a b"], pieces(["a b"], 300, 50)) == [Piece(0, 0, "a b")]
    assert readable(["", " ", "a"]) and not readable(["", " \n"])


def test_a_piece_is_halved_without_a_gap() -> None:
    one, two = Piece(0, 10, "x" * 100).halves(20)
    assert one.start == 10 and two.start + len(two.text) == 110 and one.start + len(one.text) >= two.start + 20


def test_texts_beyond_the_bound_are_a_failure_and_half_a_surrogate_pair_can_be_sent() -> None:
    bounded(["abc"], 3)
    with pytest.raises(EngineError, match=r"max_bytes \(2\)"):
        bounded(["ab", "c"], 2)
    assert sendable("a\ud800b") == "a?b"


def test_what_is_done_with_what_was_found() -> None:
    findings = [Finding("x", 0, 1)] * (MOST_FINDINGS + 5)
    made = {action: found_as(action, "g", "why", findings, Usage()) for action in ("block", "annotate", "label")}
    assert [(verdict.action, verdict.label) for verdict in made.values()] == [("block", False), ("annotate", False), ("annotate", True)]
    assert all(len(verdict.findings) == MOST_FINDINGS for verdict in made.values())
