"""The listeners: uvicorn's life cycle around our own protocol class (data) and around Starlette (admin).

Signals belong to the composition root: two uvicorn servers in one process would both capture them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator
from typing import Any

import uvicorn

from gateway.core.errors import ConfigError
from gateway.pipeline.plane import DataPlane
from gateway.server.accept import Acceptor
from gateway.server.admin_protocol import AdminConnection, Refusing
from gateway.server.allocator import tuned
from gateway.server.entrance import EntranceOf, admin_entrance, data_entrance
from gateway.server.protocol import Connection, ListenerState
from gateway.server.proxy_protocol import Header
from gateway.server.tls import Contexts

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
    def arriving(self) -> int:
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

    def _connection(self, said: Header | None = None) -> asyncio.Protocol:
        """said: by the proxy, ahead of it."""
        made: Any = self.config.http_protocol_class(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]
        made.said = said
        return made  # type: ignore[no-any-return]

    async def ending(self) -> None:
        """Returns when `end` is called."""
        await self._ended.wait()

    def end(self) -> None:
        """Stops listening; open connections finish what they serve."""
        self.should_exit = True
        self._ended.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class AcceptingServer(QuietServer):
    """A listener whose connections come through our own acceptor, because TLS or a proxy's header comes before HTTP."""

    def __init__(self, config: uvicorn.Config, plane: DataPlane, contexts: Contexts | None, entrance: EntranceOf) -> None:
        super().__init__(config)
        self._plane, self._contexts, self._entrance = plane, contexts, entrance
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        plane = self._plane
        self._acceptors = [Acceptor(sock, self._contexts, plane, self._entrance, self._connection) for sock in sockets or ()]
        for acceptor in self._acceptors:
            acceptor.start()
        self.servers = list(self._acceptors)  # type: ignore[arg-type]  # uvicorn only uses what an acceptor has too
        self.started = True

    @property
    def arriving(self) -> int:
        return sum(acceptor.arriving for acceptor in self._acceptors)

    def stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()

    async def accept_rest(self) -> int:
        return sum([await acceptor.rest() for acceptor in self._acceptors])


def bind(address: str, setting: str, *, shared: bool = False) -> socket.socket:
    """A listening TCP socket for "host:port" ("[::1]:8080" for IPv6; port 0 chooses a free one). shared: others may listen there, too, if
    they say the same (SO_REUSEPORT). Raises ConfigError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, int(port)))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, ValueError, OverflowError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason += " (`ss -ltnp` names the process: it may be a worker of a gateway that was killed)"
        raise ConfigError(f"cannot listen on {address}: {reason}", path=setting) from None
    return sock


def address_of(sock: socket.socket) -> str:
    """`host:port` as a client writes it."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """uvicorn needs an application; the data listener's protocol class never calls it."""


def data_server(state: ListenerState, tls: Contexts | None, drain_seconds: float) -> QuietServer:
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
    return _server(config, state.plane, tls, data_entrance)


def admin_server(app: Any, plane: DataPlane, tls: Contexts | None = None) -> QuietServer:
    """The admin listener: Starlette under uvicorn. plane: the settings in force, and the owner of handshakes."""

    def connection(config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> AdminConnection:
        return AdminConnection(plane, config, server_state, app_state)

    config = uvicorn.Config(
        Refusing(app),
        http=connection,  # type: ignore[arg-type]
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
    config.load()
    return _server(config, plane, tls, admin_entrance)


def _server(config: uvicorn.Config, plane: DataPlane, tls: Contexts | None, entrance: EntranceOf) -> QuietServer:
    if tls is None and entrance(plane.current()).proxy_protocol == "off":
        return QuietServer(config)
    return AcceptingServer(config, plane, tls, entrance)
