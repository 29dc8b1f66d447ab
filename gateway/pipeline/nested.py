"""JSON inside of texts, such as the arguments of a tool's call: what its strings say once they are decoded.

A character of a string can be written as an escape (RFC 8259, section 7), and engines decode the arguments of calls. So what a guardrail
reads as it stands there may be something else for the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from gateway.core.errors import GuardrailViolation

_OPENING: Final = ("{", "[", '"')
_SPACES: Final = " \t\r\n"
LEVELS: Final = 8
"""JSON within JSON, so deep: each level doubles the backslashes of the one above it."""
_SHORT: Final = frozenset('\n\r\t\b\f"\\')
"""What is written as two characters and has no other way to be said there."""


def decoded(texts: Sequence[str]) -> list[str]:
    """The strings of texts that are JSON, where they may say something else than what stands there. Names count as strings. What is no JSON
    is not decoded by anybody. Raises GuardrailViolation for JSON that is nested too deeply."""
    found: list[str] = []
    for text in texts:
        if "\\" in text:
            _read(text, found, 0)
    return found


def _read(text: str, found: list[str], level: int) -> None:
    start = text.lstrip(_SPACES)
    if not start.startswith(_OPENING):
        return
    if level == LEVELS:
        raise GuardrailViolation(f"A text has JSON within JSON more than {LEVELS} times.", code="guardrail")
    try:
        value = json.loads(text, object_pairs_hook=list, parse_int=_nothing, parse_float=_nothing, strict=False)
    except ValueError:
        return
    except RecursionError:
        raise GuardrailViolation("A text has JSON that is nested too deeply to be read.", code="guardrail") from None
    coded = "\\u" in text or "\\/" in text
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if coded or not _SHORT.isdisjoint(one):
                found.append(one)
                if "\\" in one:
                    _read(one, found, level + 1)
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)


def _nothing(digits: str) -> None:
    """Numbers have no escapes."""
