"""Anthropic's event streams. Pieces of blocks are forwarded unread; what is around them holds usage and the reason of the
end, and is read."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.wire import EventReader, Path, TextFilter
from gateway.wire.anthropic.answers import block_texts, finish_in, trim, usage_from
from gateway.wire.anthropic.views import EVENT, CountsView, EventView
from gateway.wire.openai.answers import WHOLE, Figure, append_text, is_name, only_figures, said_once, without_codes
from gateway.wire.openai.media import is_base64
from gateway.wire.shapes import MAX_MISSES, shape
from gateway.wire.sse import data_of, no_event, opened, says_nothing

STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
TEXT_BEGINS: Final = (b'"text":"', b'"text": "', b'"thinking":"', b'"thinking": "')
DELTA: Final = b"event: content_block_delta\ndata: {"
BLOCK: Final = b"event: content_block_"
BEGUN: Final = b"event: content_block_start\ndata: {"
OVER: Final = b"event: content_block_stop\ndata: {"
_WHOLE: Final = "a message"
"""What the events make up."""
_CLOSING: Final = (125,)
"""What may follow an event's text: a brace."""
AROUND: Final = 5
"""Events of a stream that carry no token: the start and the end of the message and of its first block, and `message_delta`."""
_DELTAS: Final[dict[Any, str]] = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}
"""The field of a piece of a block -> the piece's type."""
SIGNATURE: Final = "signature_delta"
_SIGNATURE: Final[Path] = ("signature",)
_WHOLE_DELTAS: Final = frozenset({SIGNATURE, "citations_delta"})
"""Pieces that are whole by themselves: clients do not put the texts of two of them together."""
_NO_COUNTS: Final = CountsView()


class MessagesReader(EventReader):
    """One stream.

    Nearly all events differ only in their text. One is forwarded unread if it is `_before`, a text without a quote or a line end, and
    `_after`, which were learned from a piece of a block (as in gateway.wire.openai.stream). Where a block begins or ends the event is
    kept, and decoded only if the stream breaks off.
    """

    __slots__ = ("_after", "_before", "_begun", "_counts", "_kinds", "_misses", "_signatures", "_started")

    def __init__(self) -> None:
        super().__init__()
        self._before = self._after = b""
        self._misses = 0
        self._counts: CountsView = _NO_COUNTS
        self._started = False
        self._begun = b""
        """The event that began the block that has not ended."""
        self._kinds: dict[tuple[Any, Path], str] = {}
        """The type of the pieces of a text, where it is not the usual one."""
        self._signatures: dict[tuple[Any, Path], str] = {}

    # --- events that are forwarded as they are

    def plain(self, data: bytes) -> int:
        before, after = self._before, self._after
        if before and data.startswith(before) and data.endswith(after):
            start, end = len(before), len(data) - len(after)
            if start <= end:
                text = data[start:end]
                if not (34 in text or 10 in text or 13 in text):
                    self._misses = 0
                    return 1
        if not data.startswith(BLOCK) or not data.endswith(b"\n\n") or must_be_read(data):
            return 0
        events = data.count(b"\n\n")
        if data.count(b"\n") != 3 * events:
            return 0
        if events > 1:
            return events if events == data.count(b"event: content_block_delta\n") else 0
        if data.startswith(DELTA):
            self._learn(data)
            return 1
        return 1 if self._bounds(data) else 0

    def _bounds(self, event: bytes) -> bool:
        """Whether an event says that a block begins or ends."""
        if event.startswith(BEGUN):
            self._begun = event
        elif event.startswith(OVER):
            self._begun = b""
        else:
            return False
        return True

    def _learn(self, event: bytes) -> None:
        if self._misses >= MAX_MISSES:
            return
        self._misses += 1
        before, after = shape(event, TEXT_BEGINS, _CLOSING)
        if before:
            self._before, self._after = before, after

    # --- events that are read

    def read(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            one_line = event.startswith(BLOCK) and event.count(b"\n") == 1 and not must_be_read(event)
            if one_line and (event.startswith(DELTA) or self._bounds(event)):
                kept.append(event)
                continue
            view = _viewed(data_of(event + b"\n\n"))
            if view is not None:
                if view.type == "error":
                    self.error = EngineError("The engine failed while it was answering.")
                    break
                self._note(view, event)
            kept.append(event)
        return b"\n\n".join(kept) + b"\n\n" if kept else b""

    def _note(self, view: EventView, event: bytes) -> None:
        kind = view.type
        if kind == "message_start":
            self._started = True
            if view.message is not None and view.message.usage is not None:
                self._counts = view.message.usage
        elif kind == "message_delta":
            if view.delta is not None and view.delta.stop_reason is not None:
                self.finish = finish_in(event)
            if view.usage is not None:
                self._counts = _later(self._counts, view.usage)
                self.usage = usage_from(self._counts)
        elif kind == "content_block_stop":
            self._begun = b""
        elif kind == "content_block_start":
            self._begun = event

    def forwarded(self, data: bytes) -> int:
        if data.find(b'"message_stop"') >= 0 and data.find(b"event: message_stop\n") >= 0:
            self.ended = True
        if data[0] != 58 and data.find(b"\n:") < 0:
            return data.count(b"\n\n")
        return sum([1 for event in data.split(b"\n\n") if event and not says_nothing(event)])

    def whole(self, marked: bool) -> bool:
        """An engine that has said why it stopped may leave out the end marker."""
        return marked or self.finish != ""

    def end_of(self, data: bytes) -> int:
        if data.find(b"message_stop") < 0:
            return 0
        place = 0
        for event in data.split(b"\n\n")[:-1]:
            place += len(event) + 2
            if event.find(b"message_stop") >= 0 and (view := _viewed(data_of(event + b"\n\n"))) is not None and view.type == "message_stop":
                return place
        return 0

    def is_end(self, rest: bytes) -> bool:
        return (
            rest.find(b"message_stop") >= 0
            and (view := _viewed(data_of(rest.rstrip() + b"\n\n"))) is not None
            and view.type == "message_stop"
        )

    def ending(self) -> bytes:
        index = _index(self._begun) if self._begun else -1
        closed = b"" if index < 0 else _event({"type": "content_block_stop", "index": index})
        return closed + STOP

    def estimate(self, events: int) -> int:
        return max(0, events - AROUND)

    # --- events that guardrails read

    def smaller(self, event: bytes, most: int) -> list[bytes]:
        payload = data_of(event + b"\n\n")
        if not payload:
            return [event]
        document = opened(payload, _WHOLE)
        delta = document.get("delta")
        if document.get("type") != "content_block_delta" or delta.__class__ is not dict:
            return [event]
        for name in _DELTAS:
            text = delta.get(name)
            if text.__class__ is str and len(text) > most:
                return [_event({**document, "delta": {**delta, name: text[at : at + most]}})[:-2] for at in range(0, len(text), most)]
        return [event]

    def inspected(self, event: bytes, texts: TextFilter) -> bytes:
        payload = data_of(event + b"\n\n")
        if not payload:
            return b""
        document = opened(payload, _WHOLE)
        kind = document.get("type")
        if kind == "content_block_delta":
            return self._inspected(document, texts)
        if kind == "content_block_start":
            return _start(document, texts)
        if kind == "content_block_stop":
            index = _number(document)
            return self._held(index, texts.finish(index)) + _event({"type": kind, "index": index})
        if kind == "message_start":
            message = document.get("message")
            if message.__class__ is not dict:
                raise no_event(_WHOLE)
            trim(message)
            message["content"], message["stop_sequence"] = [], None
            return _event({"type": kind, "message": message})
        if kind == "message_delta":
            return self.rest(texts) + _last(document, texts)
        if kind == "message_stop":
            return self.rest(texts) + STOP
        return PING if kind == "ping" else b""

    def rest(self, texts: TextFilter) -> bytes:
        return b"".join([self._held(index, [(path, rest)]) for index, path, rest in texts.finish_all()])

    def _inspected(self, document: dict[str, Any], texts: TextFilter) -> bytes:
        """A piece of a block; b"" if all of it is held."""
        index, delta = _number(document), document.get("delta")
        if delta.__class__ is not dict or delta.get("type").__class__ is not str:
            raise no_event(_WHOLE)
        kind = delta["type"]
        if kind == SIGNATURE and delta.get("signature").__class__ is str:
            said_once(self._signatures, index, _SIGNATURE, delta["signature"])
            if is_base64(delta["signature"]):
                return _event({"type": "content_block_delta", "index": index, "delta": {"type": kind, "signature": delta["signature"]}})
        says, holds = False, False
        without_codes(delta)
        for path, holder, key in block_texts(delta):
            text = holder[key]
            if key == WHOLE or kind in _WHOLE_DELTAS:
                holder[key] = texts.whole(text)
                says |= holder.__class__ is dict or holder.__class__ is Figure  # not for its key alone
                continue
            released = holder[key] = texts.feed(index, path, text)
            if released != text and _DELTAS.get(path[-1]) != kind:
                self._kinds[(index, path)] = kind
            says |= released != ""
            holds |= released == "" and text != ""
        return b"" if holds and not says else _event({"type": "content_block_delta", "index": index, "delta": delta})

    def _held(self, index: Any, rests: list[tuple[Path, str]]) -> bytes:
        """What was held of a block, as pieces of it."""
        events: list[bytes] = []
        for path, rest in rests:
            kind = self._kinds.pop((index, path), "") or _DELTAS.get(path[-1], "text_delta")
            delta: dict[str, Any] = {"type": kind}
            append_text(delta, path, rest)
            events.append(_event({"type": "content_block_delta", "index": index, "delta": delta}))
        return b"".join(events)


def _start(document: dict[str, Any], texts: TextFilter) -> bytes:
    """The start of a block, which may have texts of its own."""
    index, block = _number(document), document.get("content_block")
    if block.__class__ is not dict or block.get("type").__class__ is not str:
        raise no_event(_WHOLE)
    without_codes(block)
    for path, holder, key in block_texts(block):
        if holder[key]:
            holder[key] = texts.feed(index, path, holder[key]) if _comes_in_pieces(path) else texts.whole(holder[key])
    return _event({"type": "content_block_start", "index": index, "content_block": block})


def _comes_in_pieces(path: Path) -> bool:
    return len(path) == 1 and path[0] in _DELTAS


def _last(document: dict[str, Any], texts: TextFilter) -> bytes:
    """The end of the message: why it ended, and its usage."""
    delta, usage = document.get("delta"), document.get("usage")
    found: dict[str, Any] = {"type": "message_delta", "delta": {}}
    if delta.__class__ is dict:
        reason, stop = delta.get("stop_reason"), delta.get("stop_sequence")
        found["delta"]["stop_reason"] = reason if reason.__class__ is str and is_name(reason) else None
        found["delta"]["stop_sequence"] = texts.whole(stop) if stop.__class__ is str else None
    if usage.__class__ is dict:
        only_figures(usage, 0)
        found["usage"] = usage
    return _event(found)


def _number(document: dict[str, Any]) -> int:
    index = document.get("index")
    if index.__class__ is not int:
        raise no_event(_WHOLE)
    number: int = index
    return number


def _viewed(payload: bytes) -> EventView | None:
    """The typed view of an event's data; None when it is none of a message."""
    if not payload.startswith(b"{"):
        return None
    try:
        return EVENT.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _index(event: bytes) -> int:
    try:
        index = msgspec.json.decode(data_of(event.rstrip() + b"\n\n")).get("index")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return -1
    return index if index.__class__ is int else -1


def _later(before: CountsView, now: CountsView) -> CountsView:
    """Counts of a message's end, which are those of all of it; what they leave out is as it was at the start."""
    return CountsView(
        before.input_tokens if now.input_tokens is None else now.input_tokens,
        before.output_tokens if now.output_tokens is None else now.output_tokens,
        before.cache_read_input_tokens if now.cache_read_input_tokens is None else now.cache_read_input_tokens,
        before.cache_creation_input_tokens if now.cache_creation_input_tokens is None else now.cache_creation_input_tokens,
    )


def event(document: dict[str, Any]) -> bytes:
    """One whole event."""
    return _event(document)


def _event(document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (document["type"].encode(), msgspec.json.encode(document))


def must_be_read(data: bytes) -> bool:
    """Whether events of blocks may hold what the framing must look at."""
    return 13 in data or data.find(b"\n:") >= 0 or data.find(b'"error"') >= 0
