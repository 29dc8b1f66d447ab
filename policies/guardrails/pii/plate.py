"""Number plates of vehicles behind a word for them. They have no check digit, so the word is what makes them known."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    *("plate", "plates", "license plate", "licence plate", "number plate", "plate number", "registration plate", "vehicle registration"),
    *("reg", "kennzeichen", "kfz", "immatriculation", "plaque", "matrícula", "targa", "placa", "kenteken", "rejestracyjny", "车牌"),
)


def _valid(text: str) -> int:
    """The longest leading part that is one and ends where a group of signs ends. Capitals, as people write plates; small letters where no
    space makes words of them (`ab12cde`, but not `in 2024`)."""
    end = len(text)
    while end > 3:
        part = text[:end]
        spaces = part.count(" ")
        if not spaces or part == part.upper():
            digits, signs = sum(map(str.isdigit, part)), end - spaces - part.count("-")
            if 4 <= signs <= 9 and 0 < digits < signs:
                return end
        end = max(text.rfind(" ", 0, end), text.rfind("-", 0, end))
    return 0


RECOGNISERS: Final = (
    Recogniser("plate", r"[a-z][a-z\l]{0,3}[ -]?[a-z]{1,2}[ -]?\d{1,4}[eh]?", _valid, WORDS),  # Germany, Romania
    # Austria, Denmark, Finland, France, Hungary, Italy, Norway, Sweden, Switzerland, United Kingdom
    Recogniser("plate", r"[a-z]{1,3}[ -]?\d{1,6}(?:[ -]\d{2,3})?[ -]?[a-z]{0,3}", _valid, WORDS),
    Recogniser("plate", r"[a-z]{2,3}[ -]?\d{1,2}[ -]?[a-z]{1,3}[ -]?\d{1,4}", _valid, WORDS),  # Brazil, India, Poland
    # Belgium, California, the Netherlands, Portugal, Spain, Turkey
    Recogniser("plate", r"\d{1,4}[ -]?[a-z]{1,3}[ -]?\d{0,5}[ -]?[a-z]{0,2}", _valid, WORDS),
    Recogniser("plate", r"\d{2}[ -]\d{2}[ -][a-z]{2}", _valid, WORDS),  # the Netherlands, Portugal
)
