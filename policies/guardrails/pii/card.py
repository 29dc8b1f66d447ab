"""Payment cards: the issuers' ranges (IIN) and lengths, and Luhn's check digit (ISO/IEC 7812)."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

_FEWEST: Final = 14
_FIRST: Final = 4
"""Digits that say how many there are."""
_LONGEST_GROUP: Final = 8
"""The longest group of digits between separators; `1767196800123 200` is a time and a status."""
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


def _by_first() -> list[int]:
    """For each number of four digits: the lengths of the cards that begin with it, a bit for each."""
    found = [0] * 10_000
    for low, high, lengths in _RANGES:
        bits = sum(1 << length for length in lengths)
        for first in range(int(low.ljust(4, "0")), int(high.ljust(4, "9")) + 1):
            found[first] |= bits
    return found


_LENGTHS: Final = _by_first()


def _valid(text: str) -> int:
    """The longest leading part that is one, and that ends where a group of digits ends. Luhn's sum is kept for both cases: the digits at
    even places doubled, for parts with an even number of digits, and those at odd places."""
    data = text.encode("latin-1", "replace")
    best = count = even = odd = group = longest = first = lengths = 0
    size, same, begin = len(data), True, data[0]
    for place in range(size):
        code = data[place]
        if code < 48 or code > 57:
            group = 0
            continue
        digit = code - 48
        doubled = 2 * digit - 9 if digit > 4 else 2 * digit
        if count & 1:
            even, odd = even + digit, odd + doubled
        else:
            even, odd = even + doubled, odd + digit
        count += 1
        group += 1
        if code != begin:
            same = False
        if group > longest:
            longest = group
        if count < _FEWEST:
            if count <= _FIRST:
                first = first * 10 + digit
                if count == _FIRST:
                    lengths = _LENGTHS[first]
                    if not lengths:
                        return 0
            continue
        if same or (odd if count & 1 else even) % 10 or not lengths >> count & 1:
            continue
        if place + 1 == size or not 48 <= data[place + 1] <= 57:
            best = place + 1 if longest == count or longest <= _LONGEST_GROUP else 0
    return best


RECOGNISERS: Final = (Recogniser("card", r"[2-689]\d(?:(?: ?[ .-] ?)?\d){12,17}", _valid, not_after="."),)
