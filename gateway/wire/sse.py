"""Server-sent events (WHATWG HTML, 9.2) on bytes: the data of an event. `gateway/pipeline/stream.py` finds where events end."""

from __future__ import annotations


def data_of(event: bytes) -> bytes:
    """The data of a whole event: its data lines joined by LF; b"" for a comment or an event without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines: list[bytes] = []
    for line in event.splitlines():
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if colon and value.startswith(b" ") else value)
    return b"\n".join(lines)


def says_nothing(rest: bytes) -> bool:
    """Whether the beginning of an event is only empty lines and comments."""
    return all(not line or line.startswith(b":") for line in rest.splitlines())
