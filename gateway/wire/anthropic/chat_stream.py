"""A stream of chat completions as Anthropic's events, one after the other as they come.

Thoughts, text and each call are blocks with indices of their own; a block ends when another kind of piece comes, or the message. The
message ends with the engine's stream, because its usage comes last.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.wire.anthropic.chat import counts, message_id, stop_reason
from gateway.wire.anthropic.stream import STOP, MessagesReader, event
from gateway.wire.chats import ChatAnswer, ChatCall, ChatChoice
from gateway.wire.chunks import disordered, read_chunk, unended
from gateway.wire.openai.stream import end_of
from gateway.wire.openai.usage import MAX_FINISH, usage_from
from gateway.wire.openai.views import UsageView
from gateway.wire.shapes import ChunkShape
from gateway.wire.sse import data_of

_TEXT: Final = "text"
_THINKING: Final = "thinking"
_CALL: Final = "tool_use"
_ENCODER: Final = msgspec.json.Encoder()
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
_TEXT_BEGINS: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"'
_TEXT_ENDS: Final = b'"}}\n\n'


class ChatReader(MessagesReader):
    """One stream of an engine that speaks chat completions."""

    __slots__ = ("_call", "_calls", "_index", "_kind", "_last_usage", "_reason", "_shape", "_stopped_at")

    def __init__(self) -> None:
        super().__init__()
        self._kind = ""
        self._index = -1
        self._call = -1
        self._calls = False
        self._reason: str | None = None
        self._stopped_at: str | None = None
        self._last_usage: UsageView | None = None
        self._shape = ChunkShape()

    def plain(self, data: bytes) -> int:
        return 0

    def end_of(self, data: bytes) -> int:
        return end_of(data)

    def is_end(self, rest: bytes) -> bool:
        return rest.rstrip() in (b"data: [DONE]", b"data:[DONE]")

    def whole(self, marked: bool) -> bool:
        """A message says why it ended, so the engine must have."""
        return self.ended or self._reason is not None

    def translated(self, data: bytes) -> bytes:
        text = self._shape.text(data)
        if not text:
            return b""
        return self._shape.opens + text + _TEXT_ENDS

    def read(self, data: bytes) -> bytes:
        made = self.translated(data)
        if made:
            return made
        found: list[bytes] = []
        events = data.split(b"\n\n")[:-1]
        try:
            for one in events:
                payload = data_of(one + b"\n\n")
                if payload == b"[DONE]":
                    if not self.whole(True):
                        raise unended()
                    found.append(self._finished())
                elif payload:
                    self._chunk(read_chunk(payload), found)
        except EngineError as error:
            self.error = error
        if len(events) == 1 and self.error is None and self._shape.unknown():
            self._shape.learn(data, _TEXT_BEGINS % self._index)
        return b"".join(found)

    def _chunk(self, chunk: ChatAnswer, found: list[bytes]) -> None:
        if not self._started:
            self._started = True
            found.append(_start(chunk))
        if chunk.usage is not None:
            self._last_usage, self.usage = chunk.usage, usage_from(chunk.usage)
        shape = self._shape
        shape.fits = False
        if chunk.choices:
            self._choice(chunk.choices[0], found)
            shape.fits = shape.fits and chunk.usage is None and len(chunk.choices) == 1

    def _choice(self, choice: ChatChoice, found: list[bytes]) -> None:
        delta = choice.delta
        if delta is not None:
            if thought := delta.thought():
                self._begin(_THINKING, {"type": _THINKING, "thinking": "", "signature": ""}, found)
                found.append(_delta(self._index, b"thinking_delta", b"thinking", thought))
            if text := delta.said():
                self._begin(_TEXT, {"type": _TEXT, "text": ""}, found)
                found.append(_delta(self._index, b"text_delta", b"text", text))
            for call in delta.tool_calls or ():
                self._piece(call, found)
            self._shape.fits = text != "" and text == delta.content and not thought and not delta.tool_calls
        finish = choice.finish_reason
        if finish is not None:
            self._reason, self._shape.fits = finish, False
            self.finish = finish if finish.isidentifier() and len(finish) <= MAX_FINISH else ""
            self._stopped_at = choice.stopped_at() if finish == "stop" else None

    def _piece(self, call: ChatCall, found: list[bytes]) -> None:
        """A piece of a call: the first has its name, all may have a part of its arguments."""
        name = call.function.name if call.function is not None else None
        given = call.function.arguments if call.function is not None else None
        if self._kind != _CALL or call.index != self._call:
            if not name or call.index < self._call:
                raise disordered()
            self._call, self._calls = call.index, True
            identity = call.id or f"toolu_{call.index}"
            self._begin("", {}, found)
            self._begin(_CALL, {"type": _CALL, "id": identity, "name": name, "input": {}}, found)
        if given:
            found.append(_delta(self._index, b"input_json_delta", b"partial_json", given))

    def _begin(self, kind: str, block: dict[str, Any], found: list[bytes]) -> None:
        """Ends the block that is open if it is of another kind, and begins one of this kind; "": begins none."""
        if self._kind == kind:
            return
        if self._kind:
            found.append(event({"type": "content_block_stop", "index": self._index}))
        self._kind = kind
        self._shape.forget()
        if kind:
            self._index += 1
            found.append(event({"type": "content_block_start", "index": self._index, "content_block": block}))

    def _finished(self) -> bytes:
        """The events that end the message."""
        found: list[bytes] = []
        if not self._started:
            self._started = True
            found.append(_start(ChatAnswer()))
        self._begin("", {}, found)
        reason = stop_reason(self._reason, self._stopped_at, self._calls)
        delta = {"stop_reason": reason, "stop_sequence": self._stopped_at if reason == "stop_sequence" else None}
        found.append(event({"type": "message_delta", "delta": delta, "usage": counts(self._last_usage)}))
        return b"".join(found) + STOP

    def ending(self) -> bytes:
        return self._finished()

    def estimate(self, events: int) -> int:
        return max(0, events - 5)


def _start(chunk: ChatAnswer) -> bytes:
    """The beginning of the message. How long the prompt was is told at its end."""
    message: dict[str, Any] = {
        "id": message_id(chunk.id),
        "type": "message",
        "role": "assistant",
        "model": chunk.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    return event({"type": "message_start", "message": message})


def _delta(index: int, kind: bytes, name: bytes, text: str) -> bytes:
    return _DELTA % (index, kind, name, _ENCODER.encode(text))
