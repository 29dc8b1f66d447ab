"""The listeners: uvicorn's life cycle around our own protocol class (data) and around Starlette (admin).

Signals belong to the composition root: two uvicorn servers in one process would both capture them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn

from gateway.core.errors import ConfigError
from gateway.core.specs import TlsSpec
from gateway.server.accept import TlsAcceptor
from gateway.server.allocator import tuned
from gateway.server.protocol import Connection, ListenerState

BACKLOG = 4096


class QuietServer(uvicorn.Server):
    """A uvicorn server that handles no signals, logs nothing, and waits for `end` instead of polling ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        """Stops listening; open connections finish what they serve."""
        self.should_exit = True
        self._ended.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class TlsServer(QuietServer):
    """The data listener with TLS: connections come through our own acceptor, which bounds the handshakes."""

    def __init__(self, config: uvicorn.Config, state: ListenerState, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self._state, self._context = state, context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        acceptors = [TlsAcceptor(sock, self._context, self._state, self._connection) for sock in sockets or ()]
        for acceptor in acceptors:
            acceptor.start()
        self.servers = acceptors  # type: ignore[assignment]  # uvicorn only uses what an acceptor has too
        self.started = True

    def _connection(self) -> Connection:
        return Connection(self._state, self.server_state)


def bind(address: str, setting: str) -> socket.socket:
    """A listening TCP socket for "host:port" ("[::1]:8080" for IPv6; port 0 chooses a free one). Raises ConfigError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, int(port)))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, ValueError, OverflowError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"cannot listen on {address}: {reason}", path=setting) from None
    return sock


def address_of(sock: socket.socket) -> str:
    """`host:port` as a client writes it."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_context(spec: TlsSpec, setting: str = "listen.tls") -> ssl.SSLContext:
    """The server's TLS context: TLS 1.2 and later; client certificates when `client_ca` is set. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(spec.cert, spec.key)
        if spec.client_ca is not None:
            context.load_verify_locations(spec.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if spec.require_client else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}", path=setting) from None
    return context


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """uvicorn needs an application; the data listener's protocol class never calls it."""


def data_server(state: ListenerState, tls: TlsSpec | None, drain_seconds: float) -> QuietServer:
    """The data listener: uvicorn runs it, and Connection serves its connections."""

    state.allocator = tuned()

    def connection(config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> Connection:
        return Connection(state, server_state)

    config = uvicorn.Config(
        _nothing,
        http=connection,  # type: ignore[arg-type]
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(drain_seconds) + 1,
    )
    config.load()
    return QuietServer(config) if tls is None else TlsServer(config, state, tls_context(tls))


def admin_server(app: Any, tls: TlsSpec | None = None) -> QuietServer:
    """The admin listener: Starlette under uvicorn."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    if tls is not None:
        config.load()
        config.ssl = tls_context(tls, "listen.admin_tls")
    return QuietServer(config)
