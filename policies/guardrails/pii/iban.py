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
    taken: list[str] = []
    for place, character in enumerate(text):
        if character not in " -":
            taken.append(character)
            if len(taken) == length:
                code = "".join(taken[4:] + taken[:4]).upper()
                return place + 1 if int("".join(str(int(one, 36)) for one in code)) % 97 == 1 else 0
    return 0


RECOGNISERS: Final = (Recogniser("iban", f"(?:{'|'.join(sorted(LENGTHS))})" + r"\d{2}(?:[ -]?[a-z0-9]){11,29}", _valid),)
