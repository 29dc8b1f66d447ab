"""Context words: where in a text a candidate stands behind one. A text is searched for all words once, however many candidates ask."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from policies.guardrails.recognition.automaton import Automaton
from policies.guardrails.recognition.bounded import bounded
from policies.guardrails.recognition.normal import MARK, fold

CONTEXT: Final = 48
"""Folded characters before a candidate in which its context words are looked for."""
_LETTERS: Final = bytes([1 if code == 0x80 or (code < 128 and chr(code).isalpha()) else 0 for code in range(256)])

_Hit = tuple[int, int, bool, list[int]]
"""Where a word begins and ends, whether it stands alone (no letter follows it), and the numbers of its sets."""


class Zones:
    """Where one set of words counts: from `starts[n]` up to and with `ends[n]`, in order. It is asked mostly from left to right."""

    __slots__ = ("_at", "ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._at = 0

    def add(self, start: int, end: int) -> None:
        """Zones come in the order in which their words begin. One that touches the last one extends it."""
        if not self.ends or start > self.ends[-1]:
            self.starts.append(start)
            self.ends.append(end)
            return
        if start < self.starts[-1]:
            self.starts[-1] = start
        if end > self.ends[-1]:
            self.ends[-1] = end

    def cover(self, place: int) -> bool:
        starts, at = self.starts, self._at
        size = len(starts)
        if not size:
            return False
        while at + 1 < size and starts[at + 1] <= place:
            at += 1
        while at > 0 and starts[at] > place:
            at -= 1
        self._at = at
        return starts[at] <= place <= self.ends[at]


class ContextWords:
    """The words of some sets. A word stands by itself: no letter is next to it. Those of Korean and of scripts without spaces stand
    anywhere."""

    def __init__(self, sets: Sequence[Sequence[str]]) -> None:
        self._size = len(sets)
        found: dict[str, list[int]] = {}
        for number, words in enumerate(sets):
            for word in words:
                owners = found.setdefault(fold(word).replace(MARK, "").lower(), [])
                if number not in owners:
                    owners.append(number)
        plain = [word for word in found if word.isascii() and len(word) <= CONTEXT]
        self._wide = [
            (word, "\u2e80" <= word[0] <= "\u9fff" or "\u1100" <= word[0] <= "\u11ff", found[word]) for word in found if not word.isascii()
        ]
        self._owners = [found[word] for word in plain]
        self._automaton = Automaton([bounded("".join(one if one.isalnum() else f"\\{one}" for one in word)) for word in plain])

    def zones(self, data: bytes, folded: str) -> list[Zones]:
        """By set. data: the bytes of the folded text (policies.guardrails.recognition.normal.escapes)."""
        marks: list[int] = []
        if MARK in folded:
            marks = _marks(folded)
            folded = folded.replace(MARK, "")
            data = _without(data, marks)
        found = [Zones() for _ in range(self._size)]
        hits = self._plain(data)
        if self._wide and not folded.isascii() and (wide := self._others(data, folded)):
            hits += wide
            hits.sort(key=_begin)
        for begin, end, alone, owners in hits:
            if marks:
                begin += bisect_right(marks, begin)
                end += bisect_right(marks, end - 1)
            last = begin + CONTEXT if alone else end
            if last >= end:
                for number in owners:
                    found[number].add(end, last)
        return found

    def _plain(self, data: bytes) -> list[_Hit]:
        """The words of ASCII, in order."""
        automaton, all_owners = self._automaton, self._owners
        begins, size = automaton.begins, len(data)
        found: list[_Hit] = []
        before = False
        for place in range(size):
            code = data[place]
            if not before and begins[code]:
                for words, end in automaton.ends(data, place, size):
                    # Behind a letter no candidate begins, so a word that goes on is none, unless it ends with a sign.
                    alone = end >= size or not _LETTERS[data[end]]
                    if alone or not _LETTERS[data[end - 1]]:
                        found.append((place, end, alone, all_owners[words[0]]))
            before = _LETTERS[code] != 0
        return found

    def _others(self, data: bytes, folded: str) -> list[_Hit]:
        found: list[_Hit] = []
        small = folded.lower()
        if len(small) != len(folded):
            small = "".join([lower if len(lower := one.lower()) == 1 else one for one in folded])
        size = len(data)
        for word, anywhere, owners in self._wide:
            begin = small.find(word)
            while begin >= 0:
                end = begin + len(word)
                if anywhere or not ((begin > 0 and _LETTERS[data[begin - 1]]) or (end < size and _LETTERS[data[end]])):
                    found.append((begin, end, True, owners))
                begin = small.find(word, begin + 1)
        return found


def _marks(folded: str) -> list[int]:
    """For each mark the place, in the text without marks, of what follows it."""
    found: list[int] = []
    place = folded.find(MARK)
    while place >= 0:
        found.append(place - len(found))
        place = folded.find(MARK, place + 1)
    return found


def _without(data: bytes, marks: list[int]) -> bytes:
    """The bytes of a text, without those of its marks. Escapes are replaced already: removing a mark must not make another."""
    kept: list[bytes] = []
    begin = 0
    for number, behind in enumerate(marks):
        place = behind + number
        kept.append(data[begin:place])
        begin = place + 1
    kept.append(data[begin:])
    return b"".join(kept)


def _begin(hit: _Hit) -> int:
    return hit[0]
