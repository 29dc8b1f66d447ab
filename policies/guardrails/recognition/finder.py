"""Many recognisers at once over folded text: where the next match is, and what could still become one.

Every place is judged by itself: the match that begins there is the longest of any recogniser's, if its validator agrees. So what is
found does not depend on where a search began, and a stream finds what a search of the whole text would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import re2

from policies.guardrails.recognition.bounded import bounded
from policies.guardrails.recognition.normal import MARK, as_bytes, fold
from policies.guardrails.recognition.recogniser import CONTEXT, Recogniser

_MEMORY: Final = 64 * 1024 * 1024
_ANCHOR_START: Final = re2._re2.RE2.Anchor.ANCHOR_START
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED
_WORD: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_\x80")


Leads = Sequence[tuple[int, int]]
"""(place, number of the one that it leads to)."""


@dataclass(frozen=True, slots=True)
class Match:
    """Places in the folded text."""

    start: int
    end: int
    entity: str
    tail: Tail | None = None


class Tail:
    """How an entity goes on behind the match. memory: how many of its last bytes `end` needs. most: of its bytes."""

    most: Final = 64 * 1024

    def __init__(self, among: str, stop: str) -> None:
        self._other = _compiled(f"[^{among}]")
        self._stop = _compiled(stop) if stop else None
        self.memory = 96

    def end(self, before: bytes, data: bytes, size: int) -> tuple[int, bool]:
        """How many leading bytes of `data` belong to it, and whether it ends there. before: the last ones that did. size: how many did."""
        end = min(len(data), self.most - size)
        over = size + end >= self.most
        if (other := self._other.Match(_UNANCHORED, data, 0, end)[0][0]) >= 0:
            end, over = other, True
        if self._stop is not None:
            text = before + data[:end]
            if (stop := self._stop.Match(_UNANCHORED, text, 0, len(text))[0][1]) > len(before):
                end, over = stop - len(before), True
        return end, over


class _Behind:
    """Recognisers that count only right behind a pattern."""

    def __init__(self, recognisers: Sequence[Recogniser], number: int) -> None:
        one = recognisers[number]
        before = bounded(one.behind)
        if before.longest > CONTEXT:
            raise ValueError(f"the pattern {one.behind!r} matches up to {before.longest} characters; {CONTEXT} are the most")
        self.number = number
        self.lead = _compiled(before.full)
        self.open = _compiled(f"(?:{one.bounded.start})\\z")
        self.joined = f"(?:{before.full})(?:{one.bounded.full})"

    def places(self, data: bytes, start: int) -> Iterator[int]:
        """Where one may begin, from `start` on."""
        size, place = len(data), max(0, start - CONTEXT)
        while place < size:
            low, high = self.lead.Match(_UNANCHORED, data, place, size)[0]
            if low < 0:
                return
            if start <= high < size:
                yield high
            place = high


class Finder:
    """The compiled recognisers. longest: folded characters of the longest possible match. Raises ValueError with one sentence."""

    def __init__(self, recognisers: Sequence[Recogniser]) -> None:
        if not recognisers:
            raise ValueError("no entity is looked for")
        self._recognisers = tuple(recognisers)
        self.longest = max(one.bounded.longest for one in recognisers)
        self._each = [_compiled(one.bounded.full) for one in recognisers]
        self._tails = [Tail(one.tail, one.stop) if one.tail else None for one in recognisers]
        self._behind = [_Behind(recognisers, number) for number, one in enumerate(recognisers) if one.behind]
        self._lead = _compiled("|".join(one.joined for one in self._behind)) if self._behind else None
        self._leads = _compiled("|".join(bounded(recognisers[one.number].behind).full for one in self._behind)) if self._behind else None
        recognisers = [one for one in recognisers if not one.behind]
        if not recognisers:
            raise ValueError("no entity is looked for that needs no context")
        free = [one for one in recognisers if not one.words]
        words = "|".join(_distinct(_word(word) for one in recognisers for word in one.words))
        self._any = _whole(recognisers)
        self._free = _whole(free) if free else None
        self._words = _compiled(words) if words else None
        self._first = _compiled("|".join([*_distinct(_edged(one.bounded.full, one) for one in free), *([words] if words else [])]))
        self._open = _opened(recognisers)
        groups: dict[tuple[tuple[str, ...], str, bool], list[Recogniser]] = {}
        for one in recognisers:
            groups.setdefault((one.words, one.not_after, one.apart), []).append(one)
        self._groups = [(members[0], _opened(members)) for members in groups.values()]
        self._which = re2._re2.Set(_ANCHOR_START, _options())
        self._numbers = [number for number, one in enumerate(self._recognisers) if not one.behind]
        for one in recognisers:
            self._which.Add(one.bounded.full.encode("latin-1"))
        self._which.Compile()

    def occurs(self, data: bytes) -> bool:
        """Whether anything in the text looks like an entity. No means that there is none. In most texts one scan says so."""
        size = len(data)
        if self._lead is not None and self._lead.Match(_UNANCHORED, data, 0, size)[0][0] >= 0:
            return True
        if self._first.Match(_UNANCHORED, data, 0, size)[0][0] < 0:
            return False
        if self._free is not None and self._free.Match(_UNANCHORED, data, 0, size)[0][0] >= 0:
            return True
        return self._words is not None and self._any.Match(_UNANCHORED, data, 0, size)[0][0] >= 0

    def leads(self, data: bytes, start: int) -> Leads:
        """The places from `start` on, in order, where something stands that a recogniser must be behind."""
        if self._leads is None or self._leads.Match(_UNANCHORED, data, max(0, start - CONTEXT), len(data))[0][0] < 0:
            return ()
        found = [(place, number) for number, behind in enumerate(self._behind) for place in behind.places(data, start)]
        found.sort()
        return found

    def open(self, data: bytes, folded: str, start: int, leads: Leads = ()) -> int:
        """The earliest place from `start` on where a match may begin that more text would complete or lengthen; else the text's end."""
        end = len(data)
        low = max(start, end - self.longest)
        for place, number in leads:
            if place >= low and self._behind[number].open.Match(_ANCHOR_START, data, place, len(data))[0][0] >= 0:
                end = place
                break
        return self._open_free(data, folded, low, end)

    def _open_free(self, data: bytes, folded: str, place: int, end: int) -> int:
        """The same for recognisers that need nothing right before them, up to `end`."""
        size = len(data)
        while place < end:
            place = self._open.Match(_UNANCHORED, data, place, size)[0][0]
            if not 0 <= place < end:
                return end
            if (place == 0 or data[place - 1] not in _WORD) and self._is_open(data, folded, place):
                return int(place)
            place += 1
        return end

    def _is_open(self, data: bytes, folded: str, place: int) -> bool:
        """Whether some recogniser whose surroundings are there may go on to a match from this place."""
        for like, pattern in self._groups:
            if _refused(like, data, place):
                continue
            if pattern.Match(_ANCHOR_START, data, place, len(data))[0][0] < 0:
                continue
            if like.in_context(folded[max(0, place - CONTEXT) : place]):
                return True
        return False

    def next(
        self, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool], leads: Leads | None = None
    ) -> Match | None:
        """The leftmost match that begins from `start` on and before `end`. wanted: whether a text counts (it may be on an allow list).
        leads: those of the whole of `data`, if they are known."""
        best = self._next_free(data, folded, start, end, wanted)
        if leads is None:
            leads = self.leads(data, start)
        for place, number in leads:
            if place < start:
                continue
            if place >= end or (best is not None and place > best.start):
                break
            found = self._best(data, folded, place, (self._behind[number].number,), wanted)
            if found is not None and (best is None or found.start < best.start or found.end > best.end):
                best = found
        return best

    def _next_free(self, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool]) -> Match | None:
        """The same for recognisers that need nothing right before them."""
        size, pattern = len(data), self._any
        while start < end:
            start = pattern.Match(_UNANCHORED, data, start, size)[0][0]
            if not 0 <= start < end:
                return None
            if start == 0 or data[start - 1] not in _WORD:
                found = self._at(data, folded, start, wanted)
                if found is not None:
                    return found
            if pattern is self._any and (self._words is None or self._words.Match(_UNANCHORED, data, 0, size)[0][0] < 0):
                if self._free is None:
                    return None
                pattern = self._free  # nothing that needs a context word can be here
            start += 1
        return None

    def _at(self, data: bytes, folded: str, start: int, wanted: Callable[[str], bool]) -> Match | None:
        numbers = self._which.Match(data[start : start + self.longest])
        return self._best(data, folded, start, sorted([self._numbers[number] for number in numbers]), wanted)

    def _best(self, data: bytes, folded: str, start: int, numbers: Sequence[int], wanted: Callable[[str], bool]) -> Match | None:
        """The longest match of these recognisers at a place."""
        size = min(len(data), start + self.longest)
        best, chosen = start, -1
        for number in numbers:
            one = self._recognisers[number]
            if _refused(one, data, start):
                continue
            end = self._each[number].Match(_ANCHOR_START, data, start, size)[0][1]
            if end <= best:
                continue
            end = start + one.valid(data[start:end].decode("latin-1"))
            if end <= best or (end < len(data) and data[end] in _WORD and not one.tail):
                continue
            if one.in_context(folded[max(0, start - CONTEXT) : start]) and wanted(folded[start:end]):
                best, chosen = end, number
        return Match(start, best, self._recognisers[chosen].entity, self._tails[chosen]) if chosen >= 0 else None


def _refused(recogniser: Recogniser, data: bytes, start: int) -> bool:
    """Whether what is right before a place rules the recogniser out."""
    if not start:
        return False
    before = data[start - 1]
    if recogniser.not_after and chr(before) in recogniser.not_after:
        return True
    return recogniser.apart and start > 1 and before in b" -./" and 48 <= data[start - 2] <= 57


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.longest_match = True
    options.never_capture = True
    options.max_mem = _MEMORY
    options.log_errors = False
    return options


def _compiled(pattern: str) -> Any:
    made = re2._re2.RE2(pattern.encode("latin-1"), _options())
    if not made.ok():
        raise ValueError(f"the patterns cannot be compiled: {made.error()}")
    return made


def _whole(recognisers: Sequence[Recogniser]) -> Any:
    return _compiled("|".join(_distinct(_edged(one.bounded.full, one) for one in recognisers)))


def _word(word: str) -> str:
    """A context word, with any marks behind its letters. It may find too much, never too little."""
    return "".join(f"\\x{code:02x}\\x80*" for code in as_bytes(fold(word).replace(MARK, "")))


def _opened(recognisers: Sequence[Recogniser]) -> Any:
    """What at the end of a text may become a match."""
    return _compiled("(?:" + "|".join(_distinct(_edged(one.bounded.start, one) for one in recognisers)) + r")\z")


def _edged(pattern: str, recogniser: Recogniser) -> str:
    """With a word's boundary before it, where the entity begins with a letter or digit: it spares most places."""
    return rf"\b(?:{pattern})" if recogniser.begins_word else f"(?:{pattern})"


def _distinct(patterns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(patterns))
