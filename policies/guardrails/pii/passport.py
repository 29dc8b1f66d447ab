"""Passport numbers behind a word for a passport, in ten languages. Most have no check digit outside of the machine-readable zone."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    *("passport", "passports", "passport number", "passeport", "reisepass", "reisepassnummer", "passnummer", "pasaporte", "passaporto"),
    *("passaporte", "paspoort", "paspoortnummer", "paszport", "paszportu", "护照", "护照号码", "パスポート", "여권"),
)


def _valid(text: str) -> bool:
    """Germany's have letters and digits in any order; words have no digits."""
    digits = 0
    for code in text.encode("latin-1", "replace"):
        if 48 <= code <= 57:
            digits += 1
    return digits > 1


RECOGNISERS: Final = (
    Recogniser("passport", r"[a-z]{1,2} ?\d{6,8}", words=WORDS),
    Recogniser("passport", r"[a-z]\d{6}[a-z]\d", words=WORDS),
    Recogniser("passport", r"\d{8,9}", words=WORDS),
    Recogniser("passport", r"\d{2}[a-z]{2}\d{5}", words=WORDS),  # France
    Recogniser("passport", r"[cfghjk][cfghjklmnprtvwxyz0-9]{8}", has(_valid), WORDS),  # Germany
    Recogniser("passport", r"[a-z]{3}\d{6}[a-z]?", words=WORDS),  # Spain
    Recogniser("passport", r"\d{2} \d{7}", words=WORDS),  # Russia
)
