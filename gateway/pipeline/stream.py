"""Phase 10: takes an engine's answer as it arrives. Bytes are forwarded, not objects; an event is parsed only when somebody must read it.

`AnswerRelay` gathers a whole answer (bounded). `StreamRelay` forwards server-sent events in chunked transfer coding; when a
guardrail reads the stream, `InspectedRelay` (gateway.pipeline.inspect) takes its place.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import ClassVar, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.types import ResponseHead, Usage
from gateway.core.waiting import Signal
from gateway.pipeline.exchange import LAST_CHUNK, Exchange
from gateway.wire.openai.requests import CHUNK, usage_from, usage_of
from gateway.wire.openai.views import ChunkView
from gateway.wire.sse import data_of

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_EVENT_BYTES: Final = 256 * 1024
KEEP_ALIVE: Final = b"e\r\n: keep-alive\n\n\r\n"
DONE: Final = b"data: [DONE]\n\n"
END: Final = b"[DONE]\n\n"
JSON_OPENS: Final = (b"{", b"[")
DONE_LINES: Final = (b"data: [DONE]", b"data:[DONE]")
STREAM_HEADERS: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
OK: Final = b"200 OK"
_SIZES: Final = [b"%x\r\n" % size for size in range(1024)]
"""The line before a chunk of so many bytes; most events are short."""
TEXT_BEGINS: Final = (b'content":"', b'content": "', b'text":"', b'text": "')
"""What stands before the text of an event: content, reasoning_content, text; with the space of Python's own encoder or without."""
MAX_MISSES: Final = 4
"""Events in a row whose shape is learned in vain."""
TRUNCATED: Final = b"content-type: application/json\r\ncontent-length: %d\r\nx-gatehouse-truncated: %b\r\n"
GENERATION: Final = frozenset({"chat", "completions"})
"""The operations that generate text; all others answer with vectors, scores or tensors."""


class AnswerRelay:
    """Gathers a whole answer; `done` completes at its end. Nothing is sent to the client here, so a failure may be retried."""

    __slots__ = ("_parts", "_size", "done", "exchange", "head")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.done: Signal[None] = Signal()
        self.head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def started(self) -> bool:
        """Whether something of this answer has reached the client."""
        return False

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise EngineError(f"The engine's answer is larger than {MAX_ANSWER_BYTES} bytes.")
        self._parts.append(data)

    def on_end(self) -> None:
        exchange = self.exchange
        exchange.engine_ns += perf_counter_ns() - exchange.sent_ns
        self.done.set(None)

    def on_failed(self, error: Exception) -> None:
        exchange = self.exchange
        exchange.engine_ns += perf_counter_ns() - exchange.sent_ns
        self.done.fail(error)

    def body(self) -> bytes:
        parts = self._parts
        if len(parts) != 1:
            parts[:] = [b"".join(parts)]
        return parts[0]

    def usage(self) -> Usage | None:
        """What the engine reported; what an answer without usable numbers has cost by estimate, or it would be free; None for no answer."""
        if self.head is None or self.head.status != 200 or not self.done.done or self.done.error is not None:
            return None
        request = self.exchange.request
        if request is not None and request.operation == "infer":
            return Usage(request.prompt_tokens)
        body = self.body()
        reported = usage_of(body)
        if reported is not None or request is None or not is_json(body):
            return reported
        return Usage(request.prompt_tokens, len(body) >> 2 if request.operation in GENERATION else 0, 0, True)

    def tick(self, now: float) -> float:
        return self.exchange.deadline


def is_json(body: bytes) -> bool:
    """Whether an answer looks like the JSON that every operation but `infer` answers with: an object, or a list. Its first mark tells."""
    return body[:1] == b"{" or body.lstrip()[:1] in JSON_OPENS


class Shape:
    """What the events of one stream have in common around their text: nearly all differ in it alone, and such a one need not be searched.

    An event fits when it is `before`, a text without a quote or a line end, and `after`. Those are taken from an event of one line that did
    not have to be read. So this one need not be read either: what `must_be_read` looks for has two quotes and a colon behind the second. In
    `before` and in `after` alone it does not stand; the last quote of `before` has a colon (or a space) in front of it and opens the text,
    the first of `after` closes it, and no colon follows it.
    """

    __slots__ = ("_after", "_before", "_misses")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._misses = 0

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
        """Takes the shape of an event of one line that did not have to be read; a stream whose events share none is soon left alone."""
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


class StreamRelay(AnswerRelay):
    """Forwards an event stream as it arrives, at event boundaries; withholds the usage that the client did not ask for.

    An answer that is no event stream (an engine's error) is gathered like a whole answer.
    """

    __slots__ = ("_carry", "_ended", "_events", "_last_write", "_relays_plainly", "_send", "_shape", "_streaming", "_usage")
    plain: ClassVar[bool] = True
    """Whether whole events may be forwarded without another look."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._send = exchange.client.send
        self._relays_plainly = False
        self._carry = b""
        self._shape = Shape()
        self._events = 0
        self._streaming = False
        self._ended = False
        self._usage: Usage | None = None
        self._last_write = 0.0

    @property
    def started(self) -> bool:
        return self._streaming

    def on_head(self, head: ResponseHead) -> None:
        self.head = head
        if head.status != 200 or not (head.get(b"content-type") or b"").lower().startswith(b"text/event-stream"):
            return
        exchange = self.exchange
        now = perf_counter_ns()
        exchange.engine_ns += now - exchange.sent_ns
        exchange.head_sent = self._streaming = True
        self._relays_plainly = self.plain
        exchange.status = 200
        exchange.client.send(exchange.head(OK, STREAM_HEADERS))
        exchange.sent_ns = now
        self._last_write = exchange.plane.now
        keep_alive = exchange.snapshot.spec.stream.keep_alive
        if keep_alive:
            exchange.wake_at = min(exchange.deadline, exchange.plane.now + keep_alive)

    def on_body(self, data: bytes) -> None:
        if self._carry or not self._relays_plainly:
            self._read(data)
            return
        size, events, shape = len(data), 1, self._shape
        if not shape.fits(data):
            if not data.endswith(b"\n\n") or must_be_read(data):
                self._read(data)
                return
            if data.find(b"\n") != size - 2:
                events = data.count(b"\n") >> 1  # a data line and an empty one; counting single bytes is four times as fast
            if data.endswith(b"[DONE]\n\n"):
                self._ended = True
            elif events == 1:
                shape.learn(data)
        exchange = self.exchange
        if not self._events:
            self._begun()
        self._events += events
        exchange.answer_bytes += size
        self._last_write = exchange.plane.now
        self._send((_SIZES[size] if size < 1024 else b"%x\r\n" % size) + data + b"\r\n")

    def _read(self, data: bytes) -> None:
        """What is not whole events that nobody has to read."""
        if not self._streaming:
            super().on_body(data)
            return
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if b"\r" in data:
            data = self._unify(data)
        if not data.endswith(b"\n\n"):
            cut = data.rfind(b"\n\n") + 2
            if cut == 1:
                self._hold(data)
                return
            self._hold(data[cut:])
            data = data[:cut]
        if must_be_read(data):
            data = self._read_events(data)
            if not data:
                return
        self._forward(data)

    def _forward(self, data: bytes) -> None:
        exchange = self.exchange
        if not self._events:
            self._begun()
        self._events += data.count(b"\n\n")
        if data.endswith(END):
            self._ended = True
        exchange.answer_bytes += len(data)
        self._last_write = exchange.plane.now
        self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def _begun(self) -> None:
        """The first event is here."""
        exchange = self.exchange
        exchange.entry.meter.first_chunk((perf_counter_ns() - exchange.started_ns) * 1e-9)  # type: ignore[union-attr]
        exchange.attempt.answering()  # type: ignore[union-attr]

    def _hold(self, data: bytes) -> None:
        if len(data) > MAX_EVENT_BYTES:
            raise EngineError(f"The engine sent an event larger than {MAX_EVENT_BYTES} bytes.")
        self._carry = data

    def _unify(self, data: bytes) -> bytes:
        """Line ends as `\\n`. A lone trailing `\\r` may be half of a `\\r\\n` and is held back by the event boundary that follows it."""
        if data.endswith(b"\r"):
            return data[:-1].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read_events(self, data: bytes) -> bytes:
        """Reads usage and errors out of whole events; returns what is to be forwarded."""
        kept: list[bytes] = []
        for event in data.split(b"\n\n")[:-1]:
            payload = event[5:].lstrip() if event.startswith(b"data:") and b"\n" not in event else data_of(event)
            view = decode_chunk(payload)
            if view is None:
                kept.append(event)
                continue
            if view.error is not msgspec.UNSET and bytes(view.error) != b"null":
                if kept:
                    self._forward(b"\n\n".join(kept) + b"\n\n")
                raise EngineError("The engine failed while it was answering.")
            if view.usage is not None:
                self._usage = usage_from(view.usage)
                if not view.choices and not self.exchange.request.include_usage:  # type: ignore[union-attr]
                    continue
            kept.append(event)
        return b"\n\n".join(kept) + b"\n\n" if kept else b""

    def on_end(self) -> None:
        if self._streaming:
            if self._carry.endswith(b"\n\r"):  # the lone CR is no half of a CRLF: it ends the last event
                self.on_body(b"\n")
            self.close_stream()
        else:
            exchange = self.exchange
            exchange.engine_ns += perf_counter_ns() - exchange.sent_ns
        self.done.set(None)

    def close_stream(self) -> None:
        """Everything of the answer has been forwarded: ends the client's body."""
        exchange = self.exchange
        if self._carry and self._carry.rstrip() not in DONE_LINES:  # its empty line is all that is missing
            raise EngineError("The engine's stream ended in the middle of an event.")
        exchange.engine_ns += perf_counter_ns() - exchange.sent_ns
        if self._ended:
            exchange.client.send(LAST_CHUNK)
        else:
            exchange.client.send(b"%x\r\n%b\r\n" % (len(DONE), DONE) + LAST_CHUNK)

    def on_failed(self, error: Exception) -> None:
        exchange = self.exchange
        exchange.engine_ns += perf_counter_ns() - exchange.sent_ns
        self.done.fail(error)

    def usage(self) -> Usage | None:
        """What the engine reported; else the chunks relayed, of which the first only names the role."""
        if not self._streaming:
            return super().usage()
        if self._usage is not None:
            return self._usage
        request = self.exchange.request
        prompt = request.prompt_tokens if request is not None else 0
        return Usage(prompt, max(0, self._events - 1), 0, True)

    def tick(self, now: float) -> float:
        """Writes a comment when the engine has been silent for long."""
        exchange = self.exchange
        keep_alive = exchange.snapshot.spec.stream.keep_alive
        if not keep_alive or not self._streaming:
            return exchange.deadline
        if now - self._last_write >= keep_alive:
            exchange.client.send(KEEP_ALIVE)
            self._last_write = now
        return self._last_write + keep_alive


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


def answer_head(exchange: Exchange, head: ResponseHead, length: int) -> bytes:
    """The head of a whole, successful answer of `length` bytes: JSON, or binary tensors with the length of their JSON part."""
    request = exchange.request
    if request is None or request.operation in GENERATION:
        return exchange.head(OK, b"content-type: application/json\r\ncontent-length: %d\r\n" % length)
    truncated = head.get(b"x-gatehouse-truncated")
    if truncated is not None and truncated.isdigit():
        return exchange.head(OK, TRUNCATED % (length, truncated))
    tensors = head.get(b"inference-header-content-length")
    if tensors is not None and tensors.isdigit():
        lines = b"content-type: application/octet-stream\r\ninference-header-content-length: %b\r\ncontent-length: %d\r\n"
        return exchange.head(OK, lines % (tensors, length))
    return exchange.head(OK, b"content-type: application/json\r\ncontent-length: %d\r\n" % length)
