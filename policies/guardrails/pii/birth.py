"""Dates of birth: a date behind words that say so, in ten languages."""

from __future__ import annotations

import re
from typing import Final

from policies.guardrails.recognition.checks import has, is_date
from policies.guardrails.recognition.recogniser import Recogniser

# Not the words alone that are others without their accents (ne), names (NATO, Nascimento) or words of another language (ur).
WORDS: Final = (
    *("born", "birth", "birthdate", "birthday", "birth date", "date of birth", "dob", "d.o.b"),
    *("geboren", "geb", "geburtsdatum", "geburtstag", "né le", "née le", "né en", "née en", "naissance", "nacido", "nacida", "nacimiento"),
    *("né à", "née à", "nato il", "nata il", "nato a", "nata a", "nascita", "nascido", "nascida", "de nascimento", "nascimento:"),
    *("geboortedatum", "ur.", "urodzony", "urodzona", "urodzenia"),
    *("född", "födelsedatum", "生日", "出生", "생년월일", "생일"),
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMED: Final = (
    "(?:jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|juni|juli|aug(?:ust)?|sept?(?:ember)?|o[ck]t(?:ober)?"
    "|nov(?:ember)?|de[cz](?:ember)?)"
)
_PARTS: Final = re.compile(r"\d+|[a-z]{3}", re.IGNORECASE)


def _year(digits: str) -> int:
    number = int(digits)
    return number if len(digits) == 4 else 1900 + number


def _numeric(text: str) -> bool:
    first, second, third = _PARTS.findall(text)
    if len(first) == 4:
        year, one, two = int(first), int(second), int(third)
    else:
        year, one, two = _year(third), int(second), int(first)
    return 1880 <= year <= 2100 and (is_date(year, one, two) or is_date(year, two, one))


def _named(text: str) -> bool:
    parts = _PARTS.findall(text)
    numbers = [part for part in parts if part.isdigit()]
    month = next(part for part in parts if part.isalpha() and part.lower() not in ("nds", "rds")).lower()
    month = {"okt": "oct", "dez": "dec"}.get(month, month)
    return 1880 <= _year(numbers[1]) <= 2100 and month in _MONTHS and is_date(_year(numbers[1]), _MONTHS.index(month) + 1, int(numbers[0]))


RECOGNISERS: Final = (
    Recogniser("birth_date", r"\d{4}[./-]\d{1,2}[./-]\d{1,2}", has(_numeric), WORDS),
    Recogniser("birth_date", r"\d{1,2} ?[./-] ?\d{1,2} ?[./-] ?(?:\d{4}|\d{2})", has(_numeric), WORDS),
    Recogniser("birth_date", r"\d{1,2}(?:st|nd|rd|th|\.)?[ -](?:of )?" + _NAMED + r"[.,]?[ -]\d{4}", has(_named), WORDS),
    Recogniser("birth_date", _NAMED + r"\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}", has(_named), WORDS),
)
