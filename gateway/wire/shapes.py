"""The shape of a stream's events: nearly all differ only in their text, so one of the shape of another need not be parsed."""

from __future__ import annotations

from typing import Final

MAX_MISSES: Final = 4
"""How many shapes in a row may be learned without a match before a stream is given up on."""


def shape(event: bytes, marks: tuple[bytes, ...], closing: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands before and behind the text of a whole event, which begins after the first of `marks` that it has; b"" twice where the
    text does not end plainly, with a quote and one of the bytes `closing`."""
    for mark in marks:
        start = event.find(mark) + len(mark)
        if start >= len(mark):
            end = event.find(b'"', start)
            if end > 0 and event[end - 1] != 92 and event[end + 1] in closing:  # no backslash
                return event[:start], event[end:]
            break
    return b"", b""


def text_of(data: bytes, before: bytes, after: bytes) -> bytes:
    """The text, as JSON writes it, of one whole event of a shape; b"" for data of another shape, or whose text may end elsewhere."""
    if not before or not data.startswith(before) or not data.endswith(after):
        return b""
    start, end = len(before), len(data) - len(after)
    if start >= end:
        return b""
    text = data[start:end]
    return b"" if 34 in text or 10 in text or 13 in text or text[-1] == 92 else text  # a quote, a line end, a backslash
