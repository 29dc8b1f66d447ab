"""National identity and tax numbers with check digits, one country a line of RECOGNISERS.

Where the check digit alone would accept every tenth number, the number must be written with its country's separators or stand behind
a word that names it.
"""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.checks import (
    digits_of,
    has,
    is_date,
    is_short_date,
    luhn,
    mod_11_10,
    number,
    several,
    verhoeff,
    weighted,
)
from policies.guardrails.recognition.recogniser import Recogniser

_SPANISH: Final = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH: Final = "0123456789ABCDEFHJKLMNPRSTUVWXY"
_ITALIAN_MONTHS: Final = "ABCDEHLMPRST"
_ITALIAN_ODD: Final = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_OMOCODIA: Final = dict(zip("LMNPQRSTUV", "0123456789", strict=True))
_BRAZILIAN: Final = (11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
_FROM_TEN: Final = _BRAZILIAN[1:]
_NORWEGIAN: Final = (3, 7, 6, 1, 8, 9, 4, 5, 2, 1)
_NORWEGIAN_LAST: Final = (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)
_POLISH: Final = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
_DUTCH: Final = (9, 8, 7, 6, 5, 4, 3, 2, -1)
_SWISS: Final = (1, 3) * 7
_CENTURIES: Final = (1900, 2000, 2100, 2200, 1800)
_CHINESE: Final = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def _german(text: str) -> bool:
    """Steuer-Identifikationsnummer: one of the first ten digits stands two or three times, the others at most once."""
    digits = digits_of(text)
    if digits[0] == "0" or not mod_11_10(digits):
        return False
    counts = sorted(digits[:10].count(digit) for digit in set(digits[:10]))
    return counts[-1] in (2, 3) and counts[:-1] == [1] * (len(counts) - 1)


def _french(text: str) -> bool:
    """Numéro d'inscription au répertoire (INSEE): the key is 97 minus the number modulo 97; Corsica's 2A and 2B count as 19 and 18."""
    compact = text.replace(" ", "").upper()
    number = compact[:13].replace("2A", "19").replace("2B", "18")
    if not number.isdigit() or compact[0] not in "123478":
        return False
    month = int(number[3:5])
    return (1 <= month <= 12 or 20 <= month <= 42 or month >= 50) and int(compact[13:]) == 97 - int(number) % 97


def _italian(text: str) -> bool:
    """Codice fiscale (D.M. 23 December 1976)."""
    code = text.upper()
    total = 0
    for place, character in enumerate(code[:15]):
        value = ord(character) - (48 if character.isdigit() else 65)
        total += value if place % 2 else _ITALIAN_ODD[value]
    day = "".join(_OMOCODIA.get(one, one) for one in code[9:11])
    return day.isdigit() and 1 <= int(day) % 40 <= 31 and ord(code[15]) - 65 == total % 26


def _spanish(text: str) -> bool:
    """DNI and NIE: the letter is the number modulo 23."""
    code = "".join(one for one in text if one.isalnum()).upper()
    number = code[:-1].translate({ord("X"): "0", ord("Y"): "1", ord("Z"): "2"})
    return _SPANISH[int(number) % 23] == code[-1] and int(number) > 0


def _dutch(text: str) -> bool:
    """Burgerservicenummer: the eleven-test."""
    digits = digits_of(text)
    return weighted(digits, _DUTCH) % 11 == 0 and several(digits, 2)


def _belgian(text: str) -> bool:
    """Rijksregisternummer; a 2 goes before the number of those born from 2000 on."""
    digits = digits_of(text)
    if number(digits, 2, 4) % 20 > 12 or number(digits, 4, 6) > 31 or number(digits, 6, 9) in (0, 999):
        return False
    born, check = number(digits, 0, 9), number(digits, 9, 11)
    return check == 97 - born % 97 or check == 97 - (2_000_000_000 + born) % 97


def _polish(text: str) -> bool:
    """PESEL; the century is added to the month."""
    if weighted(text, _POLISH) % 10:
        return False
    month = number(text, 2, 4)
    return is_date(_CENTURIES[month // 20] + number(text, 0, 2), month % 20, number(text, 4, 6))


def _swedish(text: str) -> bool:
    """Personnummer, and samordningsnummer with 60 added to the day: Luhn over the last ten digits."""
    digits = digits_of(text)
    day = int(digits[-6:-4])
    date = f"{digits[-10:-6]}{day - 60 if day > 60 else day:02}"
    return is_short_date(date) and luhn(digits[-10:]) and (len(digits) == 10 or digits[:2] in ("18", "19", "20"))


def _finnish(text: str) -> bool:
    """Henkilötunnus: the number modulo 31."""
    digits = digits_of(text[:6]) + text[7:10]
    return is_short_date(digits[4:6] + digits[2:4] + digits[:2]) and _FINNISH[int(digits) % 31] == text[10].upper()


def _portuguese(text: str) -> bool:
    """Número de identificação fiscal."""
    digits = digits_of(text)
    check = 11 - weighted(digits, _FROM_TEN[1:]) % 11
    return number(digits, 8, 9) == (0 if check >= 10 else check) and several(digits, 2)


def _brazilian(text: str) -> bool:
    """Cadastro de Pessoas Físicas: two check digits."""
    digits = digits_of(text)
    if weighted(digits, _FROM_TEN) * 10 % 11 % 10 != number(digits, 9, 10):
        return False
    return weighted(digits, _BRAZILIAN) * 10 % 11 % 10 == number(digits, 10, 11) and several(digits, 2)


def _chinese(text: str) -> bool:
    """Resident identity number (GB 11643-1999): the date, and ISO 7064 MOD 11-2."""
    if not 18 <= number(text, 6, 8) <= 20 or not is_date(number(text, 6, 10), number(text, 10, 12), number(text, 12, 14)):
        return False
    return "10X98765432"[weighted(text, _CHINESE) % 11] == text[17].upper()


def _indian(text: str) -> bool:
    """Aadhaar (Verhoeff)."""
    digits = digits_of(text)
    return verhoeff(digits) and digits != digits[::-1]


def _british(text: str) -> bool:
    """NHS number: modulo 11."""
    digits = digits_of(text)
    check = 11 - weighted(digits, _FROM_TEN) % 11
    return number(digits, 9, 10) == (0 if check == 11 else check) and several(digits, 2)


def _swiss(text: str) -> bool:
    """AHV number: EAN-13."""
    return weighted(digits_of(text), _SWISS) % 10 == 0


def _norwegian(text: str) -> bool:
    """Fødselsnummer: two check digits modulo 11."""
    digits = digits_of(text)
    if weighted(digits, _NORWEGIAN) % 11 or weighted(digits, _NORWEGIAN_LAST) % 11:
        return False
    return is_short_date(f"{digits[4:6]}{digits[2:4]}{number(digits, 0, 2) % 40:02}")


def _eleven(text: str) -> bool:
    """Eleven digits in a row, of five countries."""
    return _german(text) or _belgian(text) or _polish(text) or _brazilian(text) or _norwegian(text)


_ITALIAN_DIGIT: Final = "[0-9lmnpqrstuv]"
_NUMBER: Final = ".-/"
RECOGNISERS: Final = (
    Recogniser("national_id", r"\d{11}", has(_eleven), not_after=_NUMBER, languages=("de", "fr", "nl", "no", "pl", "pt")),
    Recogniser("national_id", r"[1-9]\d(?: \d{3}){3}", has(_german), not_after=_NUMBER, languages=("de",)),
    Recogniser(
        "national_id", r"[1-478] ?\d{2} ?\d{2} ?(?:\d{2}|2[ab]) ?\d{3} ?\d{3} ?\d{2}", has(_french), not_after=_NUMBER, languages=("fr",)
    ),
    Recogniser(
        "national_id",
        f"[a-z]{{6}}{_ITALIAN_DIGIT}{{2}}[{_ITALIAN_MONTHS}]{_ITALIAN_DIGIT}{{2}}[a-z]{_ITALIAN_DIGIT}{{3}}[a-z]".lower(),
        has(_italian),
        head=16,
        languages=("it",),
    ),
    Recogniser("national_id", r"(?:\d{8}|\d{2}\.\d{3}\.\d{3}|[xyz]-?\d{7})[ -]?[a-z]", has(_spanish), not_after=_NUMBER, languages=("es",)),
    Recogniser(
        "national_id",
        r"\d{9}|\d{4}[. ]\d{2}[. ]\d{3}|\d{3}[. ]\d{3}[. ]\d{3}",
        has(_dutch),
        ("bsn", "burgerservicenummer", "sofinummer", "sofi"),
        not_after=_NUMBER,
        languages=("nl",),
    ),
    Recogniser(
        "national_id",
        r"\d{2}\.\d{2}\.\d{2}[- ]\d{3}[. ]\d{2}|\d{6}[ -]\d{3}[ .-]\d{2}",
        has(_belgian),
        not_after=_NUMBER,
        languages=("de", "fr", "nl"),
    ),
    Recogniser("national_id", r"\d{6}[+-]\d{4}|(?:18|19|20)\d{6}[+-]?\d{4}", has(_swedish), not_after=_NUMBER, languages=("sv",)),
    Recogniser("national_id", r"\d{10}", has(_swedish), ("personnummer", "samordningsnummer", "pnr"), not_after=_NUMBER, languages=("sv",)),
    Recogniser("national_id", r"\d{6}[+a-fu-y-]\d{3}[0-9a-fhj-npr-y]", has(_finnish), not_after=_NUMBER, languages=("fi", "sv")),
    Recogniser(
        "national_id",
        r"[1-35689]\d{8}|[1-35689]\d{2}[ .]\d{3}[ .]\d{3}",
        has(_portuguese),
        ("nif", "contribuinte", "nº de contribuinte", "número de contribuinte", "identificação fiscal"),
        not_after=_NUMBER,
        languages=("pt",),
    ),
    Recogniser("national_id", r"\d{3}\.\d{3}\.\d{3}-\d{2}|\d{9}-\d{2}", has(_brazilian), not_after=_NUMBER, languages=("pt",)),
    Recogniser("national_id", r"[1-8]\d{16}[0-9x]", has(_chinese), not_after=_NUMBER, languages=("zh",)),
    Recogniser("national_id", r"[2-9]\d{3}[ -]\d{4}[ -]\d{4}", has(_indian), not_after=_NUMBER, languages=("en", "hi")),
    Recogniser(
        "national_id",
        r"[2-9]\d{11}",
        has(_indian),
        ("aadhaar", "aadhar", "adhaar", "uidai", "uid", "आधार"),
        not_after=_NUMBER,
        languages=("en", "hi"),
    ),
    Recogniser(
        "national_id", r"\d{3}[ -]?\d{3}[ -]?\d{4}", has(_british), ("nhs", "nhs number", "nhs no"), not_after=_NUMBER, languages=("en",)
    ),
    Recogniser("national_id", r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", has(_swiss), not_after=_NUMBER, languages=("de", "fr", "it")),
    Recogniser("national_id", r"\d{6} \d{5}", has(_norwegian), not_after=_NUMBER, languages=("no",)),
)
