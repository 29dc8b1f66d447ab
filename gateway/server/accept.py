"""Accepts the connections of a TLS listener. The event loop's own server gives each a minute for its handshake and counts none of them, so
that silent connections would cost descriptors without a bound; here they have the deadline of a request's head and bounds of their own.
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
"""Connections that are accepted before others of the event loop have their turn."""
PAUSE_SECONDS: Final = 0.2
"""How long nothing is accepted after the system refused another descriptor."""


class TlsAcceptor:
    """What uvicorn knows as a server: listens from `start` to `close`. Connections in their handshake are bounded like those after it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, state: ListenerState, make: Callable[[], Connection]) -> None:
        self._sock, self._context, self._state, self._make = sock, context, state, make
        self._per_peer: dict[str, int] = {}
        self._shaking: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Needs the running loop."""
        self._resume = None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Accepts no more and ends the handshakes under way; connections after theirs go on. The socket stays the caller's."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
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
                log.warning("no connection can be accepted: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock.fileno())
                self._resume = loop.call_later(PAUSE_SECONDS, self.start)
                return
            self._admit(sock, plain(name[0]))

    def _admit(self, sock: socket.socket, address: str) -> None:
        limits = self._state.plane.current().spec.listen
        count = self._per_peer.get(address, 0)
        if len(self._shaking) >= limits.max_connections or count >= limits.max_connections_per_peer:
            sock.close()  # there is no way to say why before the handshake
            return
        sock.setblocking(False)
        self._per_peer[address] = count + 1
        task = self._state.plane.tasks.spawn(self._shake(sock, limits.header_timeout), name="handshake")
        self._shaking.add(task)
        task.add_done_callback(lambda ended: self._shaken(ended, address))

    async def _shake(self, sock: socket.socket, seconds: float) -> None:
        with contextlib.suppress(OSError):  # TLS errors are such, and so is the end of the deadline
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
