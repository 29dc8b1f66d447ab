"""Payment cards: the issuers' ranges (IIN) and lengths, and Luhn's check digit (ISO/IEC 7812)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from policies.guardrails.recognition.checks import joined, luhn
from policies.guardrails.recognition.recogniser import Recogniser

_SEPARATOR: Final = re.compile("[ .-]+")
_LONGEST_GROUP: Final = 8
"""Of digits between separators; `1767196800123 200` is a time and a status."""
# From the first number to the last, compared by as many digits as they have; the lengths.
_RANGES: Final = (
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),
    ("300", "305", (14, 16, 17, 18, 19)),  # Diners Club
    ("309", "309", (14, 16, 17, 18, 19)),
    ("36", "36", (14, 16, 17, 18, 19)),
    ("38", "39", (14, 16, 17, 18, 19)),
    ("4", "4", (16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),
    ("6011", "6011", (16, 17, 18, 19)),  # Discover
    ("644", "649", (16, 17, 18, 19)),
    ("65", "65", (16, 17, 18, 19)),
    ("3528", "3589", (16, 17, 18, 19)),  # JCB
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("81", "81", (16, 17, 18, 19)),
    ("2200", "2204", (16, 17, 18, 19)),  # Mir
    ("50", "50", (14, 15, 16, 17, 18, 19)),  # Maestro
    ("56", "59", (14, 15, 16, 17, 18, 19)),
    ("60", "61", (16,)),  # RuPay, Maestro
    ("63", "63", (16, 17, 18, 19)),
    ("67", "67", (14, 15, 16, 17, 18, 19)),
    ("9792", "9792", (16,)),  # Troy
)


@lru_cache(maxsize=10_000)
def _lengths(first: str) -> frozenset[int]:
    """How many digits cards have that begin with these four."""
    found: set[int] = set()
    for low, high, lengths in _RANGES:
        if low <= first[: len(low)] <= high:
            found.update(lengths)
    return frozenset(found)


def _valid(text: str) -> int:
    """The longest leading part that is one, and that ends where a group of digits ends."""
    digits = joined(text)
    lengths = _lengths(digits[:4])
    if not lengths:
        return 0
    if len(digits) == len(text):
        return len(text) if len(text) in lengths and _is_card(digits) else 0
    ends = _ends(text)
    for count in range(len(digits), 13, -1):
        end = ends[count - 1]
        if count in lengths and (end == len(text) or not text[end].isdigit()) and _is_card(digits[:count]):
            groups = _SEPARATOR.split(text[:end])
            return end if len(groups) == 1 or max(map(len, groups)) <= _LONGEST_GROUP else 0
    return 0


def _ends(text: str) -> list[int]:
    """For each digit the place behind it."""
    return [place + 1 for place, character in enumerate(text) if "0" <= character <= "9"]


def _is_card(digits: str) -> bool:
    return luhn(digits) and len(set(digits)) > 1


RECOGNISERS: Final = (Recogniser("card", r"[2-689]\d(?:(?: ?[ .-] ?)?\d){12,17}", _valid, not_after="."),)
