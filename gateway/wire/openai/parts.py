"""The text parts of one message as one text. Engines join them, our own with a line break and others with nothing, so a phrase that is
split over parts is read both ways; what guardrails make of it is put back into the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.errors import GuardrailViolation


def joined(parts: Sequence[str]) -> list[str]:
    """The readings of one message's text parts that guardrails get."""
    return list(parts) if len(parts) < 2 else ["\n".join(parts), "".join(parts)]


def separated(parts: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The new parts, from the rewritten `joined(parts)`. Raises GuardrailViolation when the two readings were rewritten differently, as
    by a match across the border of two parts."""
    if len(parts) < 2:
        return list(texts)
    lines, whole = texts
    found = list(parts) if lines == "\n".join(parts) else _lines_back(parts, lines)
    if whole not in ("".join(parts), "".join(found)):
        raise GuardrailViolation("A policy would rewrite text that is split over content parts; send it as one part.", code="guardrail")
    return found


def _lines_back(parts: Sequence[str], text: str) -> list[str]:
    """Splits a joined text into as many parts: by line counts if no line break was rewritten, else all that differs is one part."""
    counts = [part.count("\n") + 1 for part in parts]
    lines = text.split("\n")
    if len(lines) == sum(counts):
        found, at = [], 0
        for count in counts:
            found.append("\n".join(lines[at : at + count]))
            at += count
        return found
    first, last = 0, len(parts)
    while first < last - 1 and text.startswith(parts[first] + "\n"):
        text = text[len(parts[first]) + 1 :]
        first += 1
    while last - 1 > first and text.endswith("\n" + parts[last - 1]):
        text = text[: -len(parts[last - 1]) - 1]
        last -= 1
    return [*parts[:first], text, *([""] * (last - first - 1)), *parts[last:]]
