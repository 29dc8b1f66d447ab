"""What some recognisers must be right behind: a key's name with its colon, the scheme of a URL. Where such leads are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import re2

from policies.guardrails.recognition.around import Around
from policies.guardrails.recognition.automaton import Automaton
from policies.guardrails.recognition.bounded import bounded
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.recognition.tail import compiled
from policies.guardrails.recognition.words import CONTEXT

_NO_RUN: Final = (0, 0)
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED


class Behind:
    """Recognisers that count only right behind a pattern."""

    def __init__(self, one: Recogniser, number: int) -> None:
        before = bounded(one.behind)
        if before.longest > CONTEXT:
            raise ValueError(f"the pattern {one.behind!r} matches up to {before.longest} characters; {CONTEXT} are the most")
        self.number, self.own = number, [number]
        self.lead = compiled(before.full)
        self.automaton = Automaton([one.bounded])
        tree = one.bounded.tree
        while tree.kind == "sequence" and len(tree.parts) == 1:
            tree = tree.parts[0]
        self._run = tree.kind == "repeat" and tree.parts[0].kind == "set"
        self._low, self._high = tree.low, tree.high

    def ends(self, data: bytes, place: int, size: int, around: Around) -> list[tuple[list[int], int]]:
        """As `Automaton.ends`. How far a run of one class goes on is looked for once, however many begin in it."""
        if not self._run:
            return self.automaton.ends(data, place, size)
        if around.runs is None:
            around.runs = {}
        begin, end = around.runs.get(self.number, _NO_RUN)
        if not begin <= place < end:
            end, begins = place, self.automaton.begins
            while end < size and begins[data[end]]:
                end += 1
            around.runs[self.number] = (place, end)
        if end - place < self._low:
            return []
        return [([0], end if end - place < self._high else place + self._high)]

    def places(self, data: bytes, start: int) -> list[int]:
        """Where one may begin, from `start` on."""
        size, place = len(data), max(0, start - CONTEXT)
        found: list[int] = []
        while place < size:
            low, high = self.lead.Match(_UNANCHORED, data, place, size)[0]
            if low < 0:
                break
            if start <= high < size:
                found.append(high)
            place = high
        return found


class Leads:
    """The leads of all recognisers at once, followed place by place in a short text: without a search, which costs more there."""

    def __init__(self, leads: Iterable[str]) -> None:
        self._automaton = Automaton([bounded(one) for one in leads])

    def open(self, data: bytes, place: int) -> int:
        """Where, from `place` on, the first lead begins that more text may complete; else the text's end. -1 where one is complete."""
        size = len(data)
        automaton = self._automaton
        begins = automaton.begins
        while place < size:
            if begins[data[place]]:
                alive = automaton.undecided(data, place, size)
                if alive is None:
                    return -1
                if alive:
                    return place
            place += 1
        return size
