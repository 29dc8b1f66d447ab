"""How alike two texts are: the Sørensen-Dice coefficient of their words and pairs of words (Dice, 1945). Pure.

It says whether two answers use the same words in much the same order, not whether they mean the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import pairwise
from typing import Final

MOST_WORDS: Final = 4096
"""Of each text; further ones do not count, which bounds the work."""
_WORD: Final = re.compile(r"\w+")


def likeness(one: str, other: str) -> float:
    """0.0: no word in common; 1.0: the same words in the same order, whatever their case, spacing, punctuation and Unicode form."""
    left, right = _terms(one), _terms(other)
    size = left.total() + right.total()
    if not size:
        return 1.0
    return 2.0 * (left & right).total() / size


def _terms(text: str) -> Counter[tuple[str, ...]]:
    words = []
    for found in _WORD.finditer(unicodedata.normalize("NFKC", text[: MOST_WORDS * 16]).casefold()):
        words.append(found.group())
        if len(words) == MOST_WORDS:
            break
    return Counter([*((word,) for word in words), *pairwise(words)])
