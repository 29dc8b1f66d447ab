"""Whether a text looks like a secret: drawn at random, not written by a person, and no stand-in for one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import log2
from typing import Final
from zlib import crc32

import re2

from policies.guardrails.recognition.tail import compiled

_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_STAND_IN: Final = compiled(r"example|changeme|placeholder|your[_-]|redacted|dummy|insert|xxxx|0000|\.\.\.|\*\*\*|12345678|abcdefgh")
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED
_BOTH: Final = re2._re2.RE2.Anchor.ANCHOR_BOTH
_MOST: Final = 1024
_TIMES: Final = [count * log2(count) if count else 0.0 for count in range(_MOST + 1)]
_WORDS: Final = compiled(r"[A-Za-z]{2,}\d{0,2}(?:[._/-]+[A-Za-z]{2,}\d{0,2})*|[A-Za-z]+\d{0,3}")
"""Identifiers and paths, as programs have them."""


def entropy(text: str) -> float:
    """Shannon's, in bits a character."""
    data = text.encode("latin-1", "replace")
    size = len(data)
    if not size:
        return 0.0
    if size > _MOST:
        return log2(size) - sum(count * log2(count) for count in Counter(data).values()) / size
    ordered = sorted(data)
    total, last, count = 0.0, ordered[0], 0
    for code in ordered:
        if code == last:
            count += 1
        else:
            if count > 1:
                total += _TIMES[count]
            last, count = code, 1
    return log2(size) - (total + _TIMES[count]) / size


def stands_in(text: str) -> bool:
    """Whether it only shows where a secret would be."""
    data = text.encode("latin-1", "replace")
    return bool(_STAND_IN.Match(_UNANCHORED, data, 0, len(data))[0][0] >= 0)


def drawn(text: str, bits: float) -> bool:
    """Whether a text has so many bits a character, digits among its letters, and stands for nothing else."""
    return any(character.isdigit() for character in text) and entropy(text) >= bits and not stands_in(text)


def _random(text: str, bits: float) -> bool:
    """The same behind a prefix that only keys have: one in thirty of 20 characters has no digit. Letters of both cases do, too, or capitals
    alone."""
    if not text.isalnum() or (text != text.upper() and (text == text.lower() or text[1:] == text[1:].lower())):
        return drawn(text, bits)
    return entropy(text) >= bits and not stands_in(text)


def token(pattern: str, bits: float = 3.2, prefix: int = 0) -> Callable[[str], int]:
    """A validator: case counts in the whole pattern, and what follows the first `prefix` characters is drawn at random."""
    exact = re.compile(pattern)

    def valid(text: str) -> int:
        found = exact.match(text)
        if found is None:
            return 0
        end = found.end()
        while end > prefix and text[end - 1] in "-.":
            end -= 1
        return end if _random(text[prefix:end], bits) else 0

    return valid


def base62(number: int, size: int) -> str:
    digits = []
    for _ in range(size):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def checksum(body: str) -> str:
    """Six digits: CRC-32 in base62, as GitHub, npm and Gatehouse write it."""
    return base62(crc32(body.encode()), 6)


def password(text: str) -> bool:
    """Whether what stands behind `password=` is one, and not a name, a path or a call. Only its beginning is weighed: hostile texts have
    thousands of them."""
    head = text[:32]
    small = large = digits = others = 0
    for code in head.encode("latin-1", "replace"):
        if 97 <= code <= 122:
            small = 1
        elif 65 <= code <= 90:
            large = 1
        elif 48 <= code <= 57:
            digits = 1
        else:
            others = 1
    kinds = small + large + digits + others
    if len(text) < 8 or kinds < 2 or entropy(head) < (2.5 if len(text) < 16 else 3.0):
        return False
    if stands_in(text[:64]):
        return False
    data = text.encode("latin-1", "replace")
    return bool(_WORDS.Match(_BOTH, data, 0, len(data))[0][0] < 0)
