"""The data listener's connection: uvicorn's `http=` class, on httptools. Inference paths go straight into the pipeline, every other path to
the ASGI application (gateway.server.asgi); the ASGI cycle costs about 20 microseconds a request.

What a connection can be doing is three state machines (gateway.server.states); what it reads is gateway.server.reading, how it ends
gateway.server.closing. What is left here: whose turn it is, flow control, and which answer is the last one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.core.errors import ClientStalled, GatehouseError, Overloaded, RequestError
from gateway.core.ports import Reservation
from gateway.core.specs import StreamSpec
from gateway.core.types import Peer, Usage
from gateway.pipeline.exchange import Client, Exchange
from gateway.pipeline.fetch import HeadOnly, metadata
from gateway.pipeline.memory import STEP
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.server.account import Account
from gateway.server.allocator import Allocator
from gateway.server.closing import LINGER_SECONDS, STALL_SECONDS, close_or_cut, half_close
from gateway.server.cors import cors_headers
from gateway.server.peers import forwarded_peer, judged, let_in, peer_of, refusal
from gateway.server.proxy_protocol import Header
from gateway.server.reading import NEVER, RequestReader
from gateway.server.refusals import answer
from gateway.server.request import Handler, ParsedRequest, Refusal
from gateway.server.sending import bound_sending, gone, not_connected
from gateway.server.states import (
    ANSWERING,
    CLOSE,
    DRAIN,
    DRAINING,
    FINISH,
    LIFE,
    LINGER,
    LOSE,
    LOSE_LIFE,
    LOST,
    NOTHING,
    OPEN,
    OVER,
    READY,
    START,
    STARTED,
    STARTING,
    TAKE,
    after,
)
from gateway.server.uploads import FormBody
from gateway.telemetry.metrics import PHASES
from gateway.telemetry.refused import NETWORK
from gateway.wire.oip.codec import V2_MODELS

MAX_PIPELINED: Final = 16
"""Requests that wait for their turn, from which no further read is made."""
MAX_WAITING: Final = 256
"""Requests that may wait: one read can bring thousands of small ones, each forty times as large in memory."""
MAX_PIPELINED_BODY: Final = 64 * 1024
"""Bytes of the bodies that wait for their turn, from which no further read is made."""
_RECEIVE: Final = PHASES[0]


class Application(Protocol):
    """Answers the paths that are not inference."""

    def start(self, connection: Connection, request: ParsedRequest) -> Handler: ...


class ListenerState:
    """What the connections of one listener share. `is_inference`: whether a POST to this path goes into the pipeline."""

    def __init__(self, plane: DataPlane, application: Application, is_inference: Callable[[bytes], bool]) -> None:
        self.plane, self.application, self.is_inference = plane, application, is_inference
        self.connections: set[Connection] = set()
        self.sockets: set[Any] = set()  # of gateway.server.websocket_socket
        self.stalled: set[Connection] = set()
        self.per_peer: dict[str, int] = {}
        self.allocator = Allocator(None)
        """Set by the listener (listener.data_server): tests and benchmarks leave the C library alone."""
        plane.metrics.connections = self.count

    def count(self) -> int:
        """How many connections there are."""
        return len(self.connections) + len(self.sockets)

    def left(self, address: str) -> None:
        """One of a peer's connections is no more."""
        left = self.per_peer.get(address, 1) - 1
        if left:
            self.per_peer[address] = left
        else:
            self.per_peer.pop(address, None)

    def sweep(self) -> None:
        """Ends the connections that are past their deadline. Called after the plane's own sweep."""
        now = self.plane.now
        for connection in () if self.plane.resting else [c for c in self.connections if c.due <= now]:
            connection.overdue()
        for connection in () if self.plane.resting else [c for c in self.stalled if c.taken_by <= now]:
            connection.stalled()
        memory = self.plane.memory
        if memory.freed and self.allocator.freed(memory.freed, memory.held, now):
            memory.freed = 0


class Connection(RequestReader):
    """One client connection, an asyncio.Protocol by its methods (a base class in Python would cost a compiled one its fast attributes).

    It answers one request at a time; pipelined ones wait in order. `due`: when it must have received the rest of a request, begun the next
    one, or taken what is unsent on a connection that closes. `paused`: the client does not take what is written, and is cut at `taken_by`;
    `held`: we do not read.
    """

    def __init__(self, state: ListenerState, server_state: Any) -> None:
        RequestReader.__init__(self, state.plane)
        self.state, self.server_state = state, server_state
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.send: Callable[[bytes], None] = not_connected
        self.peer: Peer = None  # type: ignore[assignment]
        self.said: Header | None = None
        self.life = OPEN
        self.answering = NOTHING
        self.serving: ParsedRequest | None = None
        self.waiting: deque[ParsedRequest] = deque()
        self.paused = False
        self.held = False
        self.taken_by = NEVER
        self._patience = -1.0
        self._untaken = self._unsent = -1
        self._account = Account(self.plane.memory)

    # --- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.send = self.transport.write
        self.peer = peer_of(transport, self.limits.trusted_peers, self.said)
        address, state = self.peer.address, self.state
        state.connections.add(self)
        self.server_state.connections.add(self)
        count = state.per_peer[address] = state.per_peer.get(address, 0) + 1
        bound_sending(self.transport, plane_stream(self.plane).buffer_bytes)
        most, most_of_peer = self.limits.max_connections, self.limits.max_connections_per_peer
        rules = self.plane.current().networks
        if rules is not None and not let_in(rules, self.peer):
            self.plane.refused.count("data", NETWORK, address)
            self.stop_reading()
            self.transport.abort()
        elif state.count() > 2 * most or count > 2 * most_of_peer:
            self.stop_reading()
            self.transport.abort()  # connections that are told of their refusal are bounded too
        elif state.count() > most or count > most_of_peer:
            self._refuse(Refusal(Overloaded("Too many connections.", retry_after=1.0)))

    def connection_lost(self, exc: Exception | None) -> None:
        state = self.state
        state.connections.discard(self)
        state.stalled.discard(self)
        self.server_state.connections.discard(self)
        state.left(self.peer.address)
        self.life = after(LIFE, self.life, LOSE_LIFE)
        self.answering = after(ANSWERING, self.answering, LOSE)
        self.waiting.clear()
        serving, self.serving = self.serving, None
        if serving is not None:
            self._account.release(serving)
            if serving.handler is not None:
                handler, serving.handler = serving.handler, None
                handler.client_gone()
        self._account.taken()
        self.release_parser()
        self.send = gone

    def shutdown(self) -> None:
        """Ends gracefully, as uvicorn asks: an idle connection now, a busy one after its answer."""
        self.life = after(LIFE, self.life, DRAIN)
        if self.serving is None and (not self.in_request or self.paused):
            self._end()
        elif self.serving is not None and self.serving.handler is not None:
            self.serving.handler.keep_alive = False

    @property
    def busy(self) -> bool:
        return self.serving is not None or self.in_request or self.paused

    def cut_short(self, error: GatehouseError) -> None:
        """Ends what is being received or answered with an error, and then the connection."""
        if self.serving is not None and self.serving.handler is not None:
            self.serving.handler.keep_alive = False
            self.serving.handler.cancel(error)
        elif self.in_request and self.life <= DRAINING:
            self._refuse(Refusal(error))

    def pause_writing(self) -> None:
        self.paused = True
        self._untaken = -1
        if self._patience < 0:
            self._patience = plane_stream(self.plane).send_timeout
        self.taken_by = self.plane.now + self._patience
        self.state.stalled.add(self)
        if self.serving is not None and self.serving.handler is not None:
            self.serving.handler.pause()

    def resume_writing(self) -> None:
        self.paused = False
        self.state.stalled.discard(self)
        if self.serving is None:
            self._patience = -1.0
            self._account.taken()
        else:  # a stream: its engine waits too, so what it may be paused counts in all
            self._patience = max(0.0, self.taken_by - self.plane.now)
        if self.serving is not None and self.serving.handler is not None:
            self.serving.handler.resume()
        if (self.held or self.waiting) and not self.transport.is_closing():
            if self.held:
                self._read_on()
            if self.answering == NOTHING:
                self._advance()

    def data_received(self, data: bytes) -> None:
        if self.reading == OVER or (self.life != OPEN and not self.in_request):
            return
        if (refusal := self.parse(data)) is not None:
            if self.reading != OVER:  # else a request of this read was answered meanwhile, and that was the last answer
                self._refuse(refusal)
            return
        if self.answering == READY:
            self._begin()
        request = self.request
        if request is not None and not self.readable(request):
            self._hold()

    def eof_received(self) -> bool:
        return False

    def overdue(self) -> None:
        """`due` has come."""
        if self.transport.is_closing() or not self.in_request:
            self._end()
        elif self.held:  # it is us who do not read; `_read_on` sets the deadline again
            if self.serving is None:
                self._end()
            else:
                self.due = NEVER
        else:
            self._refuse(Refusal(RequestError("The request was not received in time.", code="request_timeout", status=408)))

    def stalled(self) -> None:
        """`taken_by` has come. A client that does not read is cut, and whatever waits for it is freed; one that takes a whole answer slowly
        goes on as long as it takes a buffer's worth each time."""
        serving, stream, unsent = self.serving, plane_stream(self.plane), self.transport.get_write_buffer_size()
        if serving is None and unsent <= self._untaken - stream.buffer_bytes:
            self._untaken = unsent
            self.taken_by = self.plane.now + stream.send_timeout
            return
        if serving is not None and serving.handler is not None:
            serving.handler.cancel(ClientStalled("The client did not read its answer in time."))
        self.transport.abort()

    # --- requests that were read

    def head_read(self, request: ParsedRequest) -> None:
        if self.peer.trusted:
            listen, rules = self.plane.current().spec.listen, self.plane.current().networks
            if (error := refusal(self.peer_of(request), request.headers, listen.trusted_peers, listen.forwarding, rules)) is not None:
                raise self.rejected(error, request)
        if self.life != OPEN or self.plane.closing:
            request.keep_alive = False
        if self.answering == NOTHING and not self.paused:
            self.serving = request
            self.answering = after(ANSWERING, self.answering, TAKE)
            return
        self.waiting.append(request)
        if self.paused or len(self.waiting) >= MAX_PIPELINED:
            self._hold()
            if len(self.waiting) > MAX_WAITING:
                raise self.rejected(RequestError(f"More than {MAX_WAITING} requests wait on this connection.", code="invalid_request"))

    def body_read(self, request: ParsedRequest, body: bytes) -> None:
        if request.handler is not None:
            request.handler.body_complete(body)
        elif request is not self.serving:
            if self.serving is None:  # it waits for the client to take what was written
                self.due = self.plane.now + self.limits.keep_alive_timeout
            if self._crowded():
                self._hold()

    def body_grew(self, request: ParsedRequest) -> None:
        if not request.admitted:
            return  # `data_received` stops reading if more of it is to come
        try:
            self._account.grow(request, STEP, self.limits)
        except GatehouseError as error:
            raise self.rejected(error) from None

    def _crowded(self) -> bool:
        """Whether enough requests, or bytes of their bodies, wait already to stop reading."""
        if len(self.waiting) >= MAX_PIPELINED:
            return True
        size = 0
        for request in self.waiting:
            size += request.size
        return size > MAX_PIPELINED_BODY

    def _hold(self) -> None:
        """Stops reading until those that wait have had their turn: their memory, and that of their answers, is bounded."""
        if not self.held:
            self.held = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Reads again when there is room."""
        if self.paused or self._crowded():
            return
        if self.request is not None and not self.readable(self.request):
            return
        self.held = False
        self.transport.resume_reading()
        if self.request is not None:
            self.due = self.plane.now + self.limits.body_timeout
        elif self.in_request:
            self.due = self.plane.now + self.limits.header_timeout

    # --- answering

    def _begin(self) -> None:
        """Starts the request whose head came with this read: by now its body is mostly there too and need not be waited for."""
        self._start(self.serving)  # type: ignore[arg-type]
        if self.waiting and self.answering == NOTHING:
            self._advance()

    def _start(self, request: ParsedRequest) -> None:
        self.serving = request
        self.answering = after(ANSWERING, self.answering, START)
        self._patience = -1.0
        method, path = request.method, request.raw_path
        if method == b"POST":
            if self.state.is_inference(path):
                exchange = self._exchange(request, self)
                exchange.clock.mark(_RECEIVE)
                exchange.run(serve(exchange))
            else:
                request.handler = self.state.application.start(self, request)
        elif (method == b"GET" or method == b"HEAD") and path.startswith(V2_MODELS) and not self.state.is_inference(path):
            exchange = self._exchange(request, self if method == b"GET" else HeadOnly(self))
            exchange.run(metadata(exchange))
        else:
            request.handler = self.state.application.start(self, request)
        self.answering = after(ANSWERING, self.answering, STARTED)

    def _exchange(self, request: ParsedRequest, client: Client) -> Exchange:
        """What a request that reaches an engine is from here on."""
        plane = self.plane
        snapshot = plane.current()
        self.limits = snapshot.spec.listen
        exchange = Exchange(plane, snapshot, client, request.raw_path, request.headers, self.peer_of(request), request.request_id)
        exchange.keep_alive = request.keep_alive
        exchange.body = request.body
        request.handler = exchange
        if request.streams:
            exchange.upload = FormBody(exchange, request, self).upload
        if self.limits.cors.origins:
            exchange.cors += cors_headers(self.limits.cors, request.headers)
        return exchange

    def _advance(self) -> None:
        """Serves the requests that wait: a loop, because some are answered before `_start` returns."""
        while self.waiting and self.answering == NOTHING and self.life == OPEN and not self.paused:
            waiting = self.waiting.popleft()
            if self.held:
                self._read_on()
            if not self.in_request:
                self.due = NEVER
            self._start(waiting)
        if self.serving is None and self.waiting:  # as long as the client takes nothing
            self.due = self.plane.now + self.limits.keep_alive_timeout

    def peer_of(self, request: ParsedRequest) -> Peer:
        """Who sent a request: the other end, or the client that a trusted proxy names."""
        if not self.peer.trusted:
            return self.peer
        spec = self.plane.current().spec
        peer, listen = judged(self.peer, spec.listen.trusted_peers), spec.listen
        return forwarded_peer(peer, request.headers, listen.trusted_peers, spec.identity, listen.forwarding) if peer.trusted else peer

    # --- memory

    def read_body(self) -> None:
        request = self.serving
        if request is None or request.complete:
            return
        if not request.admitted and not request.streams:
            self._account.admit(request, self.limits)
            if self.held:
                self._read_on()
        if b"expect" in request.headers:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def took(self, request: ParsedRequest) -> None:
        """What has come of a body that streams was taken."""
        request.taken = request.size
        if self.request is request:
            self.due = self.plane.now + self.limits.body_timeout
            if self.held:
                self._read_on()

    def reserve(self, size: int) -> None:
        if self.serving is not None:
            self._account.reserve(self.serving, size, self.limits)

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        self._account.settle_when_taken(reservation, usage)
        if self.life == LOST:
            self._account.taken()

    def finished(self, keep_alive: bool) -> None:
        """The answer to the request being served is complete."""
        starting = self.answering == STARTING
        request, self.serving = self.serving, None
        self.answering = after(ANSWERING, self.answering, FINISH)
        self.server_state.total_requests += 1
        if request is not None and request.reserved:
            self._account.release(request)
        if self.paused:
            self._untaken = self.transport.get_write_buffer_size()
        elif self._account.open:
            self._account.taken()
        if self.transport.is_closing():
            return
        if not keep_alive or self.life != OPEN or request is None:
            self._close()
        elif self.waiting:
            if not starting:  # else whoever started it goes on
                self._advance()
        elif self.reading == OVER:
            if self.refusal is not None and request.complete:
                self._write_refusal(self.refusal)
            self._close()
        elif not self.in_request:
            self.due = self.plane.now + self.limits.keep_alive_timeout

    # --- the end

    def _refuse(self, refusal: Refusal) -> None:
        """Answers with an error and closes, once the whole requests before have their answers. Nothing behind it is read."""
        self.stop_reading()
        self.refusal, self.due, waiting = refusal, NEVER, self.waiting
        if refusal.drops or self.life != OPEN:
            waiting.clear()
        elif waiting and not waiting[-1].complete:
            waiting.pop()
        if self.answering == READY and refusal.drops:
            self.serving, self.answering = None, after(ANSWERING, self.answering, LOSE)
        elif self.answering == READY:
            self._begin()
        serving = self.serving
        if serving is not None:  # behind whole requests `finished` does it
            if not serving.complete and serving.handler is not None:
                serving.handler.cancel(refusal.error)
        elif not waiting and self.life <= DRAINING:  # else all were answered at once, or wait for the client to take what was written
            self._write_refusal(refusal)
            self._close()

    def _write_refusal(self, refusal: Refusal) -> None:
        """Answers a request that nothing serves, with its own identifier and origin where its head was whole."""
        peer = self.peer if refusal.request is None else self.peer_of(refusal.request)
        self.transport.write(answer(self.plane, peer, refusal, self.limits.cors))

    def _close(self) -> None:
        """Closes behind what was written, and lingers so that it arrives (see closing.py)."""
        self.stop_reading()
        if self.transport.is_closing():
            return
        if not half_close(self.transport, self.held):
            self._end()
            return
        self.held, self.life = False, after(LIFE, self.life, LINGER)
        self.due = self.plane.now + LINGER_SECONDS

    def _end(self) -> None:
        """Closes without lingering. Called again while something is unsent, to cut a client that takes nothing."""
        self.stop_reading()
        self.life = after(LIFE, self.life, CLOSE)
        self._unsent = close_or_cut(self.transport, self._unsent)
        self.due = self.plane.now + STALL_SECONDS


def plane_stream(plane: DataPlane) -> StreamSpec:
    return plane.current().spec.stream
