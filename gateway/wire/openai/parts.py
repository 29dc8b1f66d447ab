"""The text parts of one message as one text. Engines join them, our own with a line break and others with nothing, so a phrase that is
split over parts is read both ways; what guardrails make of it is put back into the parts.

An engine reads a part by its type: the text of an image is none to it, and a refusal between two texts is one. Where that is another text
than all `text` fields together, it is read as well (`spoken`), and may only be rewritten as the parts themselves are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.core.errors import GuardrailViolation

Place = tuple[dict[str, Any], str]
"""A text: the object that holds it, and its key."""
_SAID: Final[dict[str, tuple[str, ...]]] = {
    "text": ("text",),
    "input_text": ("text",),
    "output_text": ("text",),
    "reasoning_text": ("text",),
    "summary_text": ("text",),
    "refusal": ("refusal",),
    "thinking": ("thinking",),
    "document": ("title", "context", "source"),
    "search_result": ("title", "source", "content"),
}
"""The type of a part -> the fields in which its texts are, in the order of the translation into a chat."""


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
    begin, end = 0, len(text)
    while first < last - 1 and text.startswith(parts[first] + "\n", begin):
        begin += len(parts[first]) + 1
        first += 1
    while last - 1 > first and text.endswith("\n" + parts[last - 1], begin, end):
        end -= len(parts[last - 1]) + 1
        last -= 1
    return [*parts[:first], text[begin:end], *([""] * (last - first - 1)), *parts[last:]]


def spoken(parts: Sequence[Any]) -> list[list[Place]]:
    """The texts of one message in the order in which engines may put them together: all, and thoughts and the rest apart. Only what the
    `joined` text fields do not show already."""
    if _plain(parts):
        return []
    said: list[Place] = []
    thoughts: list[Place] = []
    whole: list[Place] = []
    for part in parts:
        if part.__class__ is dict:
            found = list(_said(part))
            whole += found
            if part.get("type") == "thinking":
                thoughts += found
            else:
                said += found
    if len(whole) < 2:
        return []
    shown = [(part, "text") for part in parts if part.__class__ is dict and part.get("text").__class__ is str]
    ways = [whole, said, thoughts] if said and thoughts else [whole]
    return [way for way in ways if len(way) > 1 and not _same(way, shown)]


def _plain(parts: Sequence[Any]) -> bool:
    """Whether there are only texts and what says nothing, as in nearly all messages."""
    for part in parts:
        if part.__class__ is dict:
            kind = part.get("type")
            if kind != "text" and ("text" in part or kind.__class__ is not str or kind in _SAID):
                return False
    return True


def texts_at(places: Sequence[Place]) -> list[str]:
    return [holder[key] for holder, key in places]


def _said(part: dict[str, Any], inside: bool = False) -> Iterator[Place]:
    """What an engine, or the translation into a chat, reads of a part by its type. inside: of another; lists in there are not followed, so
    that nesting multiplies nothing."""
    kind = part.get("type")
    if kind.__class__ is not str:
        return
    fields = _SAID.get(kind, ())
    for name in fields:
        value = part.get(name)
        if value.__class__ is str:
            yield part, name
        elif inside:
            continue
        elif value.__class__ is list:
            yield from _listed(value)
        elif value.__class__ is dict:
            source = value.get("type")
            if source == "text" and value.get("data").__class__ is str:
                yield value, "data"
            elif source == "content" and value.get("content").__class__ is str:
                yield value, "content"
            elif source == "content" and value.get("content").__class__ is list:
                yield from _listed(value["content"])


def _listed(parts: list[Any]) -> Iterator[Place]:
    for one in parts:
        if one.__class__ is dict:
            yield from _said(one, True)


def _same(some: Sequence[Place], others: Sequence[Place]) -> bool:
    return len(some) == len(others) and all([a is b and c == d for (a, c), (b, d) in zip(some, others, strict=True)])


def unchanged(said: Sequence[str], before: Sequence[str], after: Sequence[str]) -> None:
    """Raises GuardrailViolation if one of the two readings of parts was rewritten, and not as the parts were. said: their texts now."""
    if any([new not in (old, now) for old, new, now in zip(before, after, joined(said), strict=True)]):
        raise GuardrailViolation("A policy would rewrite text that is split over content parts; send it as one part.", code="guardrail")
