"""United States social security numbers and individual taxpayer numbers (SSA POMS RM 10201.035; IRS)."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.checks import digits_of, has, several
from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    "ssn",
    "ssns",
    "ss#",
    "social security",
    "social security number",
    "social security no",
    "itin",
    "taxpayer id",
    "taxpayer identification",
)
_SAMPLES: Final = frozenset({"078051120", "219099999", "123456789", "987654321"})


def _valid(text: str) -> bool:
    digits = digits_of(text)
    area, group, serial = digits[:3], int(digits[3:5]), digits[5:]
    if digits in _SAMPLES or not several(digits, 2) or serial == "0000":
        return False
    if area[0] == "9":  # a taxpayer's number
        return 50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99
    return area not in ("000", "666") and group != 0


RECOGNISERS: Final = (
    Recogniser("ssn", r"\d{3}-\d{2}-\d{4}", has(_valid), not_after="-."),
    Recogniser("ssn", r"\d{3}[ .]?\d{2}[ .]?\d{4}", has(_valid), WORDS, not_after="-."),
)
