"""The data listener of one process, from the first connection to the last: the embedded gateway's or a worker's."""

from __future__ import annotations

import asyncio
import socket

from gateway.core.specs import ListenSpec
from gateway.core.tokens import TokenDesk
from gateway.pipeline.plane import DataPlane
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.closing import LINGER_SECONDS
from gateway.server.health import Health
from gateway.server.leaving import Leaving
from gateway.server.listener import data_server
from gateway.server.protocol import ListenerState
from gateway.server.tls import Contexts
from gateway.wire.table import is_inference


class DataSide:
    """Life: `start`, `leave`, `aclose`. listen: the settings at the start of the process. tls: what its connections get, or None for plain
    HTTP."""

    def __init__(
        self,
        plane: DataPlane,
        health: Health,
        listen: ListenSpec,
        leaving: Leaving,
        tls: Contexts | None,
        tokens: TokenDesk | None = None,
    ) -> None:
        self._plane, self._leaving = plane, leaving
        self.state = ListenerState(plane, AsgiApplication(DataApplication(plane, health, tokens)), is_inference)
        plane.listeners.append(self.state.sweep)
        self._server = data_server(self.state, tls, listen.drain_timeout)
        self._running: asyncio.Task[None] | None = None

    def start(self, sock: socket.socket) -> None:
        """Accepts connections on a listening socket, which it closes at the end."""
        self._running = self._plane.tasks.spawn(self._server.serve(sockets=[sock]), name="data listener")

    async def retire(self) -> None:
        """Other processes accept on the same socket from now on. Returns when every connection has ended after its last answer."""
        await self._leaving.retire(self._server, self.state)

    async def leave(self, delay: float) -> None:
        """Returns when nothing is under way any more (gateway.server.leaving). delay: seconds for which it goes on serving first."""
        listen = self._plane.current().spec.listen  # a reload may have changed it
        self._server.config.timeout_graceful_shutdown = int(listen.drain_timeout + LINGER_SECONDS) + 1
        await self._leaving.leave(self._server, self.state, delay=delay, timeout=listen.drain_timeout)

    async def aclose(self) -> None:
        """Closes what is left."""
        self._server.end()
        self._server.force_exit = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=5.0)
