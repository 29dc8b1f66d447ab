"""Texts that are written so that people, or other guardrails, do not read them: decoded once, within bounds."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import re2

from policies.guardrails.folding import tagged

MOST: Final = 64
"""Pieces of one window that are decoded."""
LONGEST: Final = 8192
"""Characters of one piece."""
_BASE64: Final = r"[A-Za-z0-9+/_-]{24,}={0,2}"
_HEX: Final = r"(?:(?:\\x|0x)?[0-9a-fA-F]{2}[ ,:]?){16,}"
_PERCENT: Final = r"(?:%[0-9a-fA-F]{2}|[A-Za-z0-9+._-]){24,}"
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED
_ROT13: Final = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "NOPQRSTUVWXYZABCDEFGHIJKLMnopqrstuvwxyzabcdefghijklm"
)
_HEX_SIGNS: Final = re.compile(r"\\x|0x|[ ,:]")
_TAGS: Final = "[\U000e0001\U000e0020-\U000e007f]"
_HIDDEN: Final = re.compile("[\u200b-\u200d\u2060-\u2064\ufeff\u00ad]{8,}|(?:[\u200b\u2060-\u2064\ufeff][^\u200b\u2060-\u2064\ufeff]){12,}")
_TURNED: Final = re.compile("[\u202d\u202e]")
_UNSEEN: Final = re2._re2.RE2("|".join((_TAGS, _HIDDEN.pattern, _TURNED.pattern)).encode(), re2.Options())
"""Whether there is any of these: RE2 says so in a tenth of the time."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A piece of the text from `start` up to `end`, and what it says. alone: how suspicious it is, whatever it says."""

    kind: str
    start: int
    end: int
    text: str
    alone: float = 0.0


def decoded(text: str) -> Iterator[Decoded]:
    """What a text may hide."""
    data = text.encode("utf-8", "replace")
    yield from _pieces(text, data)
    if text.isascii() or _UNSEEN.Match(_UNANCHORED, data, 0, len(data))[0][0] < 0:
        return
    yield from _tagged(text)
    for match in _HIDDEN.finditer(text):
        yield Decoded("invisible_text", *match.span(), "", 0.5)
        break
    if turned := _TURNED.search(text):
        yield Decoded("bidi_override", *turned.span(), text[turned.start() + 1 : turned.start() + 513][::-1], 0.45)


def _tagged(text: str) -> Iterator[Decoded]:
    """What is written in letters of the tag block. The first MOST pieces are read one by one, and all together as one: letters that stand
    apart, behind each other's back, are read as one text, too."""
    said: list[str] = []
    first = last = 0
    for start, end, letters in tagged(text):
        if not said:
            first = start
        said.append(letters)
        last = end
        if len(said) <= MOST:
            yield Decoded("invisible_text", start, end, letters, 0.9)
    if len(said) > 1:
        yield Decoded("invisible_text", first, last, "".join(said), 0.9)


def _pieces(text: str, data: bytes) -> Iterator[Decoded]:
    """data: the text in UTF-8."""
    left, plain = MOST, text.isascii()
    for searched, kind, read in _KINDS:
        place = 0
        while True:
            low, high = searched.Match(_UNANCHORED, data, place, len(data))[0]
            if low < 0:
                break
            place = high
            start, end = (low, high) if plain else (len(data[:low].decode()), len(data[:high].decode()))
            found = read(text[start:end][:LONGEST])
            if found:
                yield Decoded(f"encoded_{kind}", start, end, found)
            left -= 1
            if not left:
                return
    if plain:
        yield Decoded("encoded_rot13", 0, len(text), text.translate(_ROT13))


def _of_base64(text: str) -> str:
    text = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return _readable(b64decode(text[: len(text) // 4 * 4] if len(text) % 4 == 1 else text + "=" * (-len(text) % 4)))
    except (NotBase64, ValueError):
        return ""


def _of_hex(text: str) -> str:
    digits = _HEX_SIGNS.sub("", text)
    return _readable(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _of_percent(text: str) -> str:
    return unquote(text, errors="ignore") if text.count("%") >= 4 else ""


def _readable(data: bytes) -> str:
    """The text, if nearly all of it can be read."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""
    shown = sum(character.isprintable() or character.isspace() for character in text)
    return text if shown >= 0.9 * len(text) else ""


_KINDS: Final = tuple(
    (re2._re2.RE2(pattern.encode(), re2.Options()), kind, read)
    for pattern, kind, read in ((_BASE64, "base64", _of_base64), (_HEX, "hex", _of_hex), (_PERCENT, "percent", _of_percent))
)
"""RE2 searches in linear time."""
