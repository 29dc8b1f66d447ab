"""Payment cards: the issuers' ranges (IIN) and lengths, and Luhn's check digit (ISO/IEC 7812)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from policies.guardrails.recognition.checks import joined
from policies.guardrails.recognition.recogniser import Recogniser

_FEWEST: Final = 14
_HEAD: Final = 16
"""Characters that have the first four digits, whatever stands between them."""
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
    """The longest leading part that is one, and that ends where a group of digits ends. Luhn's sum is kept for both cases: the digits at
    even places doubled, for parts with an even number of digits, and those at odd places."""
    lengths = _lengths(joined(text[:_HEAD])[:4])
    if not lengths:
        return 0
    best, count, even, odd, group, longest, last = 0, 0, 0, 0, 0, 0, len(text) - 1
    first, same = text[0], True
    for place in range(last + 1):
        character = text[place]
        if not "0" <= character <= "9":
            group = 0
            continue
        digit = ord(character) - 48
        doubled = 2 * digit - 9 if digit > 4 else 2 * digit
        if count % 2:
            even, odd = even + digit, odd + doubled
        else:
            even, odd = even + doubled, odd + digit
        count += 1
        group += 1
        same = same and character == first
        if group > longest:
            longest = group
        if count < _FEWEST or same or (odd if count % 2 else even) % 10 or count not in lengths:
            continue
        if place == last or not "0" <= text[place + 1] <= "9":
            best = place + 1 if longest == count or longest <= _LONGEST_GROUP else 0
    return best


RECOGNISERS: Final = (Recogniser("card", r"[2-689]\d(?:(?: ?[ .-] ?)?\d){12,17}", _valid, not_after="."),)
