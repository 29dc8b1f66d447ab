"""Many phrases at once: an RE2 pattern that says in linear time whether any occurs, and a trie that follows a stream.

Both see folded text (policies.guardrails.folding) and the same word boundaries, and find the same matches. Where a phrase begins or ends
with a word character, no word character may be next to it. One space in a phrase matches one to four.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final
from unicodedata import combining

import re2

from policies.guardrails.folding import ASCII_BYTES, BEFORE, BOUNDARY, encoded, fold, fold_character, is_word
from policies.guardrails.phrase_bases import LEAST, Base, Bases

MAX_PHRASES = 20_000
MAX_LENGTH = 200
MAX_SPACES = 4
MAX_MARKS = 16
JSON_ESCAPES = frozenset("nrtbf")
"""Letters that behind a backslash stand for white space in JSON."""
_ESCAPES = tuple(b"\\" + letter.encode() for letter in sorted(JSON_ESCAPES))
MAX_LATER = 512
"""Characters of phrases up to which the pattern with the boundaries of words, which takes 2 to 4 ms to compile, is compiled when a text has
the letters of a phrase first: a thousandth of what RE2 has room for, so that it cannot be refused then, and little of a guardrail's budget.
That of the letters is compiled at once, so that a list that cannot be used is refused at the start."""
PAUSE: Final = 0.02
"""Seconds after one has been compiled so until the next one is: a text may have the letters of phrases of thousands of lists. Until then
`may_occur` answers by the letters."""
WINDOW = 1024
"""Characters that are searched at a time: the worst of them (U+FDFA folds to 18) take some milliseconds to follow."""
_MEMORY = 256 * 1024 * 1024
_LARGEST_PORTION = 32 * 1024
_LEAST_PORTION = 2048
_PORTION_WORK = 1_600_000_000
"""Characters times instructions of the pattern that are searched in one step. Each character may add a state to its automaton, and making
one takes the longer, the more phrases there are: with 20,000, a thousand characters of a new kind take a millisecond."""
_AT_ONCE: Final = 512
"""Phrases after which a thread that reads them lets others have the interpreter: compiled code does not do so by itself."""
_ASCII_BOUNDARY = "[^0-9A-Za-z_]"
_ASCII_SPACE = "[\\t-\\r\\x1c-\\x20]"
"""What folding turns into a space, of ASCII."""
_NOTHING = "[^\\x00-\\xff]"
"""Matches nowhere."""
_START = re2._re2.RE2.Anchor.ANCHOR_START
_RUN_OF_SPACES = re.compile(" +")


class Pace:
    """at: when a pattern was compiled last while a text was read, monotonic seconds."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0


_PACE: Final = Pace()
"""That of the whole process."""
_BASES: Final = Bases()
"""Those of the whole process."""


class Node:
    """One state of the trie: the phrases `members[low:high]` (sorted) agree in their first `depth` characters.

    Children are made on demand: the whole trie of thousands of phrases would take more memory than a data worker has, and texts visit
    little of it. Those of a state in which only one phrase is left are not kept: a text with all phrases leaves a fraction of the trie.
    `spaces`: how many spaces in a row led here.
    """

    __slots__ = ("_depth", "_high", "_low", "_members", "_next", "_spaces", "end")

    def __init__(self, members: list[str], low: int, high: int, depth: int, spaces: int = 0) -> None:
        self._members, self._low, self._high, self._depth, self._spaces = members, low, high, depth, spaces
        self._next: dict[str, Node] | None = None
        self.end = len(members[low]) == depth  # the shortest of those that begin alike is sorted first

    def step(self, character: str) -> Node | None:
        """The state after one more character, or None if no phrase continues with it."""
        children = self._next
        if children is None:
            if self._high - self._low == 1:
                return self._only(character)
            children = self._next = self._expanded()
        return children.get(character)

    def _only(self, character: str) -> Node | None:
        """As `step`, where one phrase is left."""
        if character == " " and 0 < self._spaces < MAX_SPACES:
            return Node(self._members, self._low, self._high, self._depth, self._spaces + 1)
        if self.end or self._members[self._low][self._depth] != character:
            return None
        return Node(self._members, self._low, self._high, self._depth + 1, 1 if character == " " else 0)

    def children(self) -> dict[str, Node]:
        if self._next is None:
            self._next = self._expanded()
        return self._next

    def _expanded(self) -> dict[str, Node]:
        members, depth, low = self._members, self._depth, self._low + self.end
        children: dict[str, Node] = {}
        while low < self._high:
            first = members[low]
            character = first[depth]
            high = bisect_left(members, first[:depth] + chr(ord(character) + 1), low, self._high)
            children[character] = Node(members, low, high, depth + 1, 1 if character == " " else 0)
            low = high
        if 0 < self._spaces < MAX_SPACES:
            children[" "] = Node(members, self._low, self._high, depth, self._spaces + 1)
        return children


class PhraseSet:
    """The compiled phrases. `longest`: the most folded characters that a match can have. `window`: how many characters to search at a
    time, so that what must be followed one by one at the end of each is a small part. `portion`: how many folded characters of ASCII may be
    searched in one step.

    Raises ValueError that names a phrase that cannot be matched, or when there are none or too many.
    """

    def __init__(self, phrases: Iterable[str], pace: Pace = _PACE, bases: Bases = _BASES) -> None:
        self._pace = pace
        folded = _folded(phrases)
        if not folded:
            raise ValueError("no phrase is given")
        if len(folded) > MAX_PHRASES:
            raise ValueError(f"{len(folded)} phrases are given; {MAX_PHRASES} are the most")
        self.root = Node(folded, 0, len(folded), 0)
        firsts = frozenset(phrase[0] for phrase in folded)
        self.begins = bytes([1 if chr(ASCII_BYTES[code]) in firsts else 0 for code in range(128)])
        """By code of ASCII: 1 if a phrase may begin with it, else 0."""
        self.longest = max(len(phrase) + (MAX_SPACES - 1) * phrase.count(" ") for phrase in folded)
        self.window = max(WINDOW, 4 * self.longest)
        self.trigger = _trigger(folded)
        self._phrases = folded
        exact: re2._re2.RE2 | None = None
        base: Base | None = None
        added: re2._re2.RE2 | None = None
        size = sum(map(len, folded))
        if size >= LEAST:
            base, added = _shared(folded, bases)
            exact = base.pattern
        elif size > MAX_LATER:
            exact = _compile(_pattern(folded, BOUNDARY, " "))
        self._letters: re2._re2.RE2 = _compile(_pattern(folded, "", " ")) if exact is None else exact
        self._exact, self._base, self._added = exact, base, added
        self._sure = base is None or base.phrases <= frozenset(folded)
        work = self._letters.ProgramSize() + (0 if added is None else added.ProgramSize())
        self.portion = max(_LEAST_PORTION, min(_LARGEST_PORTION, _PORTION_WORK // work))
        self.harmless: Callable[[str], bool | None] = lru_cache(65536)(self._harmless)
        """For a character outside of a match: None when it may begin one or must wait for its marks, else whether a word may go on
        behind it."""

    def _harmless(self, character: str) -> bool | None:
        folded = fold_character(character)
        root = self.root.children()
        if not folded or any(combining(one) or one in root for one in folded):
            return None
        return is_word(folded[-1])

    def occurs(self, text: str) -> bool:
        """Whether any phrase occurs in the whole of `text`; too much where the pattern of another list is used (`made`). The letter of an
        escape of JSON (`\\n`) is read as one, and as none."""
        return self._occurs(encoded(text))

    def occurs_in(self, data: bytes) -> bool:
        """The same for the bytes of a text of ASCII without control characters."""
        return self._occurs(data.translate(ASCII_BYTES))

    def may_occur(self, text: str) -> bool:
        """As `occurs`; too much, but never too little, while what that needs is not compiled yet (PAUSE), or where a pattern is that of
        another list: `made` says so afterwards."""
        return self._occurs(encoded(text), patient=True)

    def may_occur_in(self, data: bytes) -> bool:
        """As `may_occur`, and as `occurs_in`."""
        return self._occurs(data.translate(ASCII_BYTES), patient=True)

    def prepare(self) -> None:
        """Compile all that `occurs` needs."""
        if self._exact is None:
            self._exact = _compile(_pattern(self._phrases, BOUNDARY, " "))

    @property
    def made(self) -> bool:
        """Whether all is compiled that `occurs` needs, for these phrases and no others."""
        return self._exact is not None and self._sure

    def _occurs(self, data: bytes, patient: bool = False) -> bool:
        """Most texts do not even have the letters of a phrase. patient: nothing is compiled for this if something else just was."""
        if self._added is not None and _read(self._added, data):
            return True
        if not _read(self._letters, data):
            return False
        exact = self._exact
        if exact is None:
            if patient and time.monotonic() - self._pace.at < PAUSE:
                return True
            exact = self._exact = _compile(_pattern(self._phrases, BOUNDARY, " "))
            self._pace.at = time.monotonic()
        return exact is self._letters or _read(exact, data)


def _read(pattern: re2._re2.RE2, data: bytes) -> bool:
    """Whether it matches somewhere. The letter of an escape of JSON is read as one, and as none."""
    if pattern.Match(_START, data, 0, len(data))[0][0] >= 0:
        return True
    if b"\\" not in data:
        return False
    for escape in _ESCAPES:
        data = data.replace(escape, b"\\;")
    return bool(pattern.Match(_START, data, 0, len(data))[0][0] >= 0)


def _shared(folded: list[str], bases: Bases) -> tuple[Base, re2._re2.RE2 | None]:
    """The base of a list in use that differs little from this one, with a pattern for what is new; else a base of its own."""
    members = frozenset(folded)
    base = bases.nearest(members)
    if base is None:
        return bases.add(Base(members, _compile(_pattern(folded, BOUNDARY, " ")))), None
    added = sorted(members - base.phrases)
    return base, _compile(_pattern(added, BOUNDARY, " ")) if added else None


def _folded(phrases: Iterable[str]) -> list[str]:
    """The phrases as texts are read, each once, in order. Raises ValueError."""
    found: set[str] = set()
    for number, phrase in enumerate(phrases, 1):
        found.add(_checked(phrase))
        if number % _AT_ONCE == 0:
            time.sleep(0.0)
    return sorted(found)


def _checked(phrase: str) -> str:
    folded = _RUN_OF_SPACES.sub(" ", fold(phrase)).strip()
    if not folded:
        raise ValueError(f"the phrase {phrase[:40]!r} is empty")
    if len(folded) > MAX_LENGTH:
        raise ValueError(f"the phrase {phrase[:40]!r}... is longer than {MAX_LENGTH} characters")
    if not folded.isprintable():
        raise ValueError(f"the phrase {phrase[:40]!r} holds control characters")
    if folded.isascii():
        return folded
    if combining(folded[0]):
        raise ValueError(f"the phrase {phrase[:40]!r} begins with a combining mark")
    marks = 0
    for character in folded:
        marks = marks + 1 if combining(character) else 0
        if marks > MAX_MARKS:
            raise ValueError(f"the phrase {phrase[:40]!r} has more than {MAX_MARKS} combining marks in a row")
    return folded


def _trigger(phrases: list[str]) -> str:
    """What a text of ASCII has in which a phrase occurs, as a pattern of RE2 that ignores case: no phrase but one of ASCII can."""
    return _pattern([phrase for phrase in phrases if phrase.isascii()], _ASCII_BOUNDARY, _ASCII_SPACE) or _NOTHING


def _pattern(phrases: list[str], boundary: str, space: str) -> str:
    """The phrases as alternatives, grouped by whether their edges need a boundary."""
    groups: dict[tuple[bool, bool], list[str]] = {}
    for number, phrase in enumerate(phrases, 1):
        if number % _AT_ONCE == 0:
            time.sleep(0.0)
        escaped = re2.escape(phrase).replace("\\ ", " ").replace(" ", f"{space}{{1,{MAX_SPACES}}}")
        groups.setdefault((is_word(phrase[0]), is_word(phrase[-1])), []).append(escaped)
    alternatives = []
    for (left, right), members in sorted(groups.items()):
        before, after = f"(?:^|{boundary})" if left else "", f"(?:$|{boundary})" if right else ""
        alternatives.append(f"{before}(?:{'|'.join(members)}){after}")
    return "|".join(alternatives)


def _compile(pattern: str) -> re2._re2.RE2:
    """Raises ValueError for one that is too large."""
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    options.log_errors = False
    made = re2._re2.RE2(f"{BEFORE}(?:{pattern})".encode(), options)
    if not made.ok():
        raise ValueError(f"the phrases cannot be compiled: {made.error()}")
    return made
