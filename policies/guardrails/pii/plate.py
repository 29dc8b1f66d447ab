"""Number plates of vehicles behind a word for them. They have no check digit, so the word is what makes them known."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    *("plate", "plates", "license plate", "licence plate", "number plate", "plate number", "registration plate", "vehicle registration"),
    *("reg", "kennzeichen", "kfz", "immatriculation", "plaque", "matrícula", "targa", "placa", "kenteken", "rejestracyjny", "车牌"),
    *("번호판", "차량번호"),
)


def _valid(text: str) -> int:
    """The longest leading part that is one and ends where a group of signs ends. Capitals, as people write plates; small letters where no
    space makes words of them (`ab12cde`, but not `in 2024`)."""
    data = text.encode("latin-1", "replace")
    best = digits = dashes = spaces = 0
    small, size = False, len(data)
    for place in range(size + 1):
        code = data[place] if place < size else 32
        if 48 <= code <= 57:
            digits += 1
        elif 97 <= code <= 122:
            small = True
        elif code == 32 or code == 45:
            if not (spaces and small) and 0 < digits < place - spaces - dashes and 4 <= place - spaces - dashes <= 9:
                best = place
            if code == 32:
                spaces += 1
            else:
                dashes += 1
    return best


RECOGNISERS: Final = (
    Recogniser("plate", r"[a-z\l][a-z\l]{0,3}[ -]?[a-z]{1,2}[ -]?\d{1,4}[eh]?", _valid, WORDS),  # Germany, Romania
    # Austria, Denmark, Finland, France, Hungary, Italy, Norway, Sweden, Switzerland, United Kingdom
    Recogniser("plate", r"[a-z]{1,3}[ -]?\d{1,6}(?:[ -]\d{2,3})?[ -]?[a-z]{0,3}", _valid, WORDS),
    Recogniser("plate", r"[a-z]{2,3}[ -]?\d{1,2}[ -]?[a-z]{1,3}[ -]?\d{1,4}", _valid, WORDS),  # Brazil, India, Poland
    # Belgium, California, the Netherlands, Portugal, Spain, Turkey
    Recogniser("plate", r"\d{1,4}[ -]?[a-z]{1,3}[ -]?\d{0,5}[ -]?[a-z]{0,2}", _valid, WORDS),
    Recogniser("plate", r"\d{2}[ -]\d{2}[ -][a-z]{2}", _valid, WORDS),  # the Netherlands, Portugal
)
