"""Accepts the connections of a listener that asks for something before HTTP: the PROXY protocol's header, a TLS handshake. The event loop's
own server allows a minute for a handshake and any number of them at once, so that silent connections could use up all descriptors; here
they have the deadline of a request's head and are bounded.

A connection of a trusted proxy counts for nobody until its header says whose it is, and for that client from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from gateway.core.specs import ListenSpec
from gateway.core.types import Peer
from gateway.pipeline.plane import DataPlane
from gateway.server.entrance import Entrance, EntranceOf
from gateway.server.peers import is_trusted, let_in, plain
from gateway.server.preamble import read_header
from gateway.server.proxy_protocol import BadHeader, Header
from gateway.server.reading import NEVER
from gateway.server.tls import Contexts
from gateway.telemetry.refused import HEADER, NETWORK

log = logging.getLogger("gatehouse.server")

AT_ONCE: Final = 64
"""Connections accepted in one turn of the event loop."""
PAUSE_SECONDS: Final = 0.2
"""How long to wait before accepting again after the system refused a descriptor."""
MOST_HANDSHAKE_SECONDS: Final = 300.0
"""The event loop's own deadline, which it enforces before it reads: ours is enforced by a sweep, which knows of pauses."""
REST_SECONDS: Final = 1.0
"""How long the last connections of a listener without TLS may take to become one."""


class Acceptor:
    """A server to uvicorn: listens from `start` to `close`. Connections that are arriving are bounded like those that are made.

    contexts: a handshake gets the one that is current when it begins; None: no TLS. plane: the settings in force, and the owner of what is
    arriving. make: the protocol of a connection of which its proxy has said this.
    """

    def __init__(
        self,
        sock: socket.socket,
        contexts: Contexts | None,
        plane: DataPlane,
        entrance: EntranceOf,
        make: Callable[[Header | None], asyncio.Protocol],
    ) -> None:
        self._sock, self._contexts, self._plane, self._entrance, self._make = sock, contexts, plane, entrance, make
        self._per_peer: dict[str, int] = {}
        self._arriving: dict[asyncio.Task[None], float] = {}
        """When the handshake of each connection must be over (NEVER before it begins)."""
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Needs a running loop."""
        self._plane.listeners.append(self._sweep)
        self._listen()

    def _listen(self) -> None:
        self._resume = None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    @property
    def arriving(self) -> int:
        """How many are not made yet."""
        return len(self._arriving)

    def stop(self) -> None:
        """Stops accepting; those that are arriving go on. The caller closes the socket."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def close(self) -> None:
        """Stops accepting and ends those that are arriving; established connections go on."""
        self.stop()
        for task in self._arriving:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits for those that `close` ended."""
        if self._arriving:
            await asyncio.wait(self._arriving)
        if self._sweep in self._plane.listeners:
            self._plane.listeners.remove(self._sweep)

    async def rest(self) -> int:
        """Takes the connections that wait in the socket's queue; returns how many. With TLS none: a client before its handshake has
        sent no request yet, so nothing of it is lost."""
        if self._contexts is not None:
            return 0
        while self._accept() == AT_ONCE:
            pass
        count = len(self._arriving)
        if self._arriving:
            await asyncio.wait(self._arriving, timeout=REST_SECONDS)
        return count

    def _sweep(self) -> None:
        """Ends the handshakes that are past their deadline."""
        if self._arriving and not self._plane.resting:
            now = self._plane.now
            for task in [task for task, due in self._arriving.items() if due <= now]:
                task.cancel()

    def _accept(self) -> int:
        for number in range(AT_ONCE):
            try:
                sock, name = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return number
            except OSError as error:  # no descriptor or no memory: the connection waits in the kernel's queue
                log.warning("cannot accept connections: %s", error.strerror)
                if self._closed:
                    return number
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock.fileno())
                self._resume = loop.call_later(PAUSE_SECONDS, self._listen)
                return number
            self._admit(sock, plain(name[0]))
        return AT_ONCE

    def _admit(self, sock: socket.socket, address: str) -> None:
        snapshot = self._plane.current()
        limits, entrance = snapshot.spec.listen, self._entrance(snapshot)
        if not self._let_in(entrance, address):
            sock.close()
            return
        proxied = entrance.proxy_protocol != "off" and is_trusted(address, entrance.trusted)
        if len(self._arriving) >= limits.max_connections or not (proxied or self._room(address, limits)):
            sock.close()  # before the handshake there is no way to say why
            return
        sock.setblocking(False)
        if proxied:
            task = self._plane.tasks.spawn(self._proxied(sock, address, limits, entrance), name="header")
        else:
            self._enter(address)
            task = self._plane.tasks.spawn(self._connect(sock, None, limits.header_timeout), name="handshake")
            task.add_done_callback(lambda _: self._leave(address))
        self._arriving[task] = NEVER
        task.add_done_callback(self._arriving.pop)

    def _let_in(self, entrance: Entrance, address: str) -> bool:
        rules = entrance.rules
        if rules is None or let_in(rules, Peer(address, is_trusted(address, entrance.trusted))):
            return True
        self._plane.refused.count(entrance.name, NETWORK, address)
        return False

    def _room(self, address: str, limits: ListenSpec) -> bool:
        return self._per_peer.get(address, 0) < limits.max_connections_per_peer

    def _enter(self, address: str) -> None:
        self._per_peer[address] = self._per_peer.get(address, 0) + 1

    def _leave(self, address: str) -> None:
        left = self._per_peer[address] - 1
        if left:
            self._per_peer[address] = left
        else:
            del self._per_peer[address]

    async def _proxied(self, sock: socket.socket, address: str, limits: ListenSpec, entrance: Entrance) -> None:
        """A trusted proxy's connection: for nobody until its header has come."""
        try:
            said = await read_header(sock, limits.header_timeout, required=entrance.proxy_protocol == "required")
        except (BadHeader, OSError) as error:
            sock.close()
            self._plane.refused.count(entrance.name, HEADER, address)
            log.debug("a connection of the proxy %s is closed: %s", address, error)
            return
        except BaseException:
            sock.close()
            raise
        if said is not None and said.address is not None:
            address = plain(said.address)
            if not self._let_in(entrance, address) or not self._room(address, limits):
                sock.close()
                return
        self._enter(address)
        try:
            await self._connect(sock, said, limits.header_timeout)
        finally:
            self._leave(address)

    async def _connect(self, sock: socket.socket, said: Header | None, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # includes TLS errors and the deadline
            if self._contexts is None:
                await loop.connect_accepted_socket(lambda: self._make(said), sock)
            else:
                context, arriving = self._contexts.current, asyncio.current_task()
                if arriving in self._arriving:
                    self._arriving[arriving] = self._plane.now + seconds
                make, most = lambda: self._make(said), max(seconds, MOST_HANDSHAKE_SECONDS)
                await loop.connect_accepted_socket(make, sock, ssl=context, ssl_handshake_timeout=most)
