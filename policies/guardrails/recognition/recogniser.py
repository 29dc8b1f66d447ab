"""What a recogniser is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from policies.guardrails.recognition.bounded import Bounded, bounded


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
    first characters candidates are looked for: so many that ordinary words are none. trims: `valid` drops signs at the end and nothing
    else, so what ends inside a word need not be asked about. languages: those of the countries that issue it, as two letters (ISO 639-1);
    none: it is of no one country.
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
    trims: bool = False
    languages: tuple[str, ...] = ()

    @cached_property
    def bounded(self) -> Bounded:
        return bounded(self.pattern)

    @cached_property
    def begins_word(self) -> bool:
        """Whether it begins with a letter or digit of ASCII."""
        return all(character.isascii() and (character.isalnum() or character == "_") for character in self.bounded.first)
