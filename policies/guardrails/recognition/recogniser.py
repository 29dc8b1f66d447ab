"""What a recogniser is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from policies.guardrails.recognition.bounded import Bounded, bounded
from policies.guardrails.recognition.normal import MARK, fold

CONTEXT: Final = 48
"""Folded characters before a candidate in which its context words are looked for."""
_ESCAPE: Final = re.compile(r"\\[nrtbf]")


@dataclass(frozen=True)
class Recogniser:
    """One way to write an entity.

    pattern: of candidates (policies.guardrails.recognition.bounded), ASCII, in any case. valid: how many leading characters of a candidate
    are the entity, 0 for none; it gets the longest text that the pattern matches. words: if given, one of them must stand in the CONTEXT
    characters before. not_after: what must not stand right before a match; letters, digits and underscores never may, on either side.
    apart: neither may a digit with a separator: it would be a part of a longer number. behind: a pattern that must match right before it,
    in at most CONTEXT characters; only where it does is anything held. tail: it goes on for as long as there are characters of this class
    (in RE2's syntax, over folded text), up to the end of `stop`.
    """

    entity: str
    pattern: str
    valid: Callable[[str], int] = len
    words: tuple[str, ...] = ()
    not_after: str = ""
    apart: bool = False
    behind: str = ""
    tail: str = ""
    stop: str = ""

    @cached_property
    def bounded(self) -> Bounded:
        return bounded(self.pattern)

    @cached_property
    def begins_word(self) -> bool:
        """Whether it begins with a letter or digit of ASCII."""
        return all(character.isascii() and (character.isalnum() or character == "_") for character in self.bounded.first)

    @cached_property
    def _context(self) -> re.Pattern[str]:
        words = (re.escape(fold(word).replace(MARK, "").lower()) for word in self.words)
        return re.compile(rf"(?<![^\W\d_])(?:{'|'.join(words)})(?![^\W\d_])|(?:{'|'.join(map(re.escape, _spaceless(self.words)))})")

    def in_context(self, before: str) -> bool:
        """Whether a context word stands in the folded text before a candidate."""
        return not self.words or self._context.search(_ESCAPE.sub("  ", before).replace(MARK, "").lower()) is not None


def _spaceless(words: tuple[str, ...]) -> list[str]:
    """The words of scripts without spaces, which need no boundary around them."""
    return [word for word in words if "\u2e80" <= word[0] <= "\u9fff"] or ["\x00"]


def has(check: Callable[[str], bool]) -> Callable[[str], int]:
    """A validator of whole candidates."""

    def valid(text: str) -> int:
        return len(text) if check(text) else 0

    return valid


def digits_of(text: str) -> str:
    return "".join([character for character in text if character.isdigit()])


def shortened(text: str, check: Callable[[str], bool], lengths: range) -> int:
    """The longest leading part of digits with single separators whose digits pass a check, and that ends where a group ends."""
    digits = digits_of(text)
    ends = [place + 1 for place, character in enumerate(text) if character.isdigit()]
    for count in range(min(len(digits), lengths.stop - 1), lengths.start - 1, -1):
        end = ends[count - 1]
        if (end == len(text) or not text[end].isdigit()) and check(digits[:count]):
            return end
    return 0
