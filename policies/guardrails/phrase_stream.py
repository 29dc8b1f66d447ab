"""What follows a text for the deny list: it masks or blocks phrases, and holds back exactly what could still become part of one.

How the text was cut into pieces makes no difference to what is released.
"""

from __future__ import annotations

from typing import Final, NoReturn
from unicodedata import combining

from gateway.core.errors import GuardrailViolation
from gateway.core.types import MOST_FINDINGS, Finding
from policies.guardrails.folding import (
    ASCII_BYTES,
    ASCII_FOLD,
    ASCII_WORD,
    CONTROLS,
    YPOGEGRAMMENI,
    fold,
    fold_character,
    has_control,
    in_order,
    is_word,
    trim_hidden,
    unveiled,
    veiled,
)
from policies.guardrails.phrases import JSON_ESCAPES, Node, PhraseSet

REASON: Final = "The text contains a phrase that is not allowed here."
MOST_AT_ONCE: Final = 4096
"""Phrases that are masked in one piece of a stream; a piece with more is refused. Whole texts are read in smaller pieces."""
_BULK: Final = 128
"""From this many characters on, a search is quicker than following each one."""
_MAX_PENDING_MARKS: Final = 32
_SIGN: Final = 0
_LETTER: Final = 1
_APART: Final = 2
_KINDS: Final = bytes(
    [_APART if code in CONTROLS or code in b"\x00\\" else _LETTER if chr(ASCII_BYTES[code]) in ASCII_WORD else _SIGN for code in range(128)]
)
"""By code of ASCII: whether it belongs to a word, or is a control character or an escape."""


class _Candidate:
    """A place where a phrase may have begun. `best`: the end of the longest match so far. `node`: None once a longer match is
    impossible."""

    __slots__ = ("best", "node", "start")

    def __init__(self, start: int, node: Node) -> None:
        self.start = start
        self.node: Node | None = node
        self.best: int | None = None


class DenyListStream:
    """Follows one text as it grows. With a `replacement` it masks, without one it blocks.

    All candidates advance together, one folded character at a time. The leftmost candidate wins, with its longest match.
    """

    __slots__ = (
        "_active",
        "_base",
        "_done",
        "_end",
        "_held",
        "_hidden",
        "_long_run",
        "_mark_place",
        "_marks",
        "_name",
        "_out",
        "_phrases",
        "_replaced",
        "_replacement",
        "_root",
        "_slash",
        "_veiled",
        "_word",
        "findings",
    )
    reason = REASON

    def __init__(self, name: str, phrases: PhraseSet, replacement: str | None) -> None:
        self._name, self._phrases, self._replacement = name, phrases, replacement
        self._root = phrases.root.children()
        self._active: list[_Candidate] = []
        self._held = ""
        self._base = 0  # place of the first held character in the text
        self._done = 0  # how many of the held characters have gone into `_out`, or are replaced there
        self._out: list[str] = []
        self._word = False  # whether the last folded character belongs to a word
        self._slash = False  # whether the last folded character is a backslash
        self._end = 0  # the place after the last folded character
        self._marks: list[str] = []  # combining marks that wait to be put in order
        self._mark_place = 0  # the place of the last of them
        self._long_run = False
        self._hidden = ""  # the end of the text so far, as `trim_hidden` wants it
        self._replaced = 0  # phrases in the piece that is fed
        self._veiled = False  # whether control characters stand in other shapes here
        self.findings: list[Finding] = []

    @property
    def held(self) -> str:
        held = self._held[self._done :]
        return unveiled(held) if self._veiled else held

    def feed(self, text: str) -> str:
        """Returns what may pass now. Raises GuardrailViolation when the list blocks and a phrase is complete."""
        self._replaced = 0
        if self._begins_nowhere(text):
            self._hidden = ""
            return text
        if has_control(text):
            text, self._veiled = veiled(text), True
        text, self._hidden, cut = trim_hidden(text, self._hidden)
        if cut and self._replacement is None:
            raise GuardrailViolation(REASON, code=self._name)
        place = self._base + len(self._held)
        self._held += text
        position, size = 0, len(text)
        window, least = self._phrases.window, max(_BULK, self._phrases.longest + 1)
        while position < size:
            end = size
            if size - position >= _BULK and not (self._active or self._marks or self._long_run):
                position += self._skip(text[position : position + window], place + position)
                end = position + least
            elif size - position > least:
                end = position + least
            self._follow(text[position:end], place + position)
            position = min(end, size)
        return self._released(place + size)

    def _begins_nowhere(self, text: str) -> bool:
        """Whether a short text of ASCII passes as it is, because nothing is held and no phrase begins in it."""
        if self._active or self._marks or self._held or self._long_run or self._slash or not text.isascii():
            return False
        size = len(text)
        if not size or size >= _BULK:
            return False
        data, begins, word = text.encode("ascii"), self._phrases.begins, self._word
        for place in range(size):
            code = data[place]
            kind = _KINDS[code]
            if kind == _APART or (begins[code] and not (word and kind == _LETTER)):
                return False
            word = kind == _LETTER
        self._word = word
        self._base += size
        self._end = self._base
        return True

    def _follow(self, text: str, place: int) -> None:
        """Steps through a text character by character."""
        root, harmless = self._root, self._phrases.harmless
        for character in text:
            folded = ASCII_FOLD.get(character)
            if folded is None:
                if self._active or self._marks or (word := harmless(character)) is None:
                    self._wide(character, place)
                else:
                    self._long_run = False
                    self._word = word
                    self._end = place + 1
            else:
                if self._marks or self._long_run:
                    self._order_marks()
                if self._active or folded in root:
                    self._step(folded, place)
                else:
                    self._word = folded in ASCII_WORD
                    self._end = place + 1
                if self._slash and folded in JSON_ESCAPES:
                    self._word = False  # in a tool's arguments it is no letter: a phrase may begin behind it
                self._slash = folded == "\\"
            place += 1

    def finish(self) -> str:
        """The rest, at the end of the text."""
        self._order_marks()
        for candidate in self._active:
            if candidate.node is not None and candidate.node.end:
                candidate.best = self._end
            candidate.node = None
        self._resolve()
        return self._released(self._base + len(self._held))

    def _wide(self, character: str, place: int) -> None:
        """Follows a character beyond ASCII, which folds to any number of characters. Marks wait for their neighbours."""
        for folded in fold_character(character):
            if not combining(folded):
                self._order_marks()
                self._step(folded, place)
            elif self._long_run:
                if self._active or folded in self._root:
                    self._step(folded, place)
                else:
                    self._word = True
                    self._end = place + 1
            else:
                self._marks.append(folded)
                self._mark_place = place
                if len(self._marks) >= _MAX_PENDING_MARKS:
                    # No phrase has so many marks in a row: nothing matches inside such a run, whatever its order.
                    self._order_marks()
                    self._long_run = True

    def _order_marks(self) -> None:
        self._long_run = False
        if self._marks:
            marks, self._marks = self._marks, []
            for mark in in_order(marks):
                self._step(mark, self._mark_place)

    def _step(self, folded: str, place: int) -> None:
        word = is_word(folded)
        if self._active:
            self._advance(folded, not (word and self._word))
        node = self._root.get(folded)
        if node is not None and not (word and self._word):
            self._active.append(_Candidate(place, node))
        self._word = word
        self._end = place + 1

    def _advance(self, folded: str, boundary: bool) -> None:
        settled = False
        for candidate in self._active:
            node = candidate.node
            if node is None:
                continue
            if node.end and boundary:
                candidate.best = self._end
                if self._replacement is None:
                    self._refuse(candidate.start, self._end)
            candidate.node = node.step(folded)
            if candidate.node is None:
                settled = True
        if settled:
            self._resolve()

    def _resolve(self) -> None:
        """Settles candidates from the left, up to the first that is undecided."""
        active = self._active
        while active and active[0].node is None:
            first = active.pop(0)
            best = first.best
            if best is None:
                continue
            if self._replacement is None:
                self._refuse(first.start, best)
            self._noted(first.start, best)
            self._replaced += 1
            if self._replaced > MOST_AT_ONCE:
                raise GuardrailViolation(REASON, code=self._name)
            self._out.append(self._held[self._done : first.start - self._base])
            self._out.append(self._replacement)
            self._done = best - self._base
            active[:] = [candidate for candidate in active if candidate.start >= best]

    def _noted(self, start: int, end: int) -> None:
        if len(self.findings) < MOST_FINDINGS:
            value = unveiled(self._held[start - self._base : end - self._base])
            self.findings.append(Finding("phrase", start, end, value))

    def _refuse(self, start: int, end: int) -> NoReturn:
        self._noted(start, end)
        raise GuardrailViolation(REASON, code=self._name)

    def _released(self, end: int) -> str:
        if self._active:
            end = self._active[0].start
        elif self._marks and YPOGEGRAMMENI in self._marks:
            end = self._mark_place  # the letter that it will be may begin a phrase
        cut = end - self._base
        self._out.append(self._held[self._done : cut])
        self._held = self._held[cut:]
        self._base += cut
        self._done = 0
        out = "".join(self._out)
        self._out.clear()
        return unveiled(out) if self._veiled else out

    def _skip(self, text: str, place: int) -> int:
        """How many leading characters of a piece need not be followed: if it has no phrase, all but those at its end with which
        one could begin. The pattern sees a word boundary at both ends of the piece, so it may find too much but never too little."""
        if self._phrases.may_occur(text):
            return 0
        cut, left = len(text), self._phrases.longest + 1
        while cut > 0 and left > 0:
            cut -= 1
            left -= 1 if fold_character(text[cut]) else 0
        while cut > 0 and _begins_nothing(text[cut]):
            cut -= 1
        before = fold(text[max(0, cut - 2 * _MAX_PENDING_MARKS) : cut])
        if cut <= 0 or not before:
            return 0
        self._word = is_word(before[-1]) and not (before[-1] in JSON_ESCAPES and before[-2:-1] == "\\")
        self._slash = before[-1] == "\\"
        self._end = place + cut
        self._long_run = False
        return cut


def _begins_nothing(character: str) -> bool:
    """Whether a character is invisible or goes with the one before it."""
    folded = fold_character(character)
    return not folded or combining(folded[0]) != 0
