"""Whether a text looks like a secret: drawn at random, not written by a person, and no stand-in for one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import log2
from typing import Final
from zlib import crc32

_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
STAND_INS: Final = (
    *("example", "changeme", "placeholder", "your_", "your-", "redacted", "dummy", "insert", "xxxx", "0000", "...", "***"),
    *("12345678", "abcdefgh"),
)
_MOST: Final = 1024
_FEW: Final = 24
"""Up to so many characters counting them in pairs is cheaper than sorting."""
_TIMES: Final = [count * log2(count) if count else 0.0 for count in range(_MOST + 1)]
_KINDS: Final = bytes(
    1 if chr(code).isalpha() and code < 128 else 2 if 48 <= code <= 57 else 3 if chr(code) in "._/-" else 0 for code in range(256)
)
"""By code: a letter, a digit, a separator in names, or anything else."""


def _classed() -> bytes:
    """For bytes.translate: a number for every character that stand-ins have, 0 for all others."""
    used = sorted(set("".join(STAND_INS)))
    return bytes(used.index(chr(code).lower()) + 1 if code < 128 and chr(code).lower() in used else 0 for code in range(256))


_CLASSED: Final = _classed()
_FOUND: Final = 255


def _searching() -> bytes:
    """The automaton of A. V. Aho and M. J. Corasick (1975) for the stand-ins: for each state a row of 64 next ones, by class; _FOUND where
    one of them ends. It is here because a call of RE2 costs more than all of a short text."""
    children: list[dict[int, int]] = [{}]
    ends = {0: False}
    for word in STAND_INS:
        state = 0
        for code in word.encode().translate(_CLASSED):
            if code not in children[state]:
                children[state][code] = len(children)
                ends[len(children)] = False
                children.append({})
            state = children[state][code]
        ends[state] = True
    table = [[0] * 64 for _ in children]
    waiting, back = [0], [0] * len(children)
    for state in waiting:
        for code in range(64):
            inherited = table[back[state]][code] if state else 0
            after = children[state].get(code)
            if after is None:
                table[state][code] = inherited
                continue
            back[after] = inherited
            table[state][code] = _FOUND if ends[after] else after
            waiting.append(after)
    return bytes([after for row in table for after in row])


_NEXT: Final = _searching()


def entropy(text: str) -> float:
    """Shannon's, in bits a character."""
    return _entropy(text.encode("latin-1", "replace"))


def _entropy(data: bytes) -> float:
    size = len(data)
    if not size:
        return 0.0
    if size > _MOST:
        return log2(size) - sum(count * log2(count) for count in Counter(data).values()) / size
    total = 0.0
    if size <= _FEW:
        for place in range(size):
            code, before = data[place], 0
            for other in range(place):
                if data[other] == code:
                    before += 1
            if before:
                total += _TIMES[before + 1] - _TIMES[before]
        return log2(size) - total / size
    ordered = sorted(data)
    last, count = ordered[0], 0
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
    return _stands_in(text.encode("latin-1", "replace"))


def _stands_in(data: bytes) -> bool:
    codes, state = data.translate(_CLASSED), 0
    for place in range(len(codes)):
        state = _NEXT[64 * state + codes[place]]
        if state == _FOUND:
            return True
    return False


def _is_name(data: bytes) -> bool:
    """Whether it is an identifier or a path, as programs have them: words of two letters or more with up to two digits behind each, between
    `.`, `_`, `/` and `-`; or letters with up to three digits."""
    size, place, words = len(data), 0, 0
    while True:
        begin = place
        while place < size and _KINDS[data[place]] == 1:
            place += 1
        letters, begin = place - begin, place
        while place < size and _KINDS[data[place]] == 2:
            place += 1
        digits = place - begin
        words += 1
        if place == size and words == 1:
            return letters > 0 and digits <= 3
        if letters < 2 or digits > 2:
            return False
        if place == size:
            return True
        begin = place
        while place < size and _KINDS[data[place]] == 3:
            place += 1
        if place == begin:
            return False


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
    if len(text) < 8:
        return False
    data = text.encode("latin-1", "replace")
    head = data[:32]
    small = large = digits = others = 0
    for place in range(len(head)):
        code = head[place]
        if 97 <= code <= 122:
            small = 1
        elif 65 <= code <= 90:
            large = 1
        elif 48 <= code <= 57:
            digits = 1
        else:
            others = 1
    if small + large + digits + others < 2 or _is_name(data):
        return False
    return _entropy(head) >= (2.5 if len(text) < 16 else 3.0) and not _stands_in(data[:64])
