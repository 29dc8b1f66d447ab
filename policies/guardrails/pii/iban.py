"""International bank account numbers: the country's length and the check digits modulo 97 (ISO 13616, ISO 7064 MOD 97-10)."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.recogniser import Recogniser

LENGTHS: Final = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        33: "LC RU",
    }.items()
    for country in countries.split()
}


def _valid(text: str) -> int:
    length = LENGTHS.get(text[:2].upper())
    if length is None or text[2:4] in ("00", "01", "99"):
        return 0
    data = text.encode("ascii")
    rest = taken = 0
    for place in range(4, len(data)):
        code = data[place]
        if code == 32 or code == 45:
            continue
        rest = _appended(rest, code)
        taken += 1
        if taken + 4 == length:
            for first in range(4):
                rest = _appended(rest, data[first])
            return place + 1 if rest == 1 else 0
    return 0


def _appended(rest: int, code: int) -> int:
    """The rest modulo 97 of a number after one more letter or digit, which counts from 10 to 35 or for itself."""
    return (rest * 10 + code - 48) % 97 if code < 58 else (rest * 100 + (code & 31) + 9) % 97


RECOGNISERS: Final = (Recogniser("iban", f"(?:{'|'.join(sorted(LENGTHS))})" + r"\d{2}(?:[ -]?[a-z0-9]){11,29}", _valid),)
