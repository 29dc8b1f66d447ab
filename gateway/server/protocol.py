"""The data listener's connection: uvicorn's `http=` class, on httptools. Inference paths go straight into the pipeline, every
other path to the ASGI application (gateway.server.asgi); the ASGI cycle costs about 20 microseconds a request.

Reading is bounded everywhere (RFC 9112): a request that is malformed, too large or too slow is
answered with the contract's error and the connection is closed, so that nothing that follows it can be taken for a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import httptools

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.types import Headers, Peer
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.server.cors import cors_headers
from gateway.server.head import REQUEST_ID, UNDERSCORE, check_framing, split_target
from gateway.server.peers import forwarded_peer, is_trusted, plain
from gateway.server.refusals import body_too_large, head_too_large, plain_error
from gateway.server.upgrade import parser_after
from gateway.telemetry.metrics import PHASES

SINGLE: Final = frozenset(
    {b"authorization", b"content-length", b"host", b"content-type", b"transfer-encoding", b"x-api-key", b"api-key", b"traceparent"}
)
"""Headers that may stand once only: a second one could be read differently by somebody else."""
MAX_PIPELINED: Final = 16
"""Requests that wait for their turn, from which no further read is made."""
MAX_WAITING: Final = 256
"""Requests that may wait: one read can bring thousands of small ones, each forty times as large in memory."""
MAX_PIPELINED_BODY: Final = 64 * 1024
"""Bytes of a body from which no further request is read while this one waits for its turn."""
WRITE_HIGH: Final = 64 * 1024
WRITE_LOW: Final = 16 * 1024
NEVER: Final = float("inf")
LINGER_SECONDS: Final = 2.0
STALL_SECONDS: Final = 30.0
"""A closing connection whose client takes nothing of what is still unsent for so long is cut."""


class Handler(Protocol):
    """What answers one request: an Exchange, or an ASGI cycle."""

    keep_alive: bool

    def body_complete(self, body: bytes) -> None: ...

    def client_gone(self) -> None: ...

    def cancel(self, error: GatehouseError) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Application(Protocol):
    """What answers the paths that are no inference."""

    def start(self, connection: Connection, request: ParsedRequest) -> Handler: ...


class ParsedRequest:
    """A request whose head is complete; the body follows."""

    __slots__ = ("body", "complete", "handler", "headers", "keep_alive", "method", "parts", "query", "raw_path", "request_id", "size")

    def __init__(self, method: bytes, raw_path: bytes, query: bytes, headers: Headers, keep_alive: bool, request_id: bytes) -> None:
        self.method, self.raw_path, self.query, self.headers = method, raw_path, query, headers
        self.keep_alive, self.request_id = keep_alive, request_id
        self.parts: list[bytes] = []
        self.size = 0
        self.body: bytes | None = None
        self.complete = False
        self.handler: Handler | None = None


class ListenerState:
    """What the connections of one listener share. `is_inference`: whether a POST to this path goes into the pipeline."""

    def __init__(self, plane: DataPlane, application: Application, is_inference: Callable[[bytes], bool]) -> None:
        self.plane, self.application, self.is_inference = plane, application, is_inference
        self.connections: set[Connection] = set()
        self.per_peer: dict[str, int] = {}
        plane.metrics.connections = self.connections.__len__

    def sweep(self) -> None:
        """Closes the connections that are past the deadline of what they read. Called after the plane's own sweep."""
        now = self.plane.now
        for connection in [c for c in self.connections if c.read_by <= now]:
            connection.too_slow()


class Connection:
    """One client connection, an asyncio.Protocol by its methods (a base class in Python would cost a compiled one its fast attributes).

    It reads one request at a time; pipelined ones wait in order.
    """

    def __init__(self, state: ListenerState, server_state: Any) -> None:
        self.state, self.plane = state, state.plane
        self.server_state = server_state
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.send: Callable[[bytes], None] = _not_connected
        self.parser = httptools.HttpRequestParser(self)
        self.peer: Peer = None  # type: ignore[assignment]
        self.limits = self.plane.current().spec.listen
        self.read_by = self.plane.now + self.limits.header_timeout
        self.reading: ParsedRequest | None = None
        self.serving: ParsedRequest | None = None
        self._fresh: ParsedRequest | None = None
        self.waiting: deque[ParsedRequest] = deque()
        self.paused = False
        self._closing = False
        self._advancing = False
        self._failed = False
        self._held = False
        self._unsent = -1
        self._url = b""
        self._headers: Headers = {}
        self._head_bytes = self._unparsed_bytes = 0
        self._begun = 0
        self._in_head = self._upgrade = False
        self._error: GatehouseError | None = None
        self._refused: ParsedRequest | None = None

    # --- connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.send = self.transport.write
        name = transport.get_extra_info("peername")
        address = plain(name[0]) if isinstance(name, tuple) else "local"
        tls = transport.get_extra_info("ssl_object")
        self.peer = Peer(
            address, is_trusted(address, self.limits.trusted_peers), tls.getpeercert(binary_form=True) if tls is not None else None
        )
        state = self.state
        state.connections.add(self)
        self.server_state.connections.add(self)
        count = state.per_peer[address] = state.per_peer.get(address, 0) + 1
        self.transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        most, most_of_peer = self.limits.max_connections, self.limits.max_connections_per_peer
        if len(state.connections) > 2 * most or count > 2 * most_of_peer:
            self._failed = True
            transport.abort()  # type: ignore[attr-defined]  # even those that hear of their refusal are bounded
        elif len(state.connections) > most or count > most_of_peer:
            self._refuse(GatehouseError("Too many connections.", code="overloaded", status=503, retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        state = self.state
        state.connections.discard(self)
        self.server_state.connections.discard(self)
        address = self.peer.address
        left = state.per_peer.get(address, 1) - 1
        if left:
            state.per_peer[address] = left
        else:
            state.per_peer.pop(address, None)
        self._closing = True
        self.waiting.clear()
        serving, self.serving = self.serving, None
        if serving is not None and serving.handler is not None:
            serving.handler.client_gone()
        self.parser = None

    def shutdown(self) -> None:
        """uvicorn asks for a graceful end: an idle connection closes, a busy one after its answer."""
        self._closing = True
        if self.serving is None and (self.reading is None or self.paused):
            self._end()
        elif self.serving is not None and self.serving.handler is not None:
            self.serving.handler.keep_alive = False

    def pause_writing(self) -> None:
        self.paused = True
        if self.serving is not None and self.serving.handler is not None:
            self.serving.handler.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.serving is not None and self.serving.handler is not None:
            self.serving.handler.resume()
        if (self._held or self.waiting) and not self.transport.is_closing():
            if self._held:
                self._read_on()
            if self.serving is None and not self._advancing:
                self._advance()

    # --- reading

    def data_received(self, data: bytes) -> None:
        if self._failed or (self._closing and self.reading is None):
            return
        before = self.reading
        one_head = self._begun + (not self._in_head) if before is None else -1
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(self._error or RequestError(f"Malformed HTTP request: {str(error)[:200]}.", code="invalid_request"))
            return
        if self._fresh is not None:
            self._begin()
        if self._in_head and self._begun == one_head:  # all of it is a part of this head, which the parser may still hold back
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self.limits.max_header_bytes:
                self._refuse(head_too_large(self.limits.max_header_bytes))
        elif before is not None and self.reading is before:  # a body goes on: what stands around its chunks is bounded too
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes - before.size > self.limits.max_body_bytes + self.limits.max_header_bytes:
                self._refuse(body_too_large(self.limits.max_body_bytes))

    def _feed(self, data: bytes) -> None:
        """Has the parser read this. At a request to change the protocol it stops, and another one goes on."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._upgrade = False
                self.parser, head = parser_after(self._headers, self)
                data = head + data[upgrade.args[0] :]

    def eof_received(self) -> bool:
        return False

    def too_slow(self) -> None:
        """The deadline of what is being read has come, or of what is still to be sent on a connection that closes."""
        if self._failed or self.transport.is_closing() or (self.reading is None and not self._in_head):
            self._end()
        elif self._held:  # it is us who do not read; `_read_on` sets the deadline again
            if self.serving is None:
                self._end()
            else:
                self.read_by = NEVER
        else:
            self._refuse(RequestError("The request was not received in time.", code="request_timeout", status=408))

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._head_bytes = self._unparsed_bytes = 0
        self._begun += 1
        self._in_head = True
        self.read_by = self.plane.now + self.limits.header_timeout

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self.limits.max_header_bytes:
            raise self._reject(head_too_large(self.limits.max_header_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise self._reject(RequestError("Trailer fields are not supported.", code="invalid_request"))
        self._head_bytes += len(name) + len(value)
        headers = self._headers
        name = name.lower()
        if name in headers:
            if name in SINGLE:
                raise self._reject(RequestError(f"The header {name.decode('latin-1')} is given twice.", code="invalid_header"))
            headers[name] = headers[name] + b", " + value
        elif UNDERSCORE not in name:
            headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers, parser, plane, limits = self._headers, self.parser, self.plane, self.limits
        if len(headers) > limits.max_headers or self._head_bytes > limits.max_header_bytes:
            raise self._reject(head_too_large(limits.max_header_bytes))
        self._upgrade = parser.should_upgrade()
        if self._upgrade and parser.get_method() == b"CONNECT":
            raise self._reject(RequestError("CONNECT is not supported.", code="invalid_request"))
        path, query = split_target(self._url)
        keep_alive = parser.should_keep_alive() and not self._closing
        if (not keep_alive or b"connection" in headers) and (version := parser.get_http_version()) != "1.1":
            self._old_version(version, headers)
        given = headers.get(b"x-request-id")
        request_id = given if given is not None and REQUEST_ID(given) else plane.next_id()
        request = ParsedRequest(parser.get_method(), path, query, headers, keep_alive, request_id)
        error = check_framing(request.method, headers, limits.max_body_bytes)
        if error is not None:
            self._refused = request
            raise self._reject(error)
        self.reading = request
        self.read_by = plane.now + limits.body_timeout
        if self.serving is None and not self.paused:
            self.serving = self._fresh = request
        else:
            self.waiting.append(request)
            if self.paused or len(self.waiting) >= MAX_PIPELINED:
                self._hold()
                if len(self.waiting) > MAX_WAITING:
                    raise self._reject(RequestError(f"More than {MAX_WAITING} requests wait on this connection.", code="invalid_request"))

    def _old_version(self, version: str, headers: Headers) -> None:
        """What is no HTTP/1.1 (RFC 9112, 2.3 and 6.1): HTTP/1.0 has no transfer codings, and nothing else is spoken here."""
        if version != "1.0":
            raise self._reject(RequestError(f"HTTP/{version} is not spoken here; use HTTP/1.1.", code="invalid_request"))
        if b"transfer-encoding" in headers:
            raise self._reject(RequestError("HTTP/1.0 has no Transfer-Encoding.", code="invalid_header"))
        headers.pop(b"expect", None)  # it means nothing here (RFC 9110, 10.1.1), and such a client knows no 100
        headers[b":version"] = b"1.0"  # no client can send this name

    def on_body(self, data: bytes) -> None:
        request = self.reading
        if request is None:
            return
        request.size += len(data)
        if request.size > self.limits.max_body_bytes:
            raise self._reject(body_too_large(self.limits.max_body_bytes))
        request.parts.append(data)

    def on_message_complete(self) -> None:
        if self._upgrade:  # for the parser all is over; the request's body follows
            return
        request, self.reading = self.reading, None
        self.read_by = NEVER
        if request is None:
            return
        parts = request.parts
        if len(parts) == 1:
            body = parts[0]
        else:
            body = b"".join(parts)
            parts.clear()  # a large body is not held twice
        request.body = body
        request.complete = True
        if request.handler is not None:
            request.handler.body_complete(body)
        elif request is not self.serving:
            if self.serving is None:  # it waits for the client to take what was written
                self.read_by = self.plane.now + self.limits.keep_alive_timeout
            if request.size > MAX_PIPELINED_BODY:
                self._hold()

    def _hold(self) -> None:
        """Reads no more until those that wait have had their turn: what they hold, and what their answers will, is bounded."""
        if not self._held:
            self._held = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Reads again when there is room."""
        if self.paused or len(self.waiting) >= MAX_PIPELINED or any(r.size > MAX_PIPELINED_BODY for r in self.waiting):
            return
        self._held = False
        self.transport.resume_reading()
        if self.reading is not None:
            self.read_by = self.plane.now + self.limits.body_timeout
        elif self._in_head:
            self.read_by = self.plane.now + self.limits.header_timeout

    def _reject(self, error: GatehouseError) -> GatehouseError:
        self._error = error
        return error

    def _refuse(self, error: GatehouseError) -> None:
        """Answers with an error and closes: after a request that was not read to its end nothing else is read."""
        if self._fresh is not None:
            self._begin()
            if self._failed:  # it was answered at once, and that was this connection's last answer
                return
        self._failed = True
        self._error = error
        self.read_by = NEVER
        self.waiting.clear()
        serving, self.reading = self.serving, None
        if serving is None:
            self._write_refusal(error)
            self._close()
        elif not serving.complete and serving.handler is not None:
            serving.handler.cancel(error)
        # else: the request before the broken one is answered first, see `finished`

    def _write_refusal(self, error: GatehouseError) -> None:
        """The error of a request that nothing serves. Where its head was whole it has the identifier and the origin that stand there."""
        self.plane.metrics.denied(error.status, error.code)
        request, cors = self._refused, self.limits.cors
        if request is None:
            self.transport.write(plain_error(error, self.plane.date, self.plane.next_id()))
        else:
            lines = cors_headers(cors, request.headers) if cors.origins else b""
            self.transport.write(plain_error(error, self.plane.date, request.request_id, lines))

    def _close(self) -> None:
        """Closes after what was written. What the client still sends is read and dropped for a while: a reset would take the
        answer with it (RFC 9112, 9.6)."""
        self._failed = True
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            if self._held:
                self._held = False
                self.transport.resume_reading()
            self.transport.write_eof()
            self.read_by = self.plane.now + LINGER_SECONDS
        else:
            self._end()

    def _end(self) -> None:
        """Closes when all that was written is sent, or when the client has stopped taking it."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent == self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self.read_by = self.plane.now + STALL_SECONDS
        self.transport.close()

    # --- serving

    def _begin(self) -> None:
        """Starts the request whose head came with this read: by now its body is mostly there too, and need not be waited for."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._start(fresh)

    def _start(self, request: ParsedRequest) -> None:
        self.serving = request
        plane = self.plane
        if request.method == b"POST" and self.state.is_inference(request.raw_path):
            snapshot = plane.current()
            self.limits = snapshot.spec.listen
            peer = forwarded_peer(self.peer, request.headers) if self.peer.trusted else self.peer
            exchange = Exchange(plane, snapshot, self, request.raw_path, request.headers, peer, request.request_id)
            exchange.keep_alive = request.keep_alive
            exchange.body = request.body
            request.handler = exchange
            if snapshot.spec.listen.cors.origins:
                exchange.cors = cors_headers(snapshot.spec.listen.cors, request.headers)
            if exchange.marks is not None:
                exchange.mark(PHASES[0])
            exchange.run(serve(exchange))
        else:
            request.handler = self.state.application.start(self, request)

    def read_body(self) -> None:
        request = self.serving
        if request is not None and not request.complete and b"expect" in request.headers:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def finished(self, keep_alive: bool) -> None:
        """The answer to the request being served is complete."""
        request, self.serving = self.serving, None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._failed and self._error is not None and request is not None and request.complete:
            self._write_refusal(self._error)
        if self._failed or not keep_alive or self._closing or request is None:
            if request is not None and request.complete:
                self._failed = True
                self._end()
            else:
                self._close()
        elif self.waiting:
            if not self._advancing:
                self._advance()
        elif self.reading is None and not self._in_head:
            self.read_by = self.plane.now + self.limits.keep_alive_timeout

    def _advance(self) -> None:
        """Serves the requests that wait. A loop, not a recursion: some are answered before `_start` returns."""
        self._advancing = True
        try:
            while self.waiting and self.serving is None and not (self.paused or self._failed or self._closing):
                waiting = self.waiting.popleft()
                if self._held:
                    self._read_on()
                self._start(waiting)
        finally:
            self._advancing = False
        if self.serving is None and self.waiting:  # for as long as the client takes nothing
            self.read_by = self.plane.now + self.limits.keep_alive_timeout


def _not_connected(data: bytes) -> None:
    raise RuntimeError("the connection is not made yet")
