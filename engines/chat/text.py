"""From token bytes to text: whole UTF-8 characters only, and stop strings that may span tokens are held back."""

from __future__ import annotations

import codecs


def held(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of `text` could still become the start of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


class Assembler:
    """Turns the pieces of one generation into text that may be sent.

    `feed` returns text that is certain; `finish` returns what was still held when the generation ended by itself. Once a stop string
    was found, `stopped` is its text and nothing more comes. The stop string itself is never returned.
    """

    __slots__ = ("_decoder", "_pending", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._pending = ""
        self.stopped: str | None = None

    def feed(self, piece: bytes) -> str:
        """Add one token's bytes; the text that is now certain (possibly empty)."""
        text = self._decoder.decode(piece)
        if not self._stops:
            return text
        return self._scan(text)

    def finish(self) -> str:
        """The rest: held text, and a replacement character for bytes that never became one."""
        text = self._decoder.decode(b"", final=True)
        if not self._stops:
            return text
        text = self._scan(text)
        if self.stopped is None:
            text, self._pending = text + self._pending, ""
        return text

    def _scan(self, text: str) -> str:
        if self.stopped is not None:
            return ""
        pending = self._pending + text
        found = min(((at + len(stop), at) for stop in self._stops if (at := pending.find(stop)) >= 0), default=None)
        if found is not None:  # the one completed first, however the text was split into tokens; of those the longest
            end, at = found
            self.stopped = pending[at:end]
            self._pending = ""
            return pending[:at]
        keep = held(pending, self._stops)
        cut = len(pending) - keep
        self._pending = pending[cut:]
        return pending[:cut]
