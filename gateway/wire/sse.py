"""Server-sent events (WHATWG HTML, 9.2) on bytes, without I/O: where events end, what data they carry, how they are written.

Lines end with LF, CRLF or CR; a blank line ends an event. TCP reads split a stream anywhere: `EventSplitter` gives the same
events for every split. A CR at the end of what has arrived may be half of a CRLF, so an event that ends with a CR is whole
only when the next byte (or the end of the stream) is there.
"""

from __future__ import annotations

import re

from gateway.core.errors import EngineError

DONE = b"data: [DONE]\n\n"
"""The event that ends an OpenAI stream."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients ignore: shows that the connection lives."""
MAX_EVENT_BYTES = 256 * 1024

_BOM = b"\xef\xbb\xbf"
_EVENT_END = re.compile(rb"(?:\n|\r\n|\r(?!\n))(?:\n|\r\n|\r(?=[^\n]))")
_LONGEST_END = 4


class EventSplitter:
    """Splits a stream into whole events, bytes with their terminators; what is not whole yet is carried over.

    `limit`: the largest event in bytes, terminator included. A byte order mark at the start of the stream is removed.
    """

    __slots__ = ("_carry", "_started", "limit")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self.limit = limit
        self._carry = bytearray()
        self._started = False

    @property
    def carry(self) -> bytes:
        """The beginning of an event that is not whole yet."""
        return bytes(self._carry)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, in order. Raises EngineError when an event is larger than the limit."""
        if not self._carry and self._started and data.endswith(b"\n\n") and b"\r" not in data:
            events = [part + b"\n\n" for part in data[:-2].split(b"\n\n")]
        else:
            events = self._feed(data)
        for event in events:
            if len(event) > self.limit:
                raise _too_large(self.limit)
        return events

    def finish(self) -> list[bytes]:
        """The end of the stream: the last event, if only the byte after its final CR was missing. What else is left (`carry`)
        was cut off in the middle."""
        if self._carry.endswith((b"\r\r", b"\n\r")):
            event = bytes(self._carry)
            self._carry.clear()
            return [event]
        return []

    def _feed(self, data: bytes) -> list[bytes]:
        carry = self._carry
        scanned = max(0, len(carry) - _LONGEST_END)
        carry += data
        if not self._started:
            if len(carry) < len(_BOM) and _BOM.startswith(carry):
                return []
            self._started = True
            if carry.startswith(_BOM):
                del carry[: len(_BOM)]
                scanned = 0
        events: list[bytes] = []
        start = 0
        for match in _EVENT_END.finditer(carry, scanned):
            events.append(bytes(carry[start : match.end()]))
            start = match.end()
        del carry[:start]
        if len(carry) > self.limit:
            raise _too_large(self.limit)
        return events


def complete(data: bytes, limit: int = MAX_EVENT_BYTES) -> tuple[bytes, bytes]:
    """Splits after the last whole event: (what may be forwarded as it is, the beginning of the next event to carry over).

    The cheap way through a stream whose events nobody reads: nearly always one comparison. The caller puts what was carried
    over in front of the next data. Raises EngineError when what is carried over exceeds `limit` bytes.
    """
    if data.endswith(b"\n\n"):
        return data, b""
    end = data.rfind(b"\n\n") + 2 if b"\r" not in data else _last_end(data)
    if end < 2:
        end = 0
    if len(data) - end > limit:
        raise _too_large(limit)
    return data[:end], data[end:]


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


def event(data: bytes, name: bytes = b"") -> bytes:
    """Writes an event; data of several lines (LF, CRLF or CR) becomes several data lines."""
    head = b"event: " + name + b"\n" if name else b""
    if b"\n" not in data and b"\r" not in data:
        return head + b"data: " + data + b"\n\n"
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def comment(text: bytes) -> bytes:
    """Writes a comment of one line, which clients ignore."""
    return b": " + text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"


def _last_end(data: bytes) -> int:
    if data.endswith(b"\r\n\r\n"):
        return len(data)
    end = 0
    for match in _EVENT_END.finditer(data):
        end = match.end()
    return end


def _too_large(limit: int) -> EngineError:
    return EngineError(f"The engine sent an event of more than {limit} bytes.")
