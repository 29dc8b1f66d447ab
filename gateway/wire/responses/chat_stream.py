"""A stream of chat completions as the events of a response, one after the other as they come.

Thoughts, text, a refusal and each call are items of their own; an item ends when another kind of piece comes, or the answer. The response
ends with the engine's stream, because its usage comes last.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError
from gateway.core.types import InferenceRequest
from gateway.wire.chats import ChatAnswer, ChatCall, ChatChoice
from gateway.wire.chunks import disordered, read_chunk, unended
from gateway.wire.openai.stream import DONE, end_of
from gateway.wire.openai.usage import MAX_FINISH, usage_from
from gateway.wire.openai.views import UsageView
from gateway.wire.responses.chat import REASONS, call_item, counts, ended, frame, free_input
from gateway.wire.responses.stream import ResponsesReader
from gateway.wire.responses.tool_names import OfferedTool, ToolNames, tool_names
from gateway.wire.shapes import ChunkShape
from gateway.wire.sse import data_of

_TEXT: Final = "text"
_THINKING: Final = "reasoning"
_REFUSAL: Final = "refusal"
_CALL: Final = "call"
_ENCODER: Final = msgspec.json.Encoder()
_NAMES: Final = {
    _TEXT: b"response.output_text",
    _THINKING: b"response.reasoning_text",
    _REFUSAL: b"response.refusal",
    _CALL: b"response.function_call_arguments",
}
"""The events of an item's text, without `.delta` and `.done`."""
_TEXTS: Final = {
    _TEXT: b'"logprobs":[],"text":"',
    _THINKING: b'"text":"',
    _REFUSAL: b'"refusal":"',
}
"""How the text begins in the event that ends it."""
_DELTAS: Final = {_TEXT: b'"logprobs":[],"delta":"', _THINKING: b'"delta":"', _REFUSAL: b'"delta":"', _CALL: b'"delta":"'}
"""How a piece of it begins in its event."""
_PARTS: Final = {
    _TEXT: b'{"type":"output_text","annotations":[],"logprobs":[],"text":"',
    _THINKING: b'{"type":"reasoning_text","text":"',
    _REFUSAL: b'{"type":"refusal","refusal":"',
}
_SPOKEN: Final = b'{"id":"%b","type":"message","status":"%b","role":"assistant","content":[%b]}'
_ITEMS: Final = {
    _TEXT: _SPOKEN,
    _THINKING: b'{"id":"%b","type":"reasoning","status":"%b","summary":[],"content":[%b]}',
    _REFUSAL: _SPOKEN,
}
_CLOSES: Final = [b'","sequence_number":%d}\n\n' % number for number in range(1024)]
"""How a piece of a text ends, by its number; most answers have fewer events."""
MAX_SAID: Final = 16 * 1024 * 1024
"""Bytes of one text, which its end repeats."""


class ChatReader(ResponsesReader):
    """One stream of an engine that speaks chat completions.

    Texts stay as JSON writes them, from a chunk that need not be parsed to the last event, which repeats all of them.
    """

    __slots__ = (
        "_call",
        "_call_id",
        "_document",
        "_index",
        "_item",
        "_kind",
        "_names",
        "_output",
        "_pieces",
        "_place",
        "_reason",
        "_sent",
        "_shape",
        "_size_said",
        "_tool",
        "_view",
    )

    def __init__(self, request: InferenceRequest) -> None:
        super().__init__(request)
        self._names: ToolNames | None = None
        """Of the tools that were offered; read with the first call."""
        self._document: dict[str, Any] = {}
        """The response; empty until it has begun."""
        self._output: list[Any] = []
        self._kind = ""
        self._item = self._call_id = ""
        self._place = b""
        """Which item the events of a text are about, and which part of it; ends with a comma."""
        self._tool = OfferedTool("", "", False)
        self._index = self._call = -1
        self._pieces: list[bytes] = []
        """The text of the item that is open, as JSON writes it, without quotes."""
        self._size_said = 0
        self._sent = 0
        """Events that were made: the number of the next."""
        self._reason: str | None = None
        self._view: UsageView | None = None
        self._shape = ChunkShape()

    def plain(self, data: bytes) -> int:
        return 0

    def end_of(self, data: bytes) -> int:
        return end_of(data)

    def unsaid(self) -> bytes:
        return b"" if self._reason is None or self.whole(False) else DONE

    def translated(self, data: bytes) -> bytes:
        text = self._shape.text(data)
        if not text:
            return b""
        self._take(text)
        number = self._sent
        self._sent = number + 1
        return self._shape.opens + text + (_CLOSES[number] if number < 1024 else b'","sequence_number":%d}\n\n' % number)

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
                    if self._reason is None:
                        raise unended()
                    self._finished(found)
                elif payload:
                    self._chunk(read_chunk(payload), found)
        except EngineError as error:
            self.error = error
        if len(events) == 1 and self.error is None and self._shape.unknown():
            self._shape.learn(data, self._opens(b".delta", _DELTAS[_TEXT]))
        return b"".join(found)

    def _opens(self, what: bytes, text: bytes) -> bytes:
        """How an event about the text that is open begins. what: `.delta` or `.done`. text: how the text begins in it."""
        name = _NAMES[self._kind] + what
        return b'event: %b\ndata: {"type":"%b",%b%b' % (name, name, self._place, text)

    def _event(self, name: bytes, fields: bytes, found: list[bytes]) -> None:
        """An event of these fields, as JSON writes them."""
        found.append(b'event: %b\ndata: {"type":"%b",%b,"sequence_number":%d}\n\n' % (name, name, fields, self._sent))
        self._sent += 1

    def _take(self, text: bytes) -> None:
        self._pieces.append(text)
        self._size_said += len(text)
        if self._size_said > MAX_SAID:
            raise EngineError("The engine's answer is too long for a response.")

    def _chunk(self, chunk: ChatAnswer, found: list[bytes]) -> None:
        if not self._document:
            self._start(chunk, found)
        if chunk.usage is not None:
            self._view, self.usage = chunk.usage, usage_from(chunk.usage)
        shape = self._shape
        shape.fits = False
        if chunk.choices:
            self._choice(chunk.choices[0], found)
            shape.fits = shape.fits and chunk.usage is None and len(chunk.choices) == 1

    def _start(self, chunk: ChatAnswer, found: list[bytes]) -> None:
        base = chunk.id.removeprefix("chatcmpl-")
        self._document = document = frame(self._request, f"resp_{base}", chunk.model, chunk.created)
        self._identity = document["id"]
        told = b'"response":' + _ENCODER.encode(document)
        self._event(b"response.created", told, found)
        self._event(b"response.in_progress", told, found)

    def _choice(self, choice: ChatChoice, found: list[bytes]) -> None:
        delta = choice.delta
        if delta is not None:
            thought, text = delta.thought(), delta.text()
            if thought:
                self._piece(_THINKING, thought, found)
            if text:
                self._piece(_TEXT, text, found)
            if delta.refusal:
                self._piece(_REFUSAL, delta.refusal, found)
            for call in delta.tool_calls or ():
                self._called(call, found)
            self._shape.fits = text != "" and text == delta.content and not thought and not delta.tool_calls and not delta.refusal
        finish = choice.finish_reason
        if finish is not None:
            self._reason, self._shape.fits = finish, False
            self.finish = finish if finish.isidentifier() and len(finish) <= MAX_FINISH else ""

    def _piece(self, kind: str, text: str, found: list[bytes]) -> None:
        """A piece of a text, in an item of this kind."""
        self._begin(kind, found)
        said = _ENCODER.encode(text)[1:-1]
        self._take(said)
        found.append(b'%b%b","sequence_number":%d}\n\n' % (self._opens(b".delta", _DELTAS[kind]), said, self._sent))
        self._sent += 1

    def _called(self, call: ChatCall, found: list[bytes]) -> None:
        """A piece of a call: the first has its name, all may have a part of its arguments."""
        name = call.function.name if call.function is not None else None
        given = call.function.arguments if call.function is not None else None
        if self._kind != _CALL or call.index != self._call:
            if not name or call.index < self._call:
                raise disordered()
            self._end(found)
            if self._names is None:
                self._names = tool_names(self._request.fields)
            self._call, self._tool = call.index, self._names.of(name)
            self._call_id = call.id or f"call_{self._base()}_{call.index}"
            self._begin(_CALL, found)
        if given and self._tool.custom:
            self._take(_ENCODER.encode(given)[1:-1])  # its input is known when it is whole
        elif given:
            self._piece(_CALL, given, found)

    def _base(self) -> str:
        return str(self._identity).removeprefix("resp_")

    def _begin(self, kind: str, found: list[bytes]) -> None:
        """Ends the item that is open if it is of another kind, and begins one of this kind."""
        if self._kind == kind:
            return
        self._end(found)
        self._kind = kind
        self._index += 1
        self._shape.forget()
        prefix = "rs" if kind == _THINKING else "fc" if kind == _CALL else "msg"
        self._item = f"{prefix}_{self._base()}_{self._index}"
        where = b'"item_id":%b,"output_index":%d,' % (_ENCODER.encode(self._item), self._index)
        self._place = where if kind == _CALL else where + b'"content_index":0,'
        if kind == _CALL:
            given = '{"input":""}' if self._tool.custom else ""
            item = _ENCODER.encode(call_item(self._item, self._call_id, self._tool, given, "in_progress"))
        else:
            item = self._written(b"in_progress", b"")
        self._event(b"response.output_item.added", b'"output_index":%d,"item":%b' % (self._index, item), found)
        if kind != _CALL:
            self._event(b"response.content_part.added", b'%b"part":%b"}' % (self._place, _PARTS[kind]), found)

    def _written(self, status: bytes, part: bytes) -> bytes:
        """The item that is open, of one part or none."""
        return _ITEMS[self._kind] % (_ENCODER.encode(self._item)[1:-1], status, part)

    def _end(self, found: list[bytes]) -> None:
        """Ends the item that is open: its text, its part, itself."""
        kind = self._kind
        if not kind:
            return
        self._shape.forget()
        text = b"".join(self._pieces)
        self._pieces, self._size_said = [], 0
        cut = self._reason in REASONS
        if kind == _CALL:
            item = self._call_ended(text, cut, found)
        else:
            part = b'%b%b"}' % (_PARTS[kind], text)
            self._event(_NAMES[kind] + b".done", b'%b%b%b"' % (self._place, _TEXTS[kind], text), found)
            self._event(b"response.content_part.done", b'%b"part":%b' % (self._place, part), found)
            item = self._written(b"incomplete" if cut else b"completed", part)
        if item:
            self._output.append(Raw(item))
            self._event(b"response.output_item.done", b'"output_index":%d,"item":%b' % (self._index, item), found)
        self._kind = ""

    def _call_ended(self, text: bytes, cut: bool, found: list[bytes]) -> bytes:
        """Says the input of a call; returns its item, b"" for one of a custom tool that was cut off: it cannot be read."""
        given: str = msgspec.json.decode(b'"%b"' % text)
        if not self._tool.custom:
            told = _ENCODER.encode(self._tool.name)
            self._event(_NAMES[_CALL] + b".done", b'%b"name":%b,"arguments":"%b"' % (self._place, told, text), found)
        elif cut:
            return b""
        else:
            free = _ENCODER.encode(free_input(given))
            self._event(b"response.custom_tool_call_input.delta", b'%b"delta":%b' % (self._place, free), found)
            self._event(b"response.custom_tool_call_input.done", b'%b"input":%b' % (self._place, free), found)
        return _ENCODER.encode(call_item(self._item, self._call_id, self._tool, given, "incomplete" if cut else "completed"))

    def _finished(self, found: list[bytes]) -> None:
        """The events that end the response."""
        if self.ended or self._final is not None:
            return
        if not self._document:
            self._start(ChatAnswer(), found)
        self._end(found)
        document = {**self._document, "output": self._output, "usage": counts(self._view)}
        status = ended(document, self._reason)
        memory = self._request.memory
        if memory is not None and memory.keeps and not self.inspects:
            self._final = {"type": f"response.{status}", "response": document, "sequence_number": self._sent}
            return
        self.ended = True
        self._event(b"response." + status.encode(), b'"response":' + _ENCODER.encode(document), found)

    def ending(self) -> bytes:
        found: list[bytes] = []
        if not self.ended and self._final is None:
            self._finished(found)
        return b"".join(found) + ResponsesReader.ending(self)

    def _next(self) -> int:
        return self._number if self.inspects else self._sent

    def estimate(self, events: int) -> int:
        return max(0, events - 10)
