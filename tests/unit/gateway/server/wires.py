"""A fake transport and a connection over it: what the client sends goes in as bytes, what it would read comes out as bytes."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from gateway.core.errors import GatehouseError
from gateway.core.types import Principal
from gateway.server.protocol import Connection, ListenerState
from gateway.server.request import ParsedRequest
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import World


class Transport:
    """Keeps what is written. `half_closed`: our end of file was sent; `closed`: the connection is over.

    unsent: bytes that the client has not taken; `aborted`: they were thrown away.
    """

    def __init__(self, address: str = "192.0.2.1", certificate: bytes | None = None) -> None:
        self.address, self.certificate = address, certificate
        self.written = bytearray()
        self.closed = self.half_closed = self.aborted = False
        self.unsent = 0
        self.reading = True
        self.can_eof = True
        self.limits: tuple[int, int] | None = None

    def get_extra_info(self, name: str) -> Any:
        if name == "peername":
            return (self.address, 50000)
        if name == "ssl_object" and self.certificate is not None:
            return SimpleNamespace(getpeercert=lambda binary_form: self.certificate, context=None)
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.limits = (high, low)

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.half_closed, "nothing is written after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return self.can_eof

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Handler:
    """The answer to one request that is no inference; the test says when it comes."""

    def __init__(self, connection: Connection, request: ParsedRequest) -> None:
        self.connection, self.request = connection, request
        self.keep_alive = request.keep_alive
        self.principal: Principal | None = None
        self.peer = connection.peer
        self.body: bytes | None = request.body
        self.events: list[str] = []
        self.errors: list[GatehouseError] = []

    def body_complete(self, body: bytes) -> None:
        self.body = body

    def client_gone(self) -> None:
        self.events.append("gone")

    def cancel(self, error: GatehouseError) -> None:
        self.errors.append(error)
        self.connection.send(b"<%s>" % error.code.encode())
        self.connection.finished(False)

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")

    def answer(self) -> None:
        self.connection.send(b"<" + self.request.raw_path + b">")
        self.connection.finished(self.keep_alive)


class Application:
    """Keeps the handlers that were started. `at_once`: each answers immediately."""

    def __init__(self) -> None:
        self.handlers: deque[Handler] = deque()
        self.at_once = False

    def start(self, connection: Connection, request: ParsedRequest) -> Handler:
        handler = Handler(connection, request)
        self.handlers.append(handler)
        if self.at_once:
            request.handler = handler
            handler.answer()
        return handler


class Wire:
    """One listener and a connection to it."""

    def __init__(self, world: World | None = None, **listen: Any) -> None:
        self.world = world or World(**listen)
        self.plane = self.world.plane
        self.application = Application()
        self.state = ListenerState(self.plane, self.application, is_inference)
        self.server_state = SimpleNamespace(connections=set(), total_requests=0)
        self.connection, self.transport = self.connect()

    def connect(self, transport: Transport | None = None) -> tuple[Connection, Transport]:
        transport = transport or Transport()
        connection = Connection(self.state, self.server_state)
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)

    def at(self, now: float) -> None:
        """Time passes: the sweep of the listener at that time."""
        self.plane.now = now
        self.state.sweep()

    @property
    def written(self) -> bytes:
        return bytes(self.transport.written)

    @property
    def status(self) -> int:
        """Of the only, or last, response that begins with a status line."""
        return int(self.written.rpartition(b"HTTP/1.1 ")[2][:3])


def get(path: bytes = b"/x", *lines: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (path, b"".join(line + b"\r\n" for line in lines))


def post(path: bytes, body: bytes, *lines: bytes) -> bytes:
    extra = b"".join(line + b"\r\n" for line in lines)
    return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n%b\r\n%b" % (path, len(body), extra, body)
