"""Single events of the Responses API: which need not be read, the texts in them, and how they are written."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.wire.responses.views import EVENT, KIND, EventView

PIECES: Final[dict[str, tuple[str, str, str]]] = {
    "response.output_text": ("output_text", "content_index", "text"),
    "response.refusal": ("refusal", "content_index", "refusal"),
    "response.reasoning_text": ("reasoning_text", "content_index", "text"),
    "response.reasoning_summary_text": ("summary_text", "summary_index", "text"),
    "response.function_call_arguments": ("arguments", "", "arguments"),
    "response.mcp_call_arguments": ("arguments", "", "arguments"),
    "response.custom_tool_call_input": ("input", "", "input"),
    "response.code_interpreter_call_code": ("code", "", "code"),
}
"""The events of a text without `.delta` and `.done` -> its kind, which of an item's texts it is, where the end repeats it."""
_EVENTS: Final = {(kind, index): name for name, (kind, index, _) in reversed(list(PIECES.items()))}
_INDICES: Final = {
    "output_text": "content_index",
    "refusal": "content_index",
    "reasoning_text": "content_index",
    "summary_text": "summary_index",
}
_OF_ITEM: Final = ("arguments", "input", "code")
WHOLE: Final = "a response"
"""What the events make up."""
BEGINS: Final = b"event: response."
_DATA: Final = b"\ndata: {"

Key = tuple[int, str, int]
"""A text of a response: the number of its item, its kind, which one of the item's."""


class Said:
    """One text: what the engine gave, and what was released of it."""

    __slots__ = ("ended", "given", "item", "released")

    def __init__(self, item: str) -> None:
        self.item = item
        self.given: list[str] = []
        self.released: list[str] = []
        self.ended = False


def unread(event: bytes) -> int:
    """How long the beginning of an event is that says by itself that it need not be read; 0 where it does not."""
    if not event.startswith(BEGINS):
        return 0
    end = event.find(b"\n")
    if end < 0 or event[end : end + len(_DATA)] != _DATA or 46 not in event[len(BEGINS) : end]:  # a second dot
        return 0
    return end + len(_DATA)


def piece(key: Key, item: str, text: str) -> dict[str, Any]:
    """A piece of a text as an event."""
    number, kind, inner = key
    index = _INDICES.get(kind, "")
    found: dict[str, Any] = {"type": f"{_EVENTS[(kind, index)]}.delta", "item_id": item, "output_index": number}
    if index:
        found[index] = inner
    found["delta"] = text
    if kind == "output_text":
        found["logprobs"] = []
    return found


def texts_of(number: int, item: dict[str, Any]) -> list[tuple[Key, dict[str, Any], str]]:
    """The texts of an item that come in pieces."""
    found: list[tuple[Key, dict[str, Any], str]] = []
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts.__class__ is list:
            assert isinstance(parts, list)
            found += parts_of(number, parts, 0)
    for name in _OF_ITEM:
        if item.get(name).__class__ is str:
            found.append(((number, name, 0), item, name))
    return found


def parts_of(number: int, parts: list[Any], first: int) -> list[tuple[Key, dict[str, Any], str]]:
    found: list[tuple[Key, dict[str, Any], str]] = []
    for at, part in enumerate(parts):
        kind = part.get("type") if part.__class__ is dict else None
        field = "refusal" if kind == "refusal" else "text"
        if kind in _INDICES and part.get(field).__class__ is str:
            found.append(((number, str(kind), first + at), part, field))
    return found


def viewed(payload: bytes) -> EventView | None:
    """The typed view of an event's data; None when it is none of a response."""
    if not payload.startswith(b"{"):
        return None
    try:
        found: EventView = EVENT.decode(payload)
    except msgspec.ValidationError:
        try:
            return EventView(KIND.decode(payload).type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def line(document: dict[str, Any]) -> bytes:
    """An event without its empty line."""
    name = document["type"]
    return b"event: %b\ndata: %b" % (name.encode() if name.isascii() and "\n" not in name else b"message", msgspec.json.encode(document))
