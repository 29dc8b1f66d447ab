"""Telephone numbers: international ones (ITU-T E.164) and the national forms of 18 countries, as people there group the digits."""

from __future__ import annotations

import re
from typing import Final

from policies.guardrails.recognition.checks import digits_of, several
from policies.guardrails.recognition.recogniser import Recogniser

WORDS: Final = (
    *("phone", "phones", "phone number", "telephone", "tel", "call", "mobile", "cell", "fax", "sms", "text", "whatsapp", "ring", "dial"),
    *("telefon", "telefonnummer", "handy", "mobil", "rufnummer", "téléphone", "portable", "appelez", "teléfono", "móvil", "llame"),
    *("handynummer", "mobilnummer", "festnetz", "faxnummer", "gsm", "telefone", "telemóvel", "tlf", "telefonní", "puhelin"),
    *("telefono", "cellulare", "telefoon", "mobiel", "komórka", "celular", "电话", "手机", "電話", "携帯"),
)
_UNSURE: Final = ("call", "cell", "text", "ring", "mobil", "portable", "sms", "dial")
SAID: Final = ("call me", "text me", "ring me", "reach me", "call us", *(word for word in WORDS if word not in _UNSURE))
"""Words that mean a telephone and nothing else."""
# Country codes of E.164: all of one digit, and those of two; every other begins a code of three.
_TWO: Final = frozenset(
    map(str, (20, 27, *range(30, 35), 36, 39, 40, 41, *range(43, 50), *range(51, 59), *range(60, 67), 81, 82, 84, 86, *range(90, 96), 98))
)
_NONE: Final = frozenset({"210", "214", "215", "217", "219", "259", "28", "83", "89", "999", "0"})


def _international(text: str) -> int:
    """The longest leading part that is a number and ends where a group of digits ends. The 0 of `(0)` is not dialled from abroad."""
    if _NUMBER.fullmatch(text):
        return 0
    digits, ends = [], []
    size = len(text)
    for place in range(size):
        character = text[place]
        if "0" <= character <= "9" and not (character == "0" and text[place - 1] == "(" and text[place + 1 : place + 2] == ")"):
            digits.append(character)
            ends.append(place + 1)
    code = "".join(digits)
    skipped = 2 if code[:2] == "00" and text[0] == "0" else 0
    least, most = _counts(code[skipped:])
    for count in range(min(len(ends), most + skipped), least + skipped - 1, -1):
        end = ends[count - 1]
        if end == size or not text[end].isdigit():
            return end if end >= 8 else 0
    return 0


def _counts(code: str) -> tuple[int, int]:
    """How many digits a number that begins like this has at least and at most; none where there is no such code."""
    if code[:1] in _NONE or code[:2] in _NONE or code[:3] in _NONE:
        return 1, 0
    if code[0] == "1":
        return (11, 11) if len(code) >= 11 and code[1] >= "2" and code[4] >= "2" else (1, 0)
    prefix = 1 if code[0] == "7" else 2 if code[:2] in _TWO else 3
    return prefix + 6, min(15, prefix + 12)


def _american(text: str) -> int:
    digits = digits_of(text)[-10:]
    return len(text) if digits[0] >= "2" and digits[3] >= "2" and digits[1:3] != "11" and digits[4:6] != "11" else 0


def _national(text: str) -> int:
    digits = digits_of(text)
    return len(text) if 9 <= len(digits) <= 13 and several(digits[1:], 3) else 0


def _said(text: str) -> int:
    """After a word for a telephone, any groups of digits are a number unless they are a date."""
    digits = digits_of(text)
    return len(text) if 7 <= len(digits) <= 13 and several(digits[1:], 3) and not _DATE.match(text) else 0


_NUMBER: Final = re.compile(r"\+ \d+|\+ ?\d{4,}\.\d+")
"""What stands in sums: `+ 907133923`, `+35236450.6`."""
_DATE: Final = re.compile(r"(?:19|20)\d\d[ ./-]\d\d?[ ./-]\d\d|\d\d?[ ./-]\d\d?[ ./-](?:19|20)\d\d")
# Forms that digits of other kinds seldom have. One line each: its country.
_FORMS: Final = (
    r"0\d{3} \d{3} \d{4}|0\d{4} \d{6}|0\d{4} \d{3} \d{3}|020 \d{4} \d{4}|\(0\d{1,4}\) ?\d{3,4}[ -]?\d{3,4}",  # United Kingdom
    r"0[1-9](?:[ .-]\d{2}){4}",  # France
    r"0\d{2,4}[ /-]\d{3,4}[ -]\d{3,5}|0[1-9]\d{1,3} \d{5} \d{3}|0\d{2,4} ?/ ?\d{4,8}|0\d{3} \d{7,8}",  # Germany, Austria
    r"\(0\d{1,4}\) ?\d{4,8}|\(0\d{2,4}\) ?\d{4,5} \d{2,3}",  # Germany, with the area in brackets
    r"[679]\d{2} \d{3} \d{3}|[679]\d{2}(?: \d{2}){3}",  # Spain
    r"3\d{2} \d{3} \d{4}|3\d{2} \d{7}|0\d{1,3} \d{6,8}",  # Italy
    r"06[ -]\d{8}|06(?: \d{2}){4}|0\d{2}[ -]\d{7}",  # Netherlands
    r"0[3-9][ -]\d{3}[ -]\d{4}",  # New Zealand
    r"0\d-\d{3,4}-\d{3,4}|0\d-\d{7}",  # Israel, Japan
    r"04\d{2}(?:[ ./]\d{2}){3}|0\d{1,2} ?/ ?\d{2,3}(?:[ .]\d{2}){2}",  # Belgium
    r"07\d-\d{3} \d{2} \d{2}|0\d{1,3}-\d{2,3} ?\d{2} ?\d{2}|0\d{1,3}-\d{3}(?: \d{3})? \d{2}",  # Sweden
    r"0\d{2} \d{3} \d{2} \d{2}",  # Switzerland
    r"04\d{2} \d{3} \d{3}|\(0[2378]\)[ -]?\d{4}[ -]\d{4}|0[2378] \d{4} \d{4}",  # Australia
    r"8 ?\(\d{3}\) ?\d{3}-\d{2}-?\d{2}",  # Russia
    r"\(?\d{2}\)?/\d{3}-\d{4}|\(?06\)?[ -]?\d{1,2}[/ ]\d{3}[ -]\d{3,4}",  # Hungary
    r"[6-9]\d{4} \d{5}|[6-9]\d{4}-\d{5}|0\d{2}-\d{8}",  # India
    r"\(\d{2}\) ?9?\d{4}-\d{4}|\d{2} 9\d{4}-\d{4}",  # Brazil
    r"0[789]0-\d{4}-\d{4}",  # Japan
    r"1[3-9]\d[ -]\d{4}[ -]\d{4}",  # China
)
_INTERNATIONAL: Final = r"(?: ?\(0\) ?|[ ./-])?\(?\d(?:\)?[ ./-]?\(?\d){5,13}"
_AMERICAN: Final = r"(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])[2-9]\d{2}[ .-]\d{4}"
RECOGNISERS: Final = (
    Recogniser("phone", r"(?:\(\+[1-9]\d{0,2}\)|\+ ?[1-9]\d{0,2})" + _INTERNATIONAL, _international),
    Recogniser("phone", r"00[1-9]\d{0,2}[ ./-]\d(?:[ ./-]?\d){5,13}", _international, not_after=".-:/", apart=True),
    Recogniser("phone", _AMERICAN, _american, not_after=".-/", apart=True),
    Recogniser("phone", "|".join(_FORMS), _national, not_after=".-/", apart=True),
    Recogniser(
        "phone",
        r"[01]?[2-9]\d{8,9}|[2-9]\d{2} \d{3} \d{4}|[2-9]\d{2}(?: \d{3}){2}|0\d{8,10}|0[1-9]\d{1,4}[ /]\d{4,8}|0[1-9]\d{2}(?:\.\d{3}){2}"
        r"|8[3-9]\d{9}|8[ -]\d{3}[ -]\d{3}[ -]\d{2}[ -]?\d{2}|[26]\d{2,3} \d{6,7}|[26]\d{3}(?: \d{3}){2}|2\d{4} \d{2} \d{3}",
        _national,
        WORDS,
        not_after=".-/",
        apart=True,
    ),
    Recogniser("phone", r"[2-9]\d(?: \d{2}){3}|[2-9]\d{2} \d{2} \d{3}", _said, ("ring", "dial", "sms"), not_after=".-/", apart=True),
    Recogniser(
        "phone",
        r"\(?\+?(?:\d[ -])?\d{2,5}\)?(?:[ ./-]{0,2}\d{2,5}|[ /-]\d[ /-]\d{2,5}){1,5}",
        _said,
        SAID,
        not_after=".-/",
        apart=True,
    ),
)
