"""Half a surrogate pair in a JSON text, which parsers report as something else: where it is, and in which field."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, Final

_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_UNPAIRED: Final = re.compile("[\ud800-\udfff]")
MOST: Final = 1 << 16
"""Escapes that are looked at."""
MOST_FIELDS: Final = 64 * 1024
"""Longest body of which the field is named."""


def lone_surrogate(body: bytes) -> tuple[str, str] | None:
    """(what is wrong, the field or "") for the first half of a pair that stands alone; None if there is none."""
    found = next((one for one in islice(_ESCAPES.finditer(body), MOST) if one["half"]), None)
    if found is None:
        return None
    shown = found[0].decode("ascii")
    return f"{shown} at byte {found.start()} is half of a surrogate pair; send both halves, or the character as UTF-8", _field(body)


def _field(body: bytes) -> str:
    """The path of the first text with half a pair; "" if the body is long, or not JSON for another reason too."""
    if len(body) > MOST_FIELDS:
        return ""
    try:
        left: list[tuple[str, Any]] = [("", json.loads(body))]
    except (ValueError, RecursionError):
        return ""
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            if _UNPAIRED.search(value):
                return path
        elif isinstance(value, dict):
            if any(_UNPAIRED.search(key) for key in value):
                return path  # in a key
            left += reversed([(f"{path}.{key}" if path else key, member) for key, member in value.items()])
        elif isinstance(value, list):
            left += reversed([(f"{path}[{index}]", member) for index, member in enumerate(value)])
    return ""
