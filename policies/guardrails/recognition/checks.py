"""Check digits: the algorithms that several recognisers share. All take ASCII digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
_VERHOEFF: Final = (
    "0123456789",
    "1234067895",
    "2340178956",
    "3401289567",
    "4012395678",
    "5987604321",
    "6598710432",
    "7659821043",
    "8765932104",
    "9876543210",
)
_PERMUTED: Final = ("0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258")


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = ord(digit) - 48
        total += _DOUBLED[value] if place % 2 else value
    return total % 10 == 0


def verhoeff(digits: str) -> bool:
    """The dihedral check of J. Verhoeff, 1969, with the check digit last."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_VERHOEFF[check][int(_PERMUTED[place % 8][int(digit)])])
    return check == 0


def weighted(digits: str, weights: Sequence[int]) -> int:
    """The sum of digits, each times its weight."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def mod_11_10(digits: str) -> bool:
    """ISO 7064 MOD 11,10 with the check digit last."""
    product = 10
    for digit in digits[:-1]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def is_date(year: int, month: int, day: int) -> bool:
    """Whether there is such a day in the Gregorian calendar."""
    if not 1 <= month <= 12 or day < 1:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def is_short_date(digits: str) -> bool:
    """YYMMDD of any century."""
    return any(is_date(century + int(digits[:2]), int(digits[2:4]), int(digits[4:6])) for century in (1900, 2000))
