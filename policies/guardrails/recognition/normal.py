"""Text as the recognisers see it, and the way back to the original.

Every character is folded by itself: compatibility forms (NFKD without marks), digits of every script as 0 to 9, dashes as `-`, white
space as a space; invisible characters vanish. So the folded text of a piece does not depend on what is around it, which a stream needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unicodedata import category, decimal, normalize

from policies.guardrails.folding import CONTROLS, IGNORABLE

MARK: Final = "\u0301"
"""Stands for every combining mark, so that marks cannot hide anything nor grow without bound."""
OTHER_LETTER: Final = "\x80"
OTHER_SIGN: Final = "\x81"
_MOST_KEPT: Final = 65536
"""Characters whose folding is kept."""
_MOST_OF_ONE: Final = 4
"""Characters that one is folded to: more have only Arabic ligatures of whole phrases and a few squared words, in which nothing hides."""
_DASHES: Final = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u00ad\u058a\u30fc")
_DOTS: Final = frozenset("\u3002\uff61\u00b7\u2024")
_SPACES: Final = frozenset("\u0085\u2028\u2029")
# Han, kana, Thai, Lao, Burmese and Khmer are written without spaces; Korean writes particles right behind a number, Arabic and Hebrew right
# before it: a number may begin and end at one of their letters.
_SPACELESS: Final = (
    *((0x0590, 0x077F), (0x0870, 0x08FF), (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x9FFF)),
    *((0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)


class _Table(dict[int, str]):
    """For str.translate: what a function makes of each character, kept for the ones that were seen."""

    def __init__(self, made: Callable[[str], str]) -> None:
        self._made = made

    def __missing__(self, code: int) -> str:
        if len(self) >= _MOST_KEPT:
            self.clear()
        found = self[code] = self._made(chr(code))
        return found


def fold_character(character: str) -> str:
    """What one character is folded to: "" if it is invisible, several for a ligature."""
    return _FOLDED[ord(character)]


def _fold(character: str) -> str:
    if character < "\x80":
        return character
    if IGNORABLE.match(character):
        return ""
    folded = "".join(map(_folded, normalize("NFKD", character))).lstrip(MARK) or MARK
    return folded if len(folded) <= _MOST_OF_ONE else folded[:_MOST_OF_ONE]


def _folded(character: str) -> str:
    if character < "\x80":
        return character
    kind = category(character)
    if kind == "Nd":
        return str(decimal(character))
    if kind[0] == "M":
        return MARK
    if character in _DASHES or kind == "Pd":
        return "-"
    if character in _DOTS:
        return "."
    return " " if kind == "Zs" or character in _SPACES else character


def _byte(character: str) -> str:
    if character < "\x80":
        return character
    code = ord(character)
    if any(low <= code <= high for low, high in _SPACELESS):
        return OTHER_SIGN
    return OTHER_LETTER if category(character)[0] in "LNM" else OTHER_SIGN


_FOLDED: Final = _Table(_fold)
_BYTES: Final = _Table(_byte)
_DATA: Final = _Table(lambda character: "".join(map(_byte, _fold(character))))
_UNMARKED: Final = _Table(lambda character: "".join(_byte(one) for one in _fold(character) if one != MARK))
_COUNTS: Final = _Table(lambda character: chr(len(_fold(character))))


def fold(text: str) -> str:
    return text if text.isascii() else text.translate(_FOLDED)


def as_bytes(folded: str) -> bytes:
    """One byte for each folded character, as RE2 reads it in Latin-1."""
    return folded.encode("ascii") if folded.isascii() else folded.translate(_BYTES).encode("latin-1")


def data_of(text: str) -> bytes:
    """`as_bytes(fold(text))` without control characters of ASCII but NUL, where neither the folded text nor places in it are needed."""
    return (text.encode("ascii") if text.isascii() else text.translate(_DATA).encode("latin-1")).translate(None, CONTROLS)


def unmarked(text: str) -> bytes:
    """The same without marks."""
    return text.encode("ascii") if text.isascii() else text.translate(_UNMARKED).encode("latin-1")


def escapes(data: bytes) -> bytes:
    """The letters of JSON's escapes as signs: in a tool's arguments `\\n` may stand right before an entity. As long as before."""
    if data.find(b"\\") >= 0:  # compiled, `in` costs ten times as much
        for escape in (b"\\n", b"\\r", b"\\t", b"\\b", b"\\f"):
            data = data.replace(escape, b"\\\x81")
    return data


def places(text: str) -> list[int]:
    """For each folded character the place of the character it comes from, and the length of the text at the end."""
    counts = text.translate(_COUNTS)
    if counts.count("\x01") == len(text):
        return list(range(len(text) + 1))
    found: list[int] = []
    data = counts.encode("latin-1")
    for place in range(len(data)):
        count = data[place]
        if count == 1:
            found.append(place)
        else:
            for _ in range(count):
                found.append(place)
    found.append(len(text))
    return found
