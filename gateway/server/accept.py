"""Accepts the connections of a TLS listener. The event loop's own server allows a minute for a handshake and any number of them at once, so
that silent connections could use up all descriptors; here they have the deadline of a request's head and are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from gateway.server.peers import plain
from gateway.server.protocol import Connection, ListenerState

log = logging.getLogger("gatehouse.server")

AT_ONCE: Final = 64
"""Connections accepted in one turn of the event loop."""
PAUSE_SECONDS: Final = 0.2
"""How long to wait before accepting again after the system refused a descriptor."""


class TlsAcceptor:
    """A server to uvicorn: listens from `start` to `close`. Connections in their handshake are bounded like those after it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, state: ListenerState, make: Callable[[], Connection]) -> None:
        self._sock, self._context, self._state, self._make = sock, context, state, make
        self._per_peer: dict[str, int] = {}
        self._shaking: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Needs a running loop."""
        self._resume = None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._shaking)

    def stop(self) -> None:
        """Stops accepting; handshakes under way go on. The caller closes the socket."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def close(self) -> None:
        """Stops accepting and ends the handshakes under way; established connections go on."""
        self.stop()
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits for the handshakes that `close` ended."""
        if self._shaking:
            await asyncio.wait(self._shaking)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, name = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory: the connection waits in the kernel's queue
                log.warning("cannot accept connections: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock.fileno())
                self._resume = loop.call_later(PAUSE_SECONDS, self.start)
                return
            self._admit(sock, plain(name[0]))

    def _admit(self, sock: socket.socket, address: str) -> None:
        limits = self._state.plane.current().spec.listen
        count = self._per_peer.get(address, 0)
        if len(self._shaking) >= limits.max_connections or count >= limits.max_connections_per_peer:
            sock.close()  # before the handshake there is no way to say why
            return
        sock.setblocking(False)
        self._per_peer[address] = count + 1
        task = self._state.plane.tasks.spawn(self._shake(sock, limits.header_timeout), name="handshake")
        self._shaking.add(task)
        task.add_done_callback(lambda ended: self._shaken(ended, address))

    async def _shake(self, sock: socket.socket, seconds: float) -> None:
        with contextlib.suppress(OSError):  # includes TLS errors and the deadline
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,  # type: ignore[type-var]  # a protocol by its methods
                sock,
                ssl=self._context,
                ssl_handshake_timeout=seconds,
            )

    def _shaken(self, task: asyncio.Task[None], address: str) -> None:
        self._shaking.discard(task)
        left = self._per_peer[address] - 1
        if left:
            self._per_peer[address] = left
        else:
            del self._per_peer[address]
