"""Many phrases at once: an RE2 pattern that says in linear time whether any occurs, and a trie that follows a stream.

Both see folded text (policies.guardrails.folding) and the same word boundaries, and find the same matches: a phrase must not
be preceded or followed by a word character where its own edge is one. One space in a phrase matches one to four.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from unicodedata import combining

import re2

from policies.guardrails.folding import BOUNDARY, encoded, fold, is_word

MAX_PHRASES = 20_000
MAX_LENGTH = 200
MAX_SPACES = 4
MAX_MARKS = 16
_MEMORY = 256 * 1024 * 1024
_UNANCHORED = re2._re2.RE2.Anchor.UNANCHORED
_RUN_OF_SPACES = re.compile(" +")


class Node:
    """One state of the trie. `end`: a phrase ends here."""

    __slots__ = ("end", "next")

    def __init__(self) -> None:
        self.next: dict[str, Node] = {}
        self.end = False


class PhraseSet:
    """The compiled phrases. `longest`: the most folded characters that a match can have.

    Raises ValueError, naming the phrase, for one that cannot be matched, and when there is none or too many.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        folded = sorted({_checked(phrase) for phrase in phrases}, key=lambda phrase: (-len(phrase), phrase))
        if not folded:
            raise ValueError("no phrase is given")
        if len(folded) > MAX_PHRASES:
            raise ValueError(f"{len(folded)} phrases are given; {MAX_PHRASES} are the most")
        self.root = Node()
        for phrase in folded:
            self._insert(phrase)
        self.longest = max(len(phrase) + (MAX_SPACES - 1) * phrase.count(" ") for phrase in folded)
        self._pattern = _compile(folded)

    def occurs(self, text: str) -> bool:
        """Whether any phrase occurs in the whole of `text`."""
        data = encoded(text)
        return bool(self._pattern.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)

    def _insert(self, phrase: str) -> None:
        nodes = [self.root]
        for character in phrase:
            if character == " ":
                # A chain of MAX_SPACES nodes that all lead on to the same states: the trie becomes a graph without loops.
                spaces = [nodes[0].next.setdefault(" ", Node())]
                while len(spaces) < MAX_SPACES:
                    spaces.append(spaces[-1].next.setdefault(" ", Node()))
                nodes = spaces
                continue
            following = nodes[0].next.get(character) or Node()
            for node in nodes:
                node.next[character] = following
            nodes = [following]
        nodes[0].end = True


def _checked(phrase: str) -> str:
    folded = _RUN_OF_SPACES.sub(" ", fold(phrase)).strip()
    if not folded:
        raise ValueError(f"the phrase {phrase[:40]!r} is empty")
    if len(folded) > MAX_LENGTH:
        raise ValueError(f"the phrase {phrase[:40]!r}... is longer than {MAX_LENGTH} characters")
    if not folded.isprintable():
        raise ValueError(f"the phrase {phrase[:40]!r} holds control characters")
    if combining(folded[0]):
        raise ValueError(f"the phrase {phrase[:40]!r} begins with a combining mark")
    marks = 0
    for character in folded:
        marks = marks + 1 if combining(character) else 0
        if marks > MAX_MARKS:
            raise ValueError(f"the phrase {phrase[:40]!r} has more than {MAX_MARKS} combining marks in a row")
    return folded


def _compile(phrases: list[str]) -> re2._re2.RE2:
    """One pattern for all, grouped by whether their edges need a boundary."""
    groups: dict[tuple[bool, bool], list[str]] = {}
    for phrase in phrases:
        escaped = re2.escape(phrase).replace("\\ ", " ").replace(" ", f" {{1,{MAX_SPACES}}}")
        groups.setdefault((is_word(phrase[0]), is_word(phrase[-1])), []).append(escaped)
    alternatives = []
    for (left, right), members in sorted(groups.items()):
        before, after = f"(?:^|{BOUNDARY})" if left else "", f"(?:$|{BOUNDARY})" if right else ""
        alternatives.append(f"{before}(?:{'|'.join(members)}){after}")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = True
    pattern = re2._re2.RE2("|".join(alternatives).encode(), options)
    if not pattern.ok():
        raise ValueError(f"the phrases cannot be compiled: {pattern.error()}")
    return pattern
