"""Single values as people write them: durations ("50ms", "1m30s"), sizes ("64MiB"), numbers, truth values, null.

The words are those of YAML 1.2's core schema: `yes`, `on` and `012` are texts.
"""

from __future__ import annotations

from typing import Any

from gateway.core.units import duration, integer, number, size

__all__ = ["NULLS", "duration", "integer", "number", "size", "truth", "untyped"]
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
NULLS = frozenset({"", "~", "null", "Null", "NULL"})


def truth(text: str) -> bool | None:
    return _TRUTH.get(text)


def untyped(text: str, plain: bool) -> Any:
    """A value of free-form settings, where no type is known: without quotes, YAML 1.2's core schema decides."""
    if not plain:
        return text
    if text in NULLS:
        return None
    for read in (truth, integer, number):
        value = read(text)
        if value is not None:
            return value
    return text
