"""Number plates of vehicles behind a word for them. They have no check digit, so the word is what makes them known."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    *("plate", "plates", "license plate", "licence plate", "number plate", "plate number", "registration plate", "vehicle registration"),
    *("reg", "kennzeichen", "kfz", "immatriculation", "plaque", "matrícula", "targa", "placa", "kenteken", "rejestracyjny", "车牌"),
)


RECOGNISERS: Final = (
    Recogniser("plate", r"[a-z]{1,3}[ -]?[a-z]{1,2}[ -]?\d{1,4}[eh]?", words=WORDS),  # Germany and alike
    Recogniser("plate", r"[a-z]{2}[ -]?\d{2,3}[ -]?[a-z]{2,3}", words=WORDS),  # United Kingdom, France, Italy
    Recogniser("plate", r"[a-z]{3}[ -]?\d[a-z0-9]\d{1,2}", words=WORDS),  # United States, Brazil, Poland
    Recogniser("plate", r"\d[ -]?[a-z]{3}[ -]?\d{3}", words=WORDS),  # California, Belgium
    Recogniser("plate", r"\d{4}[ -]?[a-z]{3}", words=WORDS),  # Spain
    Recogniser("plate", r"\d{1,2}[ -]?[a-z]{2,3}[ -]?\d{1,2}", words=WORDS),  # Netherlands
)
