"""Many recognisers at once over folded text: where the next match is, and what could still become one.

Every place is judged by itself: the match that begins there is the longest of any recogniser's, if its validator agrees. So what is
found does not depend on where a search began, and a stream finds what a search of the whole text would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import re2

from policies.guardrails.folding import CONTROLS
from policies.guardrails.recognition.around import Around, Known, Match
from policies.guardrails.recognition.automaton import Automaton
from policies.guardrails.recognition.bounded import bounded
from policies.guardrails.recognition.checks import Whole
from policies.guardrails.recognition.leads import Behind, Leads
from policies.guardrails.recognition.normal import MARK, as_bytes, fold
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.recognition.tail import Tail, compiled
from policies.guardrails.recognition.words import CONTEXT, ContextWords

_MOST_HEADS: Final = 64
_LATER: Final = -2
_SHORT: Final = 512
"""Bytes of a text, such as a piece of a stream with what stands before it, up to which one scan for all hints pays."""
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED
_WORD: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_\x80"
_APART: Final = bytes([1 if code in CONTROLS or code in b"\x00\\" else 0 for code in range(256)])
_IN_WORD: Final = bytes([1 if code in _WORD else 0 for code in range(256)])
"""By code. Tables are bytes: reading one of theirs costs compiled code the least."""


class _Signed:
    """A recogniser whose matches are looked for by a sign that they all have, such as the @ of addresses."""

    most: Final = 64
    """Characters before the sign."""

    def __init__(self, one: Recogniser, number: int) -> None:
        local = bounded(one.local).first
        self.number, self.own = number, [number]
        self.sign = one.sign.encode("latin-1")
        self._local = bytes([1 if chr(code) in local or chr(code).lower() in local else 0 for code in range(256)])
        self.automaton = Automaton([one.bounded])

    def place(self, data: bytes, start: int, end: int, stop: int) -> tuple[int, int]:
        """The first place from `start` on and before `end` where one may begin, and its sign's; of signs before `stop`. Of all that go with
        one sign only the first counts: it is as good as the others, and longer. _LATER and the place where one may begin from `end` on;
        -1 and `stop` where there is none."""
        least = start
        at = data.find(self.sign, start, stop)
        while at >= 0:
            if at == least or not self._local[data[at - 1]]:  # as in a row of signs: nothing stands before it
                if at >= end:
                    return _LATER, at
                least = at + 1
                at = data.find(self.sign, least, stop)
                continue
            low = at
            bottom = max(least, at - self.most)
            while low > bottom and self._local[data[low - 1]]:
                low -= 1
            if (dots := data.rfind(b"..", low, at)) >= 0:
                low = dots + 2
            while low < at and low < end and not (_IN_WORD[data[low]] and (low == 0 or not _IN_WORD[data[low - 1]])):
                low += 1
            if low >= end:
                return _LATER, low
            if low < at:
                return low, at
            least = at + 1
            at = data.find(self.sign, least, stop)
        return -1, stop


class Finder:
    """The compiled recognisers. longest: folded characters of the longest possible match. Raises ValueError with one sentence.

    Whether there is any candidate is asked of RE2, with the heads of the patterns: whole patterns, searched for everywhere at once, would
    make an automaton of as many states as a hostile text has characters. Candidates are walked one by one (`Automaton`).
    """

    def __init__(self, recognisers: Sequence[Recogniser]) -> None:
        if not recognisers:
            raise ValueError("no entity is looked for")
        self._recognisers = list(recognisers)
        self.longest = max(one.bounded.longest for one in recognisers)
        self._entities = [one.entity for one in recognisers]
        self._valid = [one.valid for one in recognisers]
        self._whole = [_whole(one) for one in recognisers]
        self._trims = [one.trims for one in recognisers]
        sets = list(dict.fromkeys(one.words for one in recognisers if one.words))
        self._set_of = [sets.index(one.words) if one.words else -1 for one in recognisers]
        self._context = ContextWords(sets)
        self._not_after = [bytes([1 if chr(code) in one.not_after else 0 for code in range(256)]) for one in recognisers]
        self._apart = [one.apart for one in recognisers]
        self._tails = [Tail(one.tail, one.stop) if one.tail else None for one in recognisers]
        self._behind = [Behind(one, number) for number, one in enumerate(recognisers) if one.behind]
        leads = [bounded(one.behind).full for one in recognisers if one.behind]
        self._leads = compiled("|".join(leads)) if leads else None
        self.leading = Leads(dict.fromkeys(one.behind for one in recognisers if one.behind))
        anywhere = [one for one in recognisers if not one.behind]
        if not anywhere:
            raise ValueError("no entity is looked for that needs no context")
        self._by_sign = [_Signed(one, number) for number, one in enumerate(recognisers) if one.sign]
        unsigned = [(number, one) for number, one in enumerate(recognisers) if not (one.behind or one.sign)]
        free = [(number, one) for number, one in unsigned if not one.words]
        words = _distinct(_word(word) for _, one in unsigned for word in one.words)
        self._words = compiled("|".join(words)) if words else None
        self._free_heads = compiled("|".join(_heads([one for _, one in free]))) if free else None
        heads = _heads([one for _, one in unsigned])
        self._all_heads = compiled("|".join(heads)) if unsigned else None
        self.trigger = "|".join([*leads, *(re2.escape(signed.sign.decode("latin-1")) for signed in self._by_sign), *heads])
        """What a text of ASCII has in which `occurs` finds anything, as a pattern of RE2. Nothing can match where no head does, with or
        without context words."""
        first = [*_heads([one for _, one in free]), *words]
        self._first = compiled("|".join(first)) if unsigned else None
        self._hints = compiled("|".join([*leads, *first])) if leads and unsigned else None
        """`_leads` and `_first` in one."""
        self._any, self._numbers = Automaton([one.bounded for _, one in unsigned]), [number for number, _ in unsigned]
        self._free, self._free_numbers = Automaton([one.bounded for _, one in free]), [number for number, _ in free]
        self._opens = Automaton([one.bounded for one in anywhere])
        self._anywhere = [number for number, one in enumerate(recognisers) if not one.behind]
        self._reach = max(one.bounded.longest for one in anywhere)

    def occurs(self, data: bytes) -> bool:
        """Whether anything in the text may be an entity. No means that there is none. In most texts one scan says so."""
        size = len(data)
        hinted = self._hints is None or bool(self._hints.Match(_UNANCHORED, data, 0, size)[0][0] >= 0)
        if hinted and self._leads is not None and self._leads.Match(_UNANCHORED, data, 0, size)[0][0] >= 0:
            return True
        for signed in self._by_sign:
            if signed.place(data, 0, size, size)[0] >= 0:
                return True
        if not hinted or self._first is None or self._first.Match(_UNANCHORED, data, 0, size)[0][0] < 0:
            return False
        if self._words is not None and self._words.Match(_UNANCHORED, data, 0, size)[0][0] >= 0:
            return self._headed(data, self._all_heads, self._any, size)
        return self._free_heads is not None and self._headed(data, self._free_heads, self._free, size)

    def _headed(self, data: bytes, heads: Any, automaton: Automaton, size: int) -> bool:
        """Whether a pattern matches anywhere: looked for by the heads, up to some number of them."""
        place = 0
        for _ in range(_MOST_HEADS):
            place = heads.Match(_UNANCHORED, data, place, size)[0][0]
            if place < 0:
                return False
            if (place == 0 or not _IN_WORD[data[place - 1]]) and automaton.ends(data, place, size):
                return True
            place += 1
        return self._candidate(data, automaton, place, size)

    def _candidate(self, data: bytes, automaton: Automaton, place: int, size: int) -> bool:
        """Whether a pattern matches anywhere from a place on."""
        before = place > 0 and _IN_WORD[data[place - 1]] != 0
        begins = automaton.begins
        while place < size:
            code = data[place]
            if not before and begins[code] and automaton.ends(data, place, size):
                return True
            before = _IN_WORD[code] != 0
            place += 1
        return False

    def around(self, data: bytes, start: int) -> Around:
        """What the text has for `open` and `next`, from `start` on."""
        size = len(data)
        if self._hints is not None and size <= _SHORT and data.isascii() and self._hints.Match(_UNANCHORED, data, 0, size)[0][0] < 0:
            return Around((), True)
        if self._leads is None or self._leads.Match(_UNANCHORED, data, max(0, start - CONTEXT), size)[0][0] < 0:
            return Around(())
        found = [(place, number) for number, behind in enumerate(self._behind) for place in behind.places(data, start)]
        found.sort()
        return Around(found)

    def _worded(self, data: bytes, around: Around) -> bool:
        """Whether there is any context word in the text."""
        worded = around.worded
        if worded is None:
            worded = around.worded = self._words is not None and bool(self._words.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)
        return worded

    def open(self, data: bytes, folded: str, start: int, around: Around | None = None) -> int:
        """The earliest place from `start` on where a match may begin that more text would complete or lengthen; else the text's end."""
        size = end = len(data)
        low = max(start, size - self.longest)
        if around is None:
            around = self.around(data, start)
        for place, number in around.leads:
            if place >= low and self._behind[number].automaton.open(data, place, size):
                end = place
                break
        return self._open_free(data, folded, low, end, around)

    def _open_free(self, data: bytes, folded: str, place: int, end: int, around: Around) -> int:
        """The same for recognisers that need nothing right before them, up to `end`."""
        size = len(data)
        place = max(place, size - self._reach)
        before = place > 0 and _IN_WORD[data[place - 1]] != 0
        opens = self._opens
        begins = opens.begins
        while place < end:
            code = data[place]
            if not before and begins[code]:
                alive = opens.open(data, place, size)
                if alive and self._is_open(data, folded, place, alive, around):
                    return place
            before = _IN_WORD[code] != 0
            place += 1
        return end

    def calm(self, data: bytes, place: int) -> int:
        """What `open` says of a text of ASCII without leads, if no match begins from `place` on; -1 where that is not certain, and where
        there is a control character or an escape. Without a search: for a short text, such as a piece of a stream, it costs less."""
        size = len(data)
        for at in range(place, size):
            if _APART[data[at]]:
                return -1
        before = place > 0 and _IN_WORD[data[place - 1]] != 0
        opens = self._opens
        begins = opens.begins
        while place < size:
            code = data[place]
            if not before and begins[code]:
                alive = opens.undecided(data, place, size)
                if alive is None:
                    return -1
                worded = False
                for pattern in alive:
                    number = self._anywhere[pattern]
                    if not self._refused(number, data, place):
                        if self._set_of[number] < 0:
                            return place
                        worded = True
                if worded:  # whether it is open depends on the words before it
                    return -1
            before = _IN_WORD[code] != 0
            place += 1
        return size

    def _is_open(self, data: bytes, folded: str, place: int, alive: list[int], around: Around) -> bool:
        """Whether the surroundings of one of these recognisers are there."""
        for pattern in alive:
            number = self._anywhere[pattern]
            if self._refused(number, data, place):
                continue
            if self._set_of[number] < 0 or self._in_context(number, data, folded, place, around):
                return True
        return False

    def _in_context(self, number: int, data: bytes, folded: str, place: int, around: Around) -> bool:
        """Whether a context word of a recogniser stands before a place."""
        zones = around.zones
        if zones is None:
            if not self._worded(data, around):
                return False
            zones = around.zones = self._context.zones(data, folded)
        return zones[self._set_of[number]].cover(place)

    def _refused(self, number: int, data: bytes, start: int) -> bool:
        """Whether what is right before a place rules the recogniser out."""
        if start == 0:
            return False
        before = data[start - 1]
        if self._not_after[number][before]:
            return True
        return self._apart[number] and start > 1 and 48 <= data[start - 2] <= 57 and (before == 32 or 45 <= before <= 47 or before == 58)

    def next(
        self, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool], around: Around | None = None
    ) -> Match | None:
        """The leftmost match that begins from `start` on and before `end`. wanted: whether a text counts (it may be on an allow list).
        around: that of the whole of `data`, if it is known."""
        if around is None:
            around = self.around(data, start)
        best: Match | None = None
        for signed in self._by_sign:
            if not around.quiet or data.find(signed.sign, start) >= 0:
                best = _better(best, self._next_signed(signed, data, folded, start, end, wanted, around))
        if around.quiet:
            return best
        if around.leads:
            best = self._next_behind(data, folded, start, end, wanted, around, best)
        return _better(best, self._next_free(data, folded, start, end if best is None else best.start + 1, wanted, around))

    def _next_behind(
        self, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool], around: Around, best: Match | None
    ) -> Match | None:
        """The better one of `best` and the first match right behind something. What begins no match is not judged twice."""
        leads, size = around.leads, len(data)
        if start < around.since:
            around.judged = 0
        around.since = start
        at, none = around.judged, True
        while at < len(leads):
            place, number = leads[at]
            if place >= start:
                if place >= end or (best is not None and place > best.start):
                    break
                behind = self._behind[number]
                found = self._judged(data, folded, place, behind.ends(data, place, size, around), behind.own, wanted, around)
                none = none and found is None
                best = _better(best, found)
            at += 1
            if none:
                around.judged = at
        return best

    def _next_signed(
        self, signed: _Signed, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool], around: Around
    ) -> Match | None:
        """The same for a recogniser with a sign. What a search has seen is not searched again, except for what goes with the first sign
        from `start` on: a match that ended right before `start` may have cut off what spoiled it."""
        if around.signed is None:
            around.signed = {}
        known = around.signed.get(signed.number)
        if known is None:
            known = around.signed[signed.number] = Known()
        elif known.match is not None:
            if known.match.start >= start:
                return known.match if known.match.start < end else None
            known.match = None
        size = stop = len(data)
        if start < known.place:
            stop = data.find(signed.sign, start, known.place) + 1
            if not stop:
                start, stop = known.place, size
        while True:
            place, at = signed.place(data, start, end, stop)
            if place >= 0:
                found = self._judged(data, folded, place, signed.automaton.ends(data, place, size), signed.own, wanted, around)
                if found is not None:
                    known.match = found
                    return found
                start = at + 1
            elif place == _LATER:
                if stop == size:
                    known.place = max(known.place, at)
                return None
            elif stop < size:
                start = stop
            else:
                known.place = size
                return None
            if stop < size and start >= stop:
                start, stop = max(start, known.place), size
            known.place = max(known.place, start)

    def _next_free(self, data: bytes, folded: str, start: int, end: int, wanted: Callable[[str], bool], around: Around) -> Match | None:
        """The same for recognisers that need nothing right before them and have no sign. No place is looked at twice."""
        known = around.free
        if known is None:
            known = around.free = Known()
        elif known.match is not None:
            if known.match.start >= start:
                return known.match if known.match.start < end else None
            known.match = None
        if known.since <= start < known.place:
            start = known.place
        elif start > known.place or start < known.since:
            known.since = known.place = start
        size = len(data)
        worded = self._worded(data, around)
        automaton = self._any if worded else self._free
        own = self._numbers if worded else self._free_numbers
        begins = automaton.begins
        before = start > 0 and _IN_WORD[data[start - 1]] != 0
        while start < end:
            code = data[start]
            if not before and begins[code]:
                ends = automaton.ends(data, start, size)
                if ends:
                    found = self._judged(data, folded, start, ends, own, wanted, around)
                    if found is not None:
                        known.match, known.place = found, start
                        return found
            before = _IN_WORD[code] != 0
            start += 1
        known.place = max(known.place, start)
        return None

    def _judged(
        self,
        data: bytes,
        folded: str,
        start: int,
        ends: list[tuple[list[int], int]],
        own: list[int],
        wanted: Callable[[str], bool],
        around: Around,
    ) -> Match | None:
        """The longest match at a place of those that an automaton has found there. own: the numbers of its patterns."""
        best, chosen, seen = start, -1, 0
        text = ""
        for place in range(len(ends) - 1, -1, -1):  # from the longest on; of a pattern only the longest counts
            patterns, longest = ends[place]
            if longest < best:
                break
            for pattern in patterns:
                number, bit = own[pattern], 1 << pattern
                if seen & bit or (longest == best and number > chosen):
                    continue
                seen |= bit
                if self._refused(number, data, start):
                    continue
                if self._set_of[number] >= 0 and not self._in_context(number, data, folded, start, around):
                    continue
                end, whole = longest, self._whole[number]
                entire = whole is not None or (self._trims[number] and _IN_WORD[data[end - 1]] != 0)
                if entire and self._goes_on(number, data, end):
                    continue
                if len(text) != end - start:
                    text = data[start:end].decode("latin-1")
                if whole is None:
                    end = start + self._valid[number](text)
                    if end < best or (end == best and number > chosen) or self._goes_on(number, data, end):
                        continue
                elif not whole(text):
                    continue
                if wanted(folded[start:end]):
                    best, chosen = end, number
        return Match(start, best, self._entities[chosen], self._tails[chosen]) if chosen >= 0 else None

    def _goes_on(self, number: int, data: bytes, end: int) -> bool:
        """Whether a match would end inside a word."""
        return end < len(data) and _IN_WORD[data[end]] != 0 and self._tails[number] is None


def _whole(one: Recogniser) -> Callable[[str], bool] | None:
    """The validator of a recogniser whose candidates are whole or nothing."""
    if isinstance(one.valid, Whole):
        return one.valid.check
    return bool if one.valid is len else None


def _better(one: Match | None, other: Match | None) -> Match | None:
    """The leftmost, then the one that goes on behind its end, then the longest, then the first."""
    if one is None or other is None:
        return one or other
    if other.start != one.start:
        return other if other.start < one.start else one
    if (other.tail is None) != (one.tail is None):
        return one if other.tail is None else other
    return other if other.end > one.end else one


def _heads(recognisers: Sequence[Recogniser]) -> list[str]:
    """What every match begins with. With a word's boundary before it, where the entity begins with a letter or digit: it spares most
    places."""
    return _distinct(
        rf"\b(?:{one.bounded.head(one.head)})" if one.begins_word else f"(?:{one.bounded.head(one.head)})" for one in recognisers
    )


def _word(word: str) -> str:
    """A context word, with any marks behind its letters. It may find too much, never too little."""
    return "".join(f"\\x{code:02x}\\x80*" for code in as_bytes(_plain(word)))


def _plain(word: str) -> str:
    return fold(word).replace(MARK, "")


def _distinct(patterns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(patterns))
