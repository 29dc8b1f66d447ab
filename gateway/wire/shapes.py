"""The shape of a stream's events: nearly all differ only in their text, so one of the shape of another need not be parsed."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MAX_MISSES: Final = 4
"""How many shapes in a row may be learned without a match before a stream is given up on."""

_CONTENT: Final = (b'"content":"', b'"content": "')
_BEHIND_CONTENT: Final = (44, 125)
"""What may follow a chunk's text: a comma or a brace."""


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


class Spoken:
    """The shape of events that guardrails read: what stands before and behind the text, which choice and path it has, and the fields around
    the choices (`frame`)."""

    __slots__ = ("after", "before", "choice", "frame", "path")

    def __init__(self, before: bytes, after: bytes, choice: Any, path: tuple[Any, ...], frame: dict[str, Any]) -> None:
        self.before, self.after = before, after
        self.choice, self.path, self.frame = choice, path, frame

    def text(self, data: bytes) -> str:
        """The text of one whole event of this shape if it is written as it is read: printable, without a quote or a backslash; else ""."""
        before, after = self.before, self.after
        start, end = len(before), len(data) - len(after)
        if start >= end or not data.startswith(before) or not data.endswith(after):
            return ""
        try:
            text = data[start:end].decode()
        except UnicodeDecodeError:
            return ""
        return text if plain(text) else ""

    def event(self, text: str) -> bytes:
        """An event of this shape with a text."""
        written = text.encode() if plain(text) else msgspec.json.encode(text)[1:-1]
        return self.before + written + self.after


def plain(text: str) -> bool:
    """Whether JSON may write a text as it is."""
    return text.isprintable() and text.find('"') < 0 and text.find("\\") < 0


def text_of(data: bytes, before: bytes, after: bytes) -> bytes:
    """The text, as JSON writes it, of one whole event of a shape; b"" for data of another shape, or whose text may end elsewhere."""
    if not before or not data.startswith(before) or not data.endswith(after):
        return b""
    start, end = len(before), len(data) - len(after)
    if start >= end:
        return b""
    text = data[start:end]
    return b"" if 34 in text or 10 in text or 13 in text or text[-1] == 92 else text  # a quote, a line end, a backslash


class ChunkShape:
    """What stands around the text in chunks of chat completions that have nothing but a text, as learned from one stream.

    A chunk of this shape is not parsed where the stream becomes one of another format: its text, as JSON writes it, is put behind `opens`,
    which begins an event of that format. fits: the chunk that was read last has nothing else, and its
    text is not empty.
    """

    __slots__ = ("_after", "_before", "_learned", "fits", "opens")

    def __init__(self) -> None:
        self._before = self._after = self.opens = b""
        self._learned = 0
        self.fits = False

    def text(self, chunk: bytes) -> bytes:
        """The text of a whole chunk of this shape; b"" for any other."""
        return text_of(chunk, self._before, self._after)

    def unknown(self) -> bool:
        """Whether the shape is to be learned from the chunk that was just read."""
        return self.fits and self._learned < MAX_MISSES

    def learn(self, chunk: bytes, opens: bytes) -> None:
        self._learned += 1
        before, after = shape(chunk, _CONTENT, _BEHIND_CONTENT)
        if before and chunk.startswith(b"data:") and chunk.endswith(b"\n\n"):
            self._before, self._after, self.opens = before, after, opens

    def forget(self) -> None:
        """What comes now belongs elsewhere."""
        self._before = b""
        self._learned = 0
