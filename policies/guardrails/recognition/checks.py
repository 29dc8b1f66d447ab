"""Check digits: the algorithms that several recognisers share. All take ASCII digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_DOUBLED: Final = bytes.maketrans(b"0123456789", b"0246813579")
_SEPARATORS: Final = {ord(sign): None for sign in " .-/()+"}
_VERHOEFF: Final = b"0123456789123406789523401789563401289567401239567859876043216598710432765982104387659321049876543210"
_PERMUTED: Final = b"01234567891576283094580379614289160435279453126870428657390127938064157046913258"


class Whole:
    """A validator of whole candidates: all of one is the entity, or nothing. check: whether it is."""

    __slots__ = ("check",)

    def __init__(self, check: Callable[[str], bool]) -> None:
        self.check: Callable[[str], bool] = check

    def __call__(self, text: str) -> int:
        return len(text) if self.check(text) else 0


def has(check: Callable[[str], bool]) -> Whole:
    return Whole(check)


def digits_of(text: str) -> str:
    if text.isdigit():
        return text
    text = text.translate(_SEPARATORS)
    return text if text.isdigit() else "".join([character for character in text if character.isdigit()])


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    data = digits.encode("ascii")
    return (sum(data[::-2]) + sum(data[-2::-2].translate(_DOUBLED)) - 48 * len(data)) % 10 == 0


def several(digits: str, least: int) -> bool:
    """Whether there are so many different ones among ASCII digits."""
    seen = 0
    for code in digits.encode("ascii"):
        bit = 1 << (code - 48)
        if not seen & bit:
            seen |= bit
            least -= 1
            if not least:
                return True
    return False


def number(digits: str, begin: int, end: int) -> int:
    """What the digits from `begin` up to `end` say."""
    found, data = 0, digits.encode("ascii")
    for place in range(begin, end):
        found = found * 10 + data[place] - 48
    return found


def verhoeff(digits: str) -> bool:
    """The dihedral check of J. Verhoeff, 1969, with the check digit last."""
    data, check, row = digits.encode("ascii"), 0, 0
    for place in range(len(data) - 1, -1, -1):
        check = _VERHOEFF[10 * check + _PERMUTED[row + data[place] - 48] - 48] - 48
        row = row + 10 if row < 70 else 0
    return check == 0


def weighted(digits: str, weights: tuple[int, ...]) -> int:
    """The sum of digits, each times its weight."""
    total, data = 0, digits.encode("ascii")
    for place in range(min(len(data), len(weights))):
        total += (data[place] - 48) * weights[place]
    return total


def mod_11_10(digits: str) -> bool:
    """ISO 7064 MOD 11,10 with the check digit last."""
    product, data = 10, digits.encode("ascii")
    for place in range(len(data) - 1):
        product = ((data[place] - 48 + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == data[-1] - 48


def is_date(year: int, month: int, day: int) -> bool:
    """Whether there is such a day in the Gregorian calendar."""
    if not 1 <= month <= 12 or day < 1:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def is_short_date(digits: str) -> bool:
    """YYMMDD of any century."""
    year, month, day = number(digits, 0, 2), number(digits, 2, 4), number(digits, 4, 6)
    return is_date(1900 + year, month, day) or is_date(2000 + year, month, day)
