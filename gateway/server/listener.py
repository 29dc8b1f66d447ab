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
        self._sockets: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._sockets = list(sockets or ())
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self._ended.wait()

    def stop_accepting(self) -> None:
        """Leaves new connections to the other processes that accept on the same socket; open ones go on."""
        for server in self.servers:
            server.close()

    @property
    def handshakes(self) -> int:
        """Connections that are not made yet."""
        return 0

    async def accept_rest(self) -> int:
        """Takes the connections that wait in the sockets' queues, which would be reset when the sockets close; returns how many."""
        count = 0
        for sock in self._sockets:
            for _ in range(BACKLOG):
                try:
                    taken, _name = sock.accept()
                except OSError:  # there is no further one, or no descriptor for it
                    break
                taken.setblocking(False)
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, taken)
                count += 1
        return count

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )  # type: ignore[call-arg]
        return made

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

        self._acceptors: list[TlsAcceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptors = [TlsAcceptor(sock, self._context, self._state, self._shaken) for sock in sockets or ()]
        for acceptor in self._acceptors:
            acceptor.start()
        self.servers = list(self._acceptors)  # type: ignore[arg-type]  # uvicorn only uses what an acceptor has too
        self.started = True

    @property
    def handshakes(self) -> int:
        return sum(acceptor.handshakes for acceptor in self._acceptors)

    def stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()

    async def accept_rest(self) -> int:
        """None: a connection before its handshake has sent no request yet, so nothing of it is lost."""
        return 0

    def _shaken(self) -> Connection:
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
