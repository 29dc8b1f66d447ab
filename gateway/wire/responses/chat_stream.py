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
from gateway.wire.chats import CHAT, ChatAnswer, ChatCall, ChatChoice
from gateway.wire.openai.usage import MAX_FINISH, usage_from
from gateway.wire.openai.views import UsageView
from gateway.wire.responses.chat import call_item, counts, ended, frame, free_input
from gateway.wire.responses.events import line
from gateway.wire.responses.stream import ResponsesReader
from gateway.wire.responses.tool_names import OfferedTool, ToolNames, tool_names
from gateway.wire.shapes import MAX_MISSES, shape, text_of
from gateway.wire.sse import data_of

_TEXT: Final = "text"
_THINKING: Final = "reasoning"
_REFUSAL: Final = "refusal"
_CALL: Final = "call"
_PARTS: Final = {_TEXT: ("output_text", "response.output_text", "text"), _REFUSAL: ("refusal", "response.refusal", "refusal")}
_ENCODER: Final = msgspec.json.Encoder()
_MARKS: Final = (b'"content":"', b'"content": "')
_OPENS: Final = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"%b","output_index":%d,'
    b'"content_index":0,"logprobs":[],"delta":"'
)
_CLOSES: Final = [b'","sequence_number":%d}\n\n' % number for number in range(1024)]
"""How a piece of a text ends, by its number; most answers have fewer events."""
_CLOSING: Final = (44, 125)
"""What may follow a chunk's text: a comma or a brace."""
MAX_SAID: Final = 16 * 1024 * 1024
"""Bytes of one text, which its end repeats."""


class ChatReader(ResponsesReader):
    """One stream of an engine that speaks chat completions.

    A chunk that differs from the one before only in its text is not parsed: the text between `_front` and `_back`, without a quote, a line
    end or a backslash at its end, is written into an event as it is.
    """

    __slots__ = (
        "_back",
        "_call",
        "_call_id",
        "_document",
        "_front",
        "_index",
        "_item",
        "_kind",
        "_learned",
        "_names",
        "_only_text",
        "_open_text",
        "_output",
        "_pieces",
        "_reason",
        "_sent",
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
        self._tool = OfferedTool("", "", False)
        self._index = self._call = -1
        self._pieces: list[bytes] = []
        """The text of the item that is open, as JSON writes it, without quotes."""
        self._size_said = 0
        self._sent = 0
        """Events that were made: the number of the next."""
        self._reason: str | None = None
        self._view: UsageView | None = None
        self._front = self._back = b""
        self._learned = 0
        self._only_text = False
        self._open_text = b""

    def plain(self, data: bytes) -> int:
        return 0

    def whole(self) -> bool:
        """An engine may leave out the end marker: `ending` says the rest, where nobody reads it and it is not kept."""
        memory = self._request.memory
        return not (self.inspects or (memory is not None and memory.keeps)) or super().whole()

    def translated(self, data: bytes) -> bytes:
        text = text_of(data, self._front, self._back)
        if not text:
            return b""
        self._take(text)
        number = self._sent
        self._sent = number + 1
        return self._open_text + text + (_CLOSES[number] if number < 1024 else b'","sequence_number":%d}\n\n' % number)

    def read(self, data: bytes) -> bytes:
        made = self.translated(data)
        if made:
            return made
        found: list[bytes] = []
        events = data.split(b"\n\n")[:-1]
        for one in events:
            payload = data_of(one + b"\n\n")
            if payload == b"[DONE]":
                self._finished(found)
            elif payload:
                self._chunk(payload, found)
            if self.error is not None:
                break
        if len(events) == 1 and self._only_text and self._learned < MAX_MISSES:
            self._learn(data)
        return b"".join(found)

    def _learn(self, data: bytes) -> None:
        """Learns the shape of a chunk that has nothing but a text."""
        self._learned += 1
        front, back = shape(data, _MARKS, _CLOSING)
        if front and data.startswith(b"data:") and data.endswith(b"\n\n"):
            self._front, self._back = front, back
            self._open_text = _OPENS % (self._item.encode(), self._index)

    def _event(self, document: dict[str, Any], found: list[bytes]) -> None:
        document["sequence_number"] = self._sent
        self._sent += 1
        found.append(line(document) + b"\n\n")

    def _take(self, text: bytes) -> None:
        self._pieces.append(text)
        self._size_said += len(text)
        if self._size_said > MAX_SAID:
            raise EngineError("The engine's answer is too long to be told as a response.")

    def _chunk(self, payload: bytes, found: list[bytes]) -> None:
        try:
            chunk: ChatAnswer = CHAT.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.error = EngineError("The engine sent an event that is not a chunk of an answer.")
            return
        if chunk.error is not msgspec.UNSET and bytes(chunk.error) != b"null":
            self.error = EngineError("The engine failed while it was answering.")
            return
        if not self._document:
            self._start(chunk, found)
        if chunk.usage is not None:
            self._view, self.usage = chunk.usage, usage_from(chunk.usage)
        self._only_text = False
        if chunk.choices:
            self._choice(chunk.choices[0], found)
            self._only_text &= chunk.usage is None and len(chunk.choices) == 1

    def _start(self, chunk: ChatAnswer, found: list[bytes]) -> None:
        base = chunk.id.removeprefix("chatcmpl-")
        self._document = document = frame(self._request, f"resp_{base}", chunk.model, chunk.created)
        self._identity = document["id"]
        self._item = base
        told = Raw(_ENCODER.encode(document))
        for kind in ("response.created", "response.in_progress"):
            self._event({"type": kind, "response": told}, found)

    def _choice(self, choice: ChatChoice, found: list[bytes]) -> None:
        delta = choice.delta
        if delta is not None:
            if thought := delta.thought():
                self._begin(_THINKING, found)
                self._piece("response.reasoning_text.delta", thought, True, found)
            if text := delta.text():
                self._begin(_TEXT, found)
                self._piece("response.output_text.delta", text, True, found)
            if delta.refusal:
                self._begin(_REFUSAL, found)
                self._piece("response.refusal.delta", delta.refusal, True, found)
            for call in delta.tool_calls or ():
                self._called(call, found)
            self._only_text = (
                delta.content.__class__ is str and text == delta.content and not thought and not delta.tool_calls and not delta.refusal
            )
        finish = choice.finish_reason
        if finish is not None:
            self._reason, self._only_text = finish, False
            self.finish = finish if finish.isidentifier() and len(finish) <= MAX_FINISH else ""

    def _piece(self, kind: str, text: str, in_part: bool, found: list[bytes]) -> None:
        self._take(_ENCODER.encode(text)[1:-1])
        document: dict[str, Any] = {"type": kind, "item_id": self._item, "output_index": self._index}
        if in_part:
            document["content_index"] = 0
        document["delta"] = text
        if self._kind == _TEXT:
            document["logprobs"] = []
        self._event(document, found)

    def _called(self, call: ChatCall, found: list[bytes]) -> None:
        """A piece of a call: the first has its name, all may have a part of its arguments."""
        name = call.function.name if call.function is not None else None
        given = call.function.arguments if call.function is not None else None
        if self._kind != _CALL or call.index != self._call:
            if not name or call.index < self._call:
                self.error = EngineError("The engine called tools in an order that cannot be told as events.")
                return
            self._end(found)
            if self._names is None:
                self._names = tool_names(self._request.fields)
            self._call, self._tool = call.index, self._names.of(name)
            self._call_id = call.id or f"call_{self._base()}_{call.index}"
            self._begin(_CALL, found)
        if given and self._tool.custom:
            self._take(_ENCODER.encode(given)[1:-1])  # its input is known when it is whole
        elif given:
            self._piece("response.function_call_arguments.delta", given, False, found)

    def _base(self) -> str:
        return str(self._identity).removeprefix("resp_")

    def _begin(self, kind: str, found: list[bytes]) -> None:
        """Ends the item that is open if it is of another kind, and begins one of this kind."""
        if self._kind == kind:
            return
        self._end(found)
        self._kind = kind
        self._index += 1
        self._front = b""
        self._learned = 0
        prefix = "rs" if kind == _THINKING else "fc" if kind == _CALL else "msg"
        self._item = f"{prefix}_{self._base()}_{self._index}"
        item = self._written(Raw(b'""'), "in_progress", b"")
        if kind != _CALL:
            item["content"] = []
        self._event({"type": "response.output_item.added", "output_index": self._index, "item": item}, found)
        if kind != _CALL:
            self._event(self._of_part("response.content_part.added", part=self._part(Raw(b'""'))), found)

    def _of_part(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self._item, "output_index": self._index, "content_index": 0, **more}

    def _part(self, text: Raw) -> dict[str, Any]:
        if self._kind == _THINKING:
            return {"type": "reasoning_text", "text": text}
        if self._kind == _REFUSAL:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _written(self, text: Raw, status: str, given: bytes) -> dict[str, Any]:
        """The item that is open. given: the arguments of a call, decoded."""
        if self._kind == _THINKING:
            return {"id": self._item, "type": "reasoning", "status": status, "summary": [], "content": [self._part(text)]}
        if self._kind == _CALL:
            if self._tool.custom and status == "in_progress":
                given = b'{"input":""}'
            return call_item(self._item, self._call_id, self._tool, given.decode(), status)
        return {"id": self._item, "type": "message", "status": status, "role": "assistant", "content": [self._part(text)]}

    def _end(self, found: list[bytes]) -> None:
        """Ends the item that is open: its text, its part, itself."""
        kind = self._kind
        if not kind:
            return
        self._front = b""
        text = Raw(b'"' + b"".join(self._pieces) + b'"')
        self._pieces, self._size_said = [], 0
        where = {"item_id": self._item, "output_index": self._index}
        cut = self._reason == "length"
        status = "incomplete" if cut else "completed"
        if kind == _CALL:
            given: str = msgspec.json.decode(text)
            if self._tool.custom:
                if cut:
                    self._kind = ""
                    return  # what was cut off cannot be read
                free = free_input(given)
                self._event({"type": "response.custom_tool_call_input.delta", **where, "delta": free}, found)
                self._event({"type": "response.custom_tool_call_input.done", **where, "input": free}, found)
            else:
                told = {"type": "response.function_call_arguments.done", **where, "name": self._tool.name, "arguments": text}
                self._event(told, found)
            item = self._written(text, status, given.encode())
        else:
            if kind == _THINKING:
                self._event(self._of_part("response.reasoning_text.done", text=text), found)
            elif kind == _REFUSAL:
                self._event(self._of_part("response.refusal.done", refusal=text), found)
            else:
                self._event(self._of_part("response.output_text.done", text=text, logprobs=[]), found)
            self._event(self._of_part("response.content_part.done", part=self._part(text)), found)
            item = self._written(text, status, b"")
        self._output.append(item)
        self._event({"type": "response.output_item.done", "output_index": self._index, "item": item}, found)
        self._kind = ""

    def _finished(self, found: list[bytes]) -> None:
        """The events that end the response."""
        if self.ended or self._final is not None:
            return
        if not self._document:
            self._start(ChatAnswer(), found)
        self._end(found)
        document = {**self._document, "output": self._output, "usage": counts(self._view)}
        status = ended(document, self._reason)
        told: dict[str, Any] = {"type": f"response.{status}", "response": document}
        memory = self._request.memory
        if memory is not None and memory.keeps and not self.inspects:
            told["sequence_number"] = self._sent
            self._final = told
            return
        self.ended = True
        self._event(told, found)

    def ending(self) -> bytes:
        found: list[bytes] = []
        if not self.ended and self._final is None:
            self._finished(found)
        return b"".join(found) + ResponsesReader.ending(self)

    def _next(self) -> int:
        return self._number if self.inspects else self._sent

    def estimate(self, events: int) -> int:
        return max(0, events - 10)
