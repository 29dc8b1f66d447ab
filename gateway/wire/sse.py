"""Server-sent events (WHATWG HTML, 9.2) on bytes: the data of an event, and the document in it. `gateway/pipeline/stream.py` finds where
events end."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core.errors import EngineError


def data_of(event: bytes) -> bytes:
    """The data of a whole event: its data lines joined by LF; b"" for a comment or an event without data."""
    size, first = len(event), event.find(b"\n")
    if 13 not in event and event.endswith(b"\n\n"):
        if first == size - 2 and event.startswith(b"data: "):
            return event[6:first]
        if event.startswith(b"event: ") and event.find(b"\n", first + 1) == size - 2 and event[first : first + 7] == b"\ndata: ":
            return event[first + 7 : size - 2]
    lines: list[bytes] = []
    for line in event.splitlines():
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if colon and value.startswith(b" ") else value)
    return b"\n".join(lines)


def says_nothing(rest: bytes) -> bool:
    """Whether the beginning of an event is only empty lines and comments."""
    return all(not line or line.startswith(b":") for line in rest.splitlines())


def opened(payload: bytes, whole: str) -> dict[str, Any]:
    """The document that an event's data is. whole: what its events make up, with its article. Raises EngineError for any other data."""
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine sent an event that is not valid JSON.") from None
    if document.__class__ is not dict:
        raise no_event(whole)
    found: dict[str, Any] = document
    return found


def no_event(whole: str) -> EngineError:
    return EngineError(f"The engine sent an event that is not one of {whole}.")
