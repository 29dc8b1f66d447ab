"""The OpenAI API's event streams. An event is parsed only when somebody must read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.wire import EventReader, TextFilter
from gateway.wire.openai.answers import WHOLE, append_text, choice_texts
from gateway.wire.openai.usage import usage_from
from gateway.wire.openai.views import ChunkView
from gateway.wire.sse import data_of

CHUNK: Final = msgspec.json.Decoder(ChunkView)
DONE: Final = b"data: [DONE]\n\n"
END: Final = b"[DONE]\n\n"
DONE_LINES: Final = (b"data: [DONE]", b"data:[DONE]")
TEXT_BEGINS: Final = (b'content":"', b'content": "', b'text":"', b'text": "')
"""What stands before the text of an event: content, reasoning_content, text; with the space of Python's own encoder or without."""
MAX_MISSES: Final = 4
"""Events in a row whose shape is learned in vain."""


class OpenAiReader(EventReader):
    """One stream. Withholds the usage that the client did not ask for.

    Nearly all events of a stream differ in their text alone. An event fits the known shape when it is `_before`, a text without a quote
    or a line end, and `_after`. Those are taken from an event of one line that did not have to be read, so this one need not be read
    either: what `must_be_read` looks for has two quotes and a colon behind the second. Neither `_before` nor `_after` contains that by
    itself; the last quote of `_before` follows a colon (or a space) and opens the text, the first of `_after` closes it, and no colon
    follows it.
    """

    __slots__ = ("_after", "_before", "_frame", "_include_usage", "_misses")

    def __init__(self, include_usage: bool) -> None:
        super().__init__()
        self._include_usage = include_usage
        self._before = self._after = b""
        self._misses = 0
        self._frame: dict[str, Any] = _NO_FRAME

    # --- events that are forwarded as they are

    def plain(self, data: bytes) -> int:
        if self.fits(data):
            return 1
        if not data.endswith(b"\n\n") or must_be_read(data):
            return 0
        if data.find(b"\n") != len(data) - 2:
            if data.endswith(END):
                self.ended = True
            return data.count(b"\n") >> 1  # a data line and an empty one; counting single bytes is four times as fast
        if data.endswith(END):
            self.ended = True
        else:
            self.learn(data)
        return 1

    def fits(self, data: bytes) -> bool:
        """Whether this is one whole event of the known shape."""
        before, after = self._before, self._after
        if not before or not data.startswith(before) or not data.endswith(after):
            return False
        start, end = len(before), len(data) - len(after)
        if end < start:
            return False
        text = data[start:end]
        if 34 in text or 10 in text or 13 in text:  # a quote, a line feed, a carriage return
            return False
        self._misses = 0
        return True

    def learn(self, event: bytes) -> None:
        """Takes the shape of an event of one line that did not have to be read; gives up on a stream whose events share none."""
        if self._misses >= MAX_MISSES:
            return
        self._misses += 1
        for mark in TEXT_BEGINS:
            start = event.find(mark) + len(mark)
            if start >= len(mark):
                end = event.find(b'"', start)
                if end > 0 and event[end - 1] != 92 and event[end + 1] != 58:  # no backslash, no colon
                    self._before, self._after = event[:start], event[end:]
                return

    # --- events that are read

    def read(self, data: bytes) -> bytes:
        if not must_be_read(data):
            return data
        kept: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            payload = event[5:].lstrip() if event.startswith(b"data:") and b"\n" not in event else data_of(event)
            view = decode_chunk(payload)
            if view is None:
                kept.append(event)
                continue
            if view.error is not msgspec.UNSET and bytes(view.error) != b"null":
                self.error = EngineError("The engine failed while it was answering.")
                break
            if view.usage is not None:
                self.usage = usage_from(view.usage)
                if not view.choices and not self._include_usage:
                    continue
            kept.append(event)
        return b"\n\n".join(kept) + b"\n\n" if kept else b""

    def forwarded(self, data: bytes) -> None:
        if data.endswith(END):
            self.ended = True

    def is_end(self, rest: bytes) -> bool:
        return rest.rstrip() in DONE_LINES

    def ending(self) -> bytes:
        return DONE

    # --- events that guardrails read

    def inspected(self, event: bytes, texts: TextFilter) -> bytes:
        payload = b"\n".join([line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")])
        if not payload:
            return b""
        if payload == b"[DONE]":
            return self.rest(texts) + DONE
        try:
            document = msgspec.json.decode(payload)
            choices = document.get("choices") or []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
            raise EngineError("The engine sent an event that is not valid JSON.") from None
        self._frame = {key: value for key, value in document.items() if key not in ("choices", "usage")}
        changed = False
        for choice in choices:
            if choice.__class__ is not dict:
                raise EngineError("The engine sent an event that is not a chunk of an answer.")
            changed |= _filtered(choice, texts)
        return b"data: %b\n\n" % msgspec.json.encode(document) if changed else event + b"\n\n"

    def rest(self, texts: TextFilter) -> bytes:
        """What is still held when the stream ends without a finish reason."""
        choices: list[dict[str, Any]] = []
        for index, path, rest in texts.finish_all():
            choice: dict[str, Any] = {"index": index}
            append_text(choice, path, rest)
            choices.append(choice)
        return b"data: %b\n\n" % msgspec.json.encode({**self._frame, "choices": choices}) if choices else b""


_NO_FRAME: Final[dict[str, Any]] = {}


def _filtered(choice: dict[str, Any], texts: TextFilter) -> bool:
    """Puts the texts of one choice of a chunk through the filter; whether the event must be written anew."""
    index, changed = choice.get("index", 0), False
    if choice.get("logprobs") is not None:  # the same text again, token by token, ahead of what the guardrails hold
        choice["logprobs"] = None
        changed = True
    for path, holder, key in choice_texts(choice):
        text = holder[key]
        released = texts.whole(text) if key == WHOLE else texts.feed(index, path, text)
        if released != text:
            holder[key] = released
            changed = True
    if choice.get("finish_reason"):
        for path, rest in texts.finish(index):
            append_text(choice, path, rest)
            changed = True
    return changed


def must_be_read(data: bytes) -> bool:
    """Whether whole events may hold what settle or the framing must look at: a CR, a usage that is not null, an error.

    `find` where `in` reads better: on bytes, `in` first tries its operand as a number and drops the error, which costs more than the
    search; a regular expression costs ten times as much as all of this.
    """
    if 13 in data or data.find(b'"error":') >= 0:
        return True
    return data.find(b'"usage":') >= 0 and (data.find(b'"usage":{') >= 0 or data.find(b'"usage": {') >= 0)


def decode_chunk(payload: bytes) -> ChunkView | None:
    """The typed view of one event's data; None for what is no chunk ([DONE], a comment, not JSON)."""
    if not payload.startswith(b"{"):
        return None
    try:
        return CHUNK.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
