"""Server-sent events (WHATWG HTML, 9.2) on bytes: the data of an event, and the document in it. `gateway/pipeline/stream.py` finds where
events end."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.slices import Steps
from gateway.core.types import ResponseHead
from gateway.core.wire import EventReader

BOM: Final = b"\xef\xbb\xbf"
BEGINNINGS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
"""How the first line of a stream that is not empty may begin."""
PORTION: Final = 16 * 1024
"""Bytes of a whole stream that are passed on, or read, at once."""


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


def named_stream(head: ResponseHead) -> bool:
    """Whether an answer is called an event stream by its type."""
    return (head.get(b"content-type") or b"").lower().startswith(b"text/event-stream")


def begins_stream(data: bytes) -> bool | None:
    """Whether a body begins like an event stream, which no JSON does. None: more of it must come before that can be said."""
    if BOM.startswith(data):
        return None
    line = data.removeprefix(BOM).lstrip(b"\r\n")
    for beginning in BEGINNINGS:
        if line.startswith(beginning):
            return True
    for beginning in BEGINNINGS:
        if beginning.startswith(line):
            return None
    return False


def says_nothing(rest: bytes) -> bool:
    """Whether the beginning of an event is only empty lines and comments."""
    return all(not line or line.startswith(b":") for line in rest.splitlines())


def portions(body: bytes) -> list[bytes]:
    """The events of a stream in pieces of about PORTION, each with whole events."""
    found: list[bytes] = []
    start = 0
    while len(body) - start > PORTION:
        end = body.find(b"\n\n", start + PORTION) + 2
        if end == 1:
            break
        found.append(body[start:end])
        start = end
    if start < len(body):
        found.append(body[start:])
    return found


def read_steps(reader: EventReader, events: bytes) -> Steps[bytes]:
    """What a reader passes on of a whole stream, in slices. Raises the error of an engine that failed."""
    passed: list[bytes] = []
    for some in portions(events):
        found = reader.read(some)
        if reader.error is not None:
            raise reader.error
        if found:
            reader.forwarded(found)
            passed.append(found)
        yield
    return b"".join(passed)


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
