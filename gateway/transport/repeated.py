"""Heads that come again on a connection: both clients and engines send the same lines with each message, all but the body's length.

A head that the parser has taken means the same when it comes once more, byte for byte. So such a message is not parsed again: its lines are
compared. Only digits may stand where the digits of its Content-Length stood. Anything else is for the parser.
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import ResponseHead

LENGTH: Final = b"content-length"
_LINE: Final = b"\r\ncontent-length:"
ZERO: Final = 0x30
NINE: Final = 0x39
SPACE: Final = 0x20
TAB: Final = 0x09
MOST_DIGITS: Final = 8
MOST_HEAD: Final = 4096
"""Bytes of a head that is remembered, as each connection keeps one; a longer one is parsed each time."""
TRIES: Final = 4
"""Heads in a row that are remembered for nothing on one connection. Where they differ each time, none is remembered any more."""


class KnownHead:
    """A head that was parsed, in two parts: up to the digits of its Content-Length, and from behind them to its end."""

    __slots__ = ("after", "before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self.before, self.after = before, after

    def digits(self, data: bytes) -> bytes:
        """The digits of Content-Length if the data begins with this head; else b""."""
        before, after = self.before, self.after
        place = end = len(before)
        if data[:place] != before:
            return b""
        most = min(len(data), place + MOST_DIGITS)
        while end < most and ZERO <= data[end] <= NINE:
            end += 1
        return data[place:end] if data[end : end + len(after)] == after else b""


def number(digits: bytes) -> int:
    """What a few digits say; 0 without any. `int` takes five times as long for it."""
    found = place = 0
    while place < len(digits):
        found = 10 * found + digits[place] - ZERO
        place += 1
    return found


def known_head(data: bytes, first: bytes, length: bytes) -> KnownHead | None:
    """What is to be remembered of the head with which the data begins; None for one that must be parsed each time. first, length: how its
    first line begins, and the value of its Content-Length, as they were parsed."""
    if not data.startswith(first):
        return None
    end = data.find(b"\r\n\r\n") + 4
    if end < 4 or end > MOST_HEAD:
        return None
    head = data[:end]
    if head.count(b"\n") != head.count(b"\r\n"):  # lines that end otherwise: the parser may have seen its end earlier
        return None
    lower = head.lower()
    if lower.count(_LINE) != 1:
        return None
    place = lower.find(_LINE) + len(_LINE)
    while head[place] == SPACE or head[place] == TAB:
        place += 1
    rest = head[place:]
    if not rest.startswith(length + b"\r\n"):
        return None
    return KnownHead(head[:place], rest[len(length) :])


class KnownResponse:
    """A response that came whole. place: of Content-Length among its headers."""

    __slots__ = ("_fields", "_lines", "_name", "_place")

    def __init__(self, lines: KnownHead, fields: list[tuple[bytes, bytes]], place: int) -> None:
        self._lines, self._fields, self._place, self._name = lines, fields, place, fields[place][0]

    def again(self, data: bytes, chunks: list[bytes]) -> ResponseHead | None:
        """The head if the data is a whole response that begins with it, and nothing else; then its body is appended to the chunks."""
        lines = self._lines
        digits = lines.digits(data)
        size = number(digits)
        begin = len(lines.before) + len(digits) + len(lines.after)
        if not size or len(data) != begin + size:
            return None
        chunks.append(data[begin:])
        fields = self._fields.copy()
        fields[self._place] = (self._name, digits)
        return ResponseHead(200, fields)


def known_response(data: bytes, head: ResponseHead) -> KnownResponse | None:
    """What is to be remembered of a whole response, which is the data, as it was parsed; None for one that must be parsed each time."""
    if head.status != 200:
        return None
    place = -1
    for number, (name, _) in enumerate(head.headers):
        lower = name.lower()
        if lower == LENGTH:
            place = number
        elif lower == b"transfer-encoding" or lower == b"upgrade":
            return None
    if place < 0:
        return None
    lines = known_head(data, b"HTTP/1.1 200", head.headers[place][1])
    return None if lines is None else KnownResponse(lines, head.headers.copy(), place)
