"""What a recogniser is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import re2

from policies.guardrails.recognition.bounded import Bounded, bounded
from policies.guardrails.recognition.normal import MARK, fold

CONTEXT: Final = 48
"""Folded characters before a candidate in which its context words are looked for."""
_ESCAPE: Final = re.compile(r"\\[nrtbf]")
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED


@dataclass(frozen=True)
class Recogniser:
    """One way to write an entity.

    pattern: of candidates (policies.guardrails.recognition.bounded), ASCII, in any case. valid: how many leading characters of a candidate
    are the entity, 0 for none; it gets the longest text that the pattern matches. words: if given, one of them must stand in the CONTEXT
    characters before. not_after: what must not stand right before a match; letters, digits and underscores never may, on either side.
    apart: neither may a digit with a separator: it would be a part of a longer number. behind: a pattern that must match right before it,
    in at most CONTEXT characters; only where it does is anything held. tail: it goes on for as long as there are characters of this class
    (in RE2's syntax, over folded text), up to the end of `stop`. sign: a rare sign that every match has, once, with only characters of the
    class `local` before it, at most 64 and never two dots in a row: it is looked for by its sign. head: by how many of its
    first characters candidates are looked for: so many that ordinary words are none.
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
    sign: str = ""
    local: str = ""
    head: int = 5

    @cached_property
    def bounded(self) -> Bounded:
        return bounded(self.pattern)

    @cached_property
    def begins_word(self) -> bool:
        """Whether it begins with a letter or digit of ASCII."""
        return all(character.isascii() and (character.isalnum() or character == "_") for character in self.bounded.first)

    @cached_property
    def _ascii(self) -> Any:
        """The words that a text of ASCII can have."""
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.case_sensitive = False
        options.never_capture = True
        words = [re2.escape(plain) for word in self.words if (plain := fold(word).replace(MARK, "").lower()).isascii()]
        return re2._re2.RE2(f"[^a-z](?:{'|'.join(words) or chr(0)})(?:$|[^a-z])".encode(), options)

    @cached_property
    def _context(self) -> re.Pattern[str]:
        words = (re.escape(fold(word).replace(MARK, "").lower()) for word in self.words)
        return re.compile(rf"(?<![^\W\d_])(?:{'|'.join(words)})(?![^\W\d_])|(?:{'|'.join(map(re.escape, _spaceless(self.words)))})")

    def in_context(self, before: str) -> bool:
        """Whether a context word stands in the folded text before a candidate."""
        return not self.words or self.context(" " + before)[0] >= 0

    def context(self, before: str) -> tuple[int, int]:
        """Where in the folded text before a candidate a context word stands, with the sign before it and behind it; -1 where none does. The
        first character only says whether a word may begin behind it."""
        if before.isascii():
            data = before.encode("ascii")
            if b"\\" in data:
                data = _ESCAPE.sub("  ", before).encode("ascii")
            begin, end = self._ascii.Match(_UNANCHORED, data, 0, len(data))[0]
            return begin, end
        found = self._context.search(_ESCAPE.sub("  ", before).replace(MARK, "").lower(), 1)
        return (-1, -1) if found is None else (0, len(before))


def _spaceless(words: tuple[str, ...]) -> list[str]:
    """The words of scripts without spaces, which need no boundary around them."""
    return [word for word in words if "\u2e80" <= word[0] <= "\u9fff"] or ["\x00"]
