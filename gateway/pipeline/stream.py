"""Phase 10: takes an engine's answer as it arrives. Bytes are forwarded, not objects; an event is parsed only when necessary.

`AnswerRelay` gathers a whole answer (bounded). `StreamRelay` forwards server-sent events in chunked transfer coding; when a
guardrail reads the stream, `InspectedRelay` (gateway.pipeline.inspect) takes its place.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Any, ClassVar, Final

from gateway.core.errors import EngineError, GatehouseError
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.core.waiting import Signal
from gateway.core.wire import MAX_EVENT_BYTES, WholeAnswer
from gateway.pipeline import costs
from gateway.pipeline.exchange import LAST_CHUNK, Exchange, chunked
from gateway.pipeline.memory import STEP, UNCOUNTED
from gateway.wire.sse import BOM, begins_stream, named_stream, says_nothing

log = logging.getLogger("gatehouse.pipeline")

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
KEEP_ALIVE: Final = b"e\r\n: keep-alive\n\n\r\n"
STREAM_HEADERS: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
COST_TRAILER: Final = b"trailer: x-gatehouse-cost\r\n"
OK: Final = b"200 OK"
PROMPT_TOKENS: Final = b"x-gatehouse-prompt-tokens"
LOOK: Final = 1024
"""Bytes of an answer by which it is known whether it is an event stream, whatever its engine calls it."""
LAG: Final = 1.0
"""Seconds that an engine has to end its answer once the end marker has come."""
_SIZES: Final = [b"%x\r\n" % size for size in range(1024)]
"""The lines before chunks, by their number of bytes; most events are short."""


def _note_prompt(exchange: Exchange, head: ResponseHead) -> None:
    """How long the prompt is, where the engine says so before it generates: a stream that its client gives up is charged that."""
    said = head.get(PROMPT_TOKENS)
    if said is not None and said.isdigit() and len(said) < 10:
        exchange.request.prompt_tokens = int(said)  # type: ignore[union-attr]


def refuse_encoded(head: ResponseHead) -> None:
    """Raises EngineError for an answer that is compressed, although no request says that it may be."""
    encoding = head.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise EngineError("The engine's answer is compressed (content-encoding), which was not asked for.")


def received(request: InferenceRequest, head: ResponseHead, body: bytes) -> bytes:
    """A whole answer in the format of the request's API. Raises EngineError for one that does not follow the engine's format."""
    try:
        return request.api.received(request, body)
    except EngineError:
        refuse_encoded(head)  # says why
        raise


class AnswerRelay:
    """Gathers a whole answer; `done` completes at its end. Nothing is sent to the client here, so a failure may be retried.

    The gathered bytes count against the memory budget until the client has taken them. read: the answer, once guardrails have read it.
    counted, whole: what was found of a large one beforehand (gateway.pipeline.large).
    """

    held: ClassVar[bool] = False
    """Whether a stream that is `done` has not been sent yet; `release` sends it."""
    __slots__ = ("_engine_ns", "_parts", "_reserved", "_size", "counted", "done", "exchange", "head", "read", "whole")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.done: Signal[None] = Signal()
        self.head: ResponseHead | None = None
        self.read: WholeAnswer | None = None
        self.whole: WholeAnswer | None = None
        self.counted: Usage | None = None
        self._engine_ns = 0  # nanoseconds since the request was sent that count as the engine's already
        self._parts: list[bytes] = []
        self._size = 0
        self._reserved = 0

    @property
    def started(self) -> bool:
        """Whether any part of this answer has reached the client."""
        return False

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise EngineError(f"The engine's answer is larger than {MAX_ANSWER_BYTES} bytes.")
        if self._size > UNCOUNTED and self._size > self._reserved:
            more = max(STEP, self._size - self._reserved)
            self.exchange.client.reserve(more)
            self._reserved += more
        self._parts.append(data)

    def on_end(self) -> None:
        self._waited()
        self.done.set(None)

    def on_failed(self, error: Exception) -> None:
        self._waited()
        self.done.fail(error)

    def _waited(self) -> None:
        """Counts the time since the request was sent, as far as it is not counted yet, as the engine's."""
        exchange = self.exchange
        since = perf_counter_ns() - exchange.sent_ns
        exchange.engine_ns += since - self._engine_ns
        self._engine_ns = since

    def stranded(self) -> bool:
        """The endpoint does not work: whether another one, or a fallback, can serve the request now."""
        exchange = self.exchange
        attempt, entry = exchange.attempt, exchange.entry
        if attempt is None or entry is None or self.done.done:
            return False
        labels = exchange.request.labels  # type: ignore[union-attr]
        return entry.route.may_leave(attempt.endpoint_name, exchange.tried + 1, labels) or any(
            other.route.serves(labels) for other in entry.fallbacks
        )

    def body(self) -> bytes:
        parts = self._parts
        if len(parts) != 1:
            parts[:] = [b"".join(parts)]
        return parts[0]

    def usage(self) -> Usage | None:
        """The engine's count; an estimate for an answer without usable numbers, which would be free otherwise; None without an answer."""
        if self.head is None or self.head.status != 200 or not self.done.done or self.done.error is not None:
            return None
        if self.read is not None and self.read.usage is not None:
            return self.read.usage
        if self.counted is not None:
            return self.counted
        request: InferenceRequest = self.exchange.request  # type: ignore[assignment]
        return request.api.answer_usage(request, self.body())

    def finish(self) -> str:
        """Why the engine stopped generating, as it said; "" where it did not."""
        if self.head is None or self.head.status != 200 or not self.done.done or self.done.error is not None:
            return ""
        if self.read is not None and self.read.finish:
            return self.read.finish
        return self.exchange.request.api.answer_finish(self.body())  # type: ignore[union-attr]

    def error_event(self, error: GatehouseError) -> bytes:
        return self.exchange.request.api.error_event(error)  # type: ignore[union-attr]

    def tick(self, now: float) -> float:
        return self.exchange.deadline

    async def release(self) -> None:
        """Inspects a `held` stream and sends what may pass."""


class StreamRelay(AnswerRelay):
    """Forwards an event stream as it arrives, at event boundaries; withholds the usage that the client did not ask for.

    An answer that is not an event stream (an engine's error) is gathered like a whole answer. One with another type, or without any, is a
    stream if it begins like one. With the end marker the stream is over: what an engine sends behind it reaches nobody, and ends the
    connection; whatever else happens to the call then is no failure.
    """

    __slots__ = (
        "_after_cr",
        "_begins",
        "_carry",
        "_events",
        "_last_write",
        "_over",
        "_reader",
        "_relays_plainly",
        "_send",
        "_streaming",
        "_unnamed",
    )
    plain: ClassVar[bool] = True
    """Whether whole events may be forwarded unread."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._send = exchange.client.send
        self._relays_plainly = False  # the first read may begin with a byte order mark
        self._begins = True
        self._after_cr = self._over = False
        self._carry = b""
        request: InferenceRequest = exchange.request  # type: ignore[assignment]
        self._reader = request.api.reader(request)
        self._reader.inspects = not self.plain
        self._events = 0
        self._streaming = self._unnamed = False
        self._last_write = 0.0

    @property
    def started(self) -> bool:
        return self._streaming

    def on_head(self, head: ResponseHead) -> None:
        self.head = head
        if head.status != 200:
            return
        if named_stream(head):
            self._stream(head)
        else:
            self._unnamed = True

    def _stream(self, head: ResponseHead) -> None:
        """The answer is an event stream."""
        refuse_encoded(head)
        exchange = self.exchange
        self._waited()
        self._streaming = True
        if exchange.entry.counts_prompts:  # type: ignore[union-attr]
            _note_prompt(exchange, head)
        if not exchange.head_sent:  # a repaired answer follows another one
            exchange.head_sent = True
            exchange.status = 200
            exchange.client.send(exchange.head(OK, STREAM_HEADERS + COST_TRAILER if costs.in_trailer(exchange) else STREAM_HEADERS))
        self._last_write = exchange.plane.now
        keep_alive = exchange.snapshot.spec.stream.keep_alive
        if keep_alive:
            exchange.wake_at = min(exchange.wake_at, exchange.plane.now + keep_alive)

    def on_body(self, data: bytes) -> None:
        if self._carry or not self._relays_plainly:
            self._read(data)
            return
        events = self._reader.plain(data)
        if not events:
            made = self._reader.translated(data)
            if not made:
                self._read(data)
                return
            data, events = made, 1
        size = len(data)
        exchange = self.exchange
        if not self._events:
            self._begun()
        self._events += events
        exchange.answer_bytes += size
        self._last_write = exchange.plane.now
        self._send((_SIZES[size] if size < 1024 else b"%x\r\n" % size) + data + b"\r\n")

    def _read(self, data: bytes) -> None:
        """Takes data that is not just whole events that may be forwarded unread."""
        if not self._streaming:
            AnswerRelay.on_body(self, data)
            if self._unnamed:
                self._look()
            return
        if self._over:
            self._behind(data)
            return
        if self._begins:
            data = self._carry + data
            if BOM.startswith(data):
                self._carry = data
                return
            data, self._carry = data.removeprefix(BOM), b""
            self._begins = False
            self._relays_plainly = self.plain
        if self._after_cr or 13 in data:
            data = self._unify(data)
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if not data.endswith(b"\n\n"):
            cut = data.rfind(b"\n\n") + 2
            if cut == 1:
                self._hold(data)
                return
            self._hold(data[cut:])
            data = data[:cut]
        reader = self._reader
        end, rest = reader.end_of(data), b""
        if end:
            data, rest, self._carry = data[:end], data[end:] + self._carry, b""
        if data := reader.read(data):
            self._forward(data)
        if reader.error is not None:
            raise reader.error
        if end:
            self._marked(rest)

    def _look(self) -> None:
        """Looks at what has come of an answer that is not called an event stream."""
        data, head = self.body(), self.head
        begins = begins_stream(data)
        if begins is None and len(data) < LOOK:
            return
        self._unnamed = False
        if begins and head is not None:
            self._parts.clear()
            self._size = 0
            self._stream(head)
            self._read(data)

    def _marked(self, rest: bytes) -> None:
        """The end marker has come, and this behind it."""
        exchange = self.exchange
        self._over, self._relays_plainly = True, False
        self._last_write = exchange.plane.now
        exchange.wake_at = min(exchange.wake_at, self._last_write + LAG)
        self._behind(rest)

    def _behind(self, data: bytes) -> None:
        """What comes behind the end marker: empty lines, comments and another marker do no harm."""
        for line in data.splitlines():
            if line and not line.startswith(b":") and not self._reader.is_end(line):
                log.warning("endpoint %s went on behind the end of its stream", self.exchange.attempt.endpoint_name)  # type: ignore[union-attr]
                self._cut()
                return

    def _cut(self) -> None:
        """Ends the stream without the end of the engine's answer; its connection is not used again."""
        if (call := self.exchange.call) is not None:
            call.cancel()
        try:
            self.on_end()
        except GatehouseError as error:
            super().on_failed(error)

    def _forward(self, data: bytes) -> None:
        if events := self._reader.forwarded(data):
            if not self._events:
                self._begun()
            self._events += events
        self.emit(data)

    def emit(self, data: bytes) -> None:
        """Sends what may pass to the client."""
        exchange = self.exchange
        exchange.answer_bytes += len(data)
        self._last_write = exchange.plane.now
        size = len(data)
        self._send((_SIZES[size] if size < 1024 else b"%x\r\n" % size) + data + b"\r\n")

    def _begun(self) -> None:
        """The first event has arrived."""
        exchange = self.exchange
        exchange.first_ns = perf_counter_ns()
        exchange.entry.meter.first_chunk((exchange.first_ns - exchange.started_ns) * 1e-9)  # type: ignore[union-attr]
        exchange.attempt.answering()  # type: ignore[union-attr]

    def _hold(self, data: bytes) -> None:
        size = len(data)
        if size > MAX_EVENT_BYTES:
            if size > self._reader.largest:
                raise EngineError(f"The engine sent an event larger than {self._reader.largest} bytes.")
            if size > self._reserved:
                self.exchange.client.reserve(STEP)
                self._reserved += STEP
        self._carry = data

    def _unify(self, data: bytes) -> bytes:
        """Line ends as `\\n`. A CR ends its line at once; a LF that follows it in the next read belongs to it. From the first CR on, every
        event is read."""
        self._relays_plainly = False
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def on_end(self) -> None:
        if self._streaming:
            self.mark_end()
            self.close_stream()
        else:
            self._waited()
        self.done.set(None)

    def mark_end(self) -> None:
        """Reads the end marker that the engine has left out or not ended, where the reader needs one."""
        reader, rest = self._reader, self._carry
        if self._streaming and (not rest or reader.is_end(rest) or says_nothing(rest)) and (marker := reader.unsaid()):
            self._carry = b""
            self._read(marker)

    def close_stream(self) -> None:
        """The whole answer has been forwarded: ends the client's body."""
        reader = self._reader
        marked = self._over or reader.ended or reader.is_end(self._carry)
        if self._carry and not (marked or says_nothing(self._carry)):
            raise EngineError("The engine's stream ended in the middle of an event.")
        if not reader.whole(marked):
            raise EngineError("The engine's stream ended before its answer was complete.")
        self._waited()
        self.finish_stream()

    def ending(self) -> bytes:
        """What the end of the stream lacks."""
        return b"" if self._reader.ended else self._reader.ending()

    def result(self) -> dict[str, Any] | None:
        """The whole answer, where it is to be kept before the client's body ends."""
        return self._reader.result() if self._streaming else None

    def finish_stream(self, kept: bool = False) -> None:
        """Ends the client's body. kept: an answer that is to be kept has been."""
        reader, exchange = self._reader, self.exchange
        if not kept and reader.result() is not None:
            return
        last = b"0\r\n%b\r\n" % costs.line(exchange) if costs.in_trailer(exchange) else LAST_CHUNK
        exchange.client.send(last if reader.ended else chunked(reader.ending()) + last)

    def on_failed(self, error: Exception) -> None:
        if self._over and not self.done.done:
            self._cut()
        else:
            super().on_failed(error)

    def usage(self) -> Usage | None:
        """The engine's count, else an estimate from the number of relayed events."""
        if not self._streaming:
            return super().usage()
        reader = self._reader
        if reader.usage is not None:
            return reader.usage
        request: InferenceRequest = self.exchange.request  # type: ignore[assignment]
        return Usage(request.prompt_tokens, reader.estimate(self._events), 0, True)

    def error_event(self, error: GatehouseError) -> bytes:
        return self._reader.failed(error) or super().error_event(error)

    def finish(self) -> str:
        return self._reader.finish if self._streaming else super().finish()

    def tick(self, now: float) -> float:
        """Writes a comment when the engine has been silent for too long, and waits no longer for one that has nothing left to say."""
        exchange = self.exchange
        if self._over and exchange.call is not None and not self.done.done:
            if now - self._last_write >= LAG and not exchange.client.paused:
                self._cut()
                return exchange.deadline
            return now + LAG
        keep_alive = exchange.snapshot.spec.stream.keep_alive
        if not keep_alive or not self._streaming:
            return exchange.deadline
        if now - self._last_write >= keep_alive:
            exchange.client.send(KEEP_ALIVE)
            self._last_write = now
        return self._last_write + keep_alive
