"""Small HTTP/1.1 servers: a joined machine's port for tickets and its socket for orders, and the port where replicas fetch model files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.server.listener import QuietServer

Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
HEAD_SECONDS: Final = 10.0
CUT_SECONDS: Final = 1.0


class TimedConnection(HttpToolsProtocol):
    """A connection that must send the head of a request soon."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._due = self.loop.call_later(HEAD_SECONDS, transport.abort)
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()  # connections that are told of their refusal are bounded too

    def on_headers_complete(self) -> None:
        self._arrived()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        super().on_message_begin()
        self.scope["gatehouse.close"] = self.transport.close  # type: ignore[typeddict-unknown-key]

    def _arrived(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


def small_server(
    application: Application,
    *,
    connections: int,
    keep_alive: int,
    graceful: int,
    tls: ssl.SSLContext | None = None,
    connection: type[TimedConnection] = TimedConnection,
) -> QuietServer:
    """A server that is not started. connections: at most that are served; others get 503, or nothing where there are twice as many.
    keep_alive, graceful: seconds for which an idle connection stays open, and for which requests under way have time at the end."""
    config = uvicorn.Config(
        application,
        interface="asgi3",
        http=connection,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=graceful,
    )
    config.load()
    config.ssl = tls
    return QuietServer(config)


async def cut(scope: Scope, receive: Any) -> None:
    """Closes the connection in the middle of an answer, so that nobody takes what has come for the whole of it."""
    scope["gatehouse.close"]()
    try:
        async with asyncio.timeout(CUT_SECONDS):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        pass  # a client that takes nothing; the server closes it


async def answer(send: Any, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Sends a whole answer of JSON."""
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
