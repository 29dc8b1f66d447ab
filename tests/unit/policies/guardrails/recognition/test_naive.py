"""The finder against the definition of a match, read place by place, recogniser by recogniser, with nothing remembered in between."""

from __future__ import annotations

import random

import pytest
import re2

from loadtests.guardrails.hostile import ATOMS, PIECES
from policies.guardrails.pii.table import RECOGNISERS as PERSONAL
from policies.guardrails.recognition.around import Around
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.normal import MARK, as_bytes, escapes, fold
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.recognition.tail import compiled
from policies.guardrails.recognition.words import CONTEXT
from policies.guardrails.secrets.guardrail import RECOGNISERS as SECRETS

WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_\x80")
ANCHOR = re2._re2.RE2.Anchor
Found = list[tuple[int, int, str]]


class Naive:
    """No automaton, no sign, no zone."""

    def __init__(self, recognisers: tuple[Recogniser, ...]) -> None:
        self._recognisers = recognisers
        numbers = range(len(recognisers))  # of those that are as long, what is behind something comes first
        self._order = sorted(numbers, key=lambda number: (not recognisers[number].sign, not recognisers[number].behind))
        self._patterns = [compiled(one.bounded.full) for one in recognisers]
        self._behind = [compiled(Recogniser("x", one.behind).bounded.full) if one.behind else None for one in recognisers]

    def all(self, data: bytes, folded: str) -> Found:
        found: Found = []
        leads = [self._leads(lead, data) for lead in self._behind]
        place = 0
        while place < len(data):
            best = (False, place, "")  # what goes on behind its end is longer than anything else
            for number in self._order:
                one = self._recognisers[number]
                end = self._end(number, one, data, folded, place, leads[number])
                if end > place and (bool(one.tail), end) > best[:2]:
                    best = (bool(one.tail), end, one.entity)
            if best[2]:
                found.append((place, *best[1:]))
            place = max(place + 1, best[1])
        return found

    def _leads(self, lead: object, data: bytes) -> set[int]:
        ends: set[int] = set()
        place = 0
        while lead is not None and (span := lead.Match(ANCHOR.UNANCHORED, data, place, len(data))[0])[0] >= 0:  # type: ignore[attr-defined]
            ends.add(span[1])
            place = span[1]
        return ends

    def _end(self, number: int, one: Recogniser, data: bytes, folded: str, place: int, leads: set[int]) -> int:
        """Where the match of one recogniser ends, or 0."""
        if one.behind:
            if place not in leads:
                return 0
        elif place and data[place - 1] in WORD:
            return 0
        if place and chr(data[place - 1]) in one.not_after:
            return 0
        if one.apart and place > 1 and chr(data[place - 2]).isdigit() and data[place - 1] in b" -./:":
            return 0
        if one.words and not covered(folded, place, one.words):
            return 0
        end = self._patterns[number].Match(ANCHOR.ANCHOR_START, data, place, len(data))[0][1]
        if end <= place:
            return 0
        valid = one.valid(data[place:end].decode("latin-1"))
        end = place + int(valid)
        inside = end < len(data) and data[end] in WORD and not one.tail
        return 0 if not valid or inside else end


def read(folded: str, data: bytes) -> str:
    """The folded text with the escapes of JSON as the signs that they count as."""
    return "".join([chr(code) if ord(sign) < 128 else sign for code, sign in zip(data, folded, strict=True)])


def covered(folded: str, place: int, words: tuple[str, ...]) -> bool:
    """Whether one of the words stands in the characters before, with no letter next to it."""

    def letter(character: str) -> bool:
        return character.isalpha() and not "\u2e80" <= character <= "\u9fff" and not "\u1100" <= character <= "\u11ff"

    plain, where = "", []
    for number, character in enumerate(folded):
        if character != MARK:
            plain += character
            where.append(number)
    for word in (fold(one).replace(MARK, "").lower() for one in words):
        begin = plain.lower().find(word)
        while begin >= 0:
            end = begin + len(word)
            first, last = where[begin], where[end - 1] + 1
            spaceless = "\u2e80" <= word[0] <= "\u9fff" or "\u1100" <= word[0] <= "\u11ff"
            beside = (begin > 0 and letter(plain[begin - 1])) or (end < len(plain) and last < place and letter(plain[end]))
            if last <= place <= first + CONTEXT and (spaceless or not beside):
                return True
            begin = plain.lower().find(word, begin + 1)
    return False


def remembered(finder: Finder, data: bytes, folded: str, around: Around | None) -> Found:
    """As a stream asks: from each match's end on. around: of the whole text; None: anew for each question."""
    found: Found = []
    place = 0
    while (match := finder.next(data, folded, place, len(data), lambda text: True, around)) is not None:
        found.append((match.start, match.end, match.entity))
        place = match.end
    return found


@pytest.mark.parametrize("name", ["pii", "secrets"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_found_is_what_the_definition_says(name: str, seed: int) -> None:
    recognisers = PERSONAL if name == "pii" else SECRETS
    finder, naive = Finder(recognisers), Naive(tuple(recognisers))
    draw = random.Random(seed)
    signs = [*ATOMS, *(piece for piece in PIECES.values() if len(piece) < 60)]
    total = 0
    for _ in range(120):
        text = "".join(draw.choices(signs, k=draw.randint(2, 14)))
        folded = fold(text)
        data = escapes(as_bytes(folded))
        wanted = naive.all(data, read(folded, data))
        total += len(wanted)
        assert remembered(finder, data, folded, finder.around(data, 0)) == wanted, text
        assert remembered(finder, data, folded, None) == wanted, text
        assert finder.occurs(data) or not wanted, text
    assert total > 25
