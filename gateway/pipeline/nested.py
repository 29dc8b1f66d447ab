"""JSON inside texts, such as the arguments of a tool call: its strings, decoded.

Characters of a string can be written as escapes (RFC 8259, section 7), and engines decode the arguments of calls. So a text as a guardrail
sees it may read differently to the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from gateway.core.errors import GuardrailViolation

_OPENING: Final = ("{", "[", '"')
_SPACES: Final = " \t\r\n"
LEVELS: Final = 8
"""How deep JSON within JSON is followed: each level doubles the backslashes of the one above it."""
_SHORT: Final = frozenset('\n\r\t\b\f"\\')
"""Characters that a JSON string can only contain as an escape of two characters."""


def decoded(texts: Sequence[str]) -> list[str]:
    """The decoded strings, including names, of those texts that are JSON, if they may differ from the text itself. Texts that are not JSON
    are skipped, as nobody decodes them. Raises GuardrailViolation for JSON that is nested too deeply."""
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
