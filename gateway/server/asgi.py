"""The bridge from a connection to an ASGI application, for every path that reaches no engine (ASGI 3.0, HTTP scope)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter_ns
from typing import Any
from urllib.parse import unquote

from gateway.core.deadlines import within
from gateway.core.errors import GatehouseError, InternalError
from gateway.core.types import Principal
from gateway.pipeline.exchange import LAST_CHUNK, chunked
from gateway.pipeline.statuses import status_line
from gateway.server.protocol import Connection
from gateway.server.reading import UPLOAD
from gateway.server.refusals import plain_error
from gateway.server.request import ParsedRequest

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
log = logging.getLogger("gatehouse.server")
DEADLINE_SECONDS = 30.0


class AsgiApplication:
    """Runs each request of an ASGI application in a task that the data plane owns, under a deadline."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    def start(self, connection: Connection, request: ParsedRequest) -> AsgiCycle:
        cycle = AsgiCycle(connection, request)
        connection.plane.tasks.spawn(cycle.run(self._app), name="asgi")
        return cycle


class AsgiCycle:
    """One request and its response."""

    def __init__(self, connection: Connection, request: ParsedRequest) -> None:
        self.connection, self.request = connection, request
        self._begun_ns = perf_counter_ns()
        self.keep_alive = request.keep_alive
        self.principal: Principal | None = None
        self.peer = connection.peer_of(request)
        self._body = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        if request.complete:
            self._body.set()
        self._gone = False
        self._head = b""  # the head while it is unsent: it goes out together with the first part of the body
        self._started = self._finished = self._is_chunked = False

    # --- called by the connection

    def body_complete(self, body: bytes) -> None:
        self._body.set()

    def client_gone(self) -> None:
        self._gone = True
        self._body.set()
        self._writable.set()

    def cancel(self, error: GatehouseError) -> None:
        self._fail(error)
        self._body.set()

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    # --- the application's side

    async def run(self, app: AsgiApp) -> None:
        try:
            async with within(self._seconds()):
                await app(self._scope(), self._receive, self._send)
            if not (self._finished or self._gone):
                raise RuntimeError("the application did not complete its response")
        except GatehouseError as error:
            self._fail(error)
        except Exception as error:  # boundary: when the application fails, the client gets a 500
            log.error("request %s failed: %r", self.request.request_id.decode(), error, exc_info=error)
            self._fail(InternalError(f"Internal error. The request id is {self.request.request_id.decode()}."))

    def _seconds(self) -> float:
        """Seconds for the whole request. Files take longer."""
        files = self.request.raw_path.startswith(UPLOAD)
        return max(DEADLINE_SECONDS, self.connection.plane.upload_seconds) if files else DEADLINE_SECONDS

    def _scope(self) -> Message:
        request, peer = self.request, self.peer
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method.decode("ascii"),
            "scheme": "http" if self.connection.peer.certificate is None else "https",
            "path": unquote(request.raw_path.decode("latin-1")),
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": (peer.address, 0),
            "state": {"peer": peer, "headers": request.headers, "request_id": request.request_id},
        }

    async def _part(self) -> Message:
        """The next part of a streamed body."""
        request = self.request
        if request.arrived is None:
            request.arrived = self._body.set
            if not request.complete and not self._gone:
                self.connection.read_body()
        while not (self._gone or self._finished or request.complete or request.parts):
            self._body.clear()
            await self._body.wait()
        if self._gone or self._finished:
            return {"type": "http.disconnect"}
        data = b"".join(request.parts)
        request.parts.clear()
        self.connection.took(request)
        return {"type": "http.request", "body": data, "more_body": not request.complete}

    async def _receive(self) -> Message:
        if self.request.streams:
            return await self._part()
        if not self.request.complete and not self._gone:
            self.connection.read_body()
        await self._body.wait()
        if self._gone or self.request.body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.request.body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if self._finished or self._gone:
            return
        if message["type"] == "http.response.start":
            self._begin(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        data, self._head = self._head, b""
        if self._is_chunked:
            data += (chunked(body) if body else b"") + (b"" if more else LAST_CHUNK)
        else:
            data += body
        if data:
            self._started = True
            self.connection.send(data)
        if not more:
            self._finish()
        else:
            await self._writable.wait()

    def _begin(self, message: Message) -> None:
        if not self.request.complete:
            self.keep_alive = False
        headers = message.get("headers", [])
        delimited = message["status"] == 204 or any(name == b"content-length" for name, _ in headers)
        self._is_chunked = not delimited and b":version" not in self.request.headers  # else the body ends with the connection
        lines = [b"%b: %b\r\n" % (name, value) for name, value in headers]
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._head = b"HTTP/1.1 %b\r\ndate: %b\r\nx-request-id: %b\r\nx-gatehouse-overhead-us: %d\r\n%b\r\n" % (
            status_line(message["status"]),
            self.connection.plane.date,
            self.request.request_id,
            (perf_counter_ns() - self._begun_ns) // 1000,
            b"".join(lines),
        )

    def _fail(self, error: GatehouseError) -> None:
        if self._finished or self._gone:
            return
        self.keep_alive = False
        if not self._started:
            self.connection.send(plain_error(error, self.connection.plane.date, self.request.request_id))
        self._finish()

    def _finish(self) -> None:
        self._finished = True
        self.connection.finished(self.keep_alive)
