"""Canonical JSON: read so that no two readers can disagree about it, and written as RFC 8785 (JSON Canonicalization Scheme) says.

Names are sorted by their UTF-16 code units, texts are escaped as little as possible, numbers are written as ECMAScript writes them. Unlike
in the RFC, whole numbers keep all their digits: readers with exact integers must see the number that was hashed.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final, NoReturn

MAX_CHARACTERS: Final = 256 * 1024
"""Of a text that is read."""
MAX_DEPTH: Final = 64
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED: Final = {code: _ESCAPES.get(chr(code), f"\\u{code:04x}") for code in (*range(0x20), 0x22, 0x5C)}
MOST_DIGITS: Final = 400
"""Of a number."""


def parsed(text: str) -> Any:
    """The value of a JSON text that can be read in only one way. Raises ValueError, with the reason, for a repeated key in an object, a
    number that cannot be represented, half a surrogate pair, a text that is too long or nested too deep, and for anything but JSON."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}") from None
    check(value)
    return value


def check(value: Any, depth: int = 0) -> None:
    """Raises ValueError for a value that has no canonical form."""
    if isinstance(value, str):
        _encodable(value)
    elif isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            raise ValueError("it is nested too deep")
        for inner in value:
            check(inner, depth + 1)
        if isinstance(value, dict):
            for inner in value.values():
                check(inner, depth + 1)


def canonical(value: Any) -> bytes:
    """The one form of a value that `parsed` gave, or of any plain value that `check` lets pass."""
    return "".join(_pieces(value)).encode()


def digest(value: Any) -> str:
    """The SHA-256 of the canonical form, in hex."""
    return sha256(canonical(value)).hexdigest()


def _pieces(value: Any) -> list[str]:
    if value is None:
        return ["null"]
    if value is True or value is False:
        return ["true" if value else "false"]
    if isinstance(value, str):
        return ['"', value.translate(_ESCAPED), '"']
    if isinstance(value, int):
        return [str(value)]
    if isinstance(value, float):
        return [_written(value)]
    if isinstance(value, list | tuple):
        found = ["["]
        for number, inner in enumerate(value):
            if number:
                found.append(",")
            found += _pieces(inner)
        return [*found, "]"]
    if isinstance(value, dict):
        found = ["{"]
        for number, key in enumerate(sorted(value, key=_units)):
            if number:
                found.append(",")
            found += _pieces(key)
            found.append(":")
            found += _pieces(value[key])
        return [*found, "}"]
    raise ValueError(f"a {type(value).__name__} is no JSON value")


def _units(text: str) -> bytes:
    return text.encode("utf-16-be")


def _written(value: float) -> str:
    """As ECMA-262 has it (Number::toString): the shortest digits that read back as the same number."""
    if value == 0.0:
        return "0"
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    sign, text = ("-", repr(-value)) if value < 0 else ("", repr(value))
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(power or 0)
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.lstrip("0").rstrip("0")
    size = len(digits)
    if size <= point <= 21:
        return sign + digits + "0" * (point - size)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{sign}{digits}{exponent}" if size == 1 else f"{sign}{digits[0]}.{digits[1:]}{exponent}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:40]!r} appears twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return int(text)


def _number(text: str) -> float:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    found = float(text)
    if found in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return found


def _encodable(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half a surrogate pair") from None
