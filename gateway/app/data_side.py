"""The data listener of one process, from the first connection to the last: the embedded gateway's or a worker's. With it the listener of
gRPC, where there is one."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import Any

from gateway.core.batches import WorkDesk
from gateway.core.errors import ConfigError
from gateway.core.specs import ListenSpec
from gateway.core.tickets import TicketDesk
from gateway.core.tokens import TokenDesk
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.ticketing import TicketBook
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.closing import LINGER_SECONDS
from gateway.server.health import Health
from gateway.server.leaving import LOOK_SECONDS, Leaving
from gateway.server.listener import data_server
from gateway.server.protocol import ListenerState
from gateway.server.tls import Contexts
from gateway.server.websocket import Sockets, WithSockets
from gateway.wire.table import is_inference

GRPC_MODULE = "gateway.server.grpc"
"""Loaded where the setting asks for it, because grpcio is an extra and weighs 20 MB."""
FORM_BYTES = 64 * 1024
"""The most bytes of an upload's form besides the file."""


class DataSide:
    """Life: `start`, `leave`, `aclose`. listen: the settings at the start of the process. tls: what its connections get, or None for plain
    HTTP. grpc: the address of that listener, once it has started; "" without one."""

    grpc = ""

    def __init__(
        self,
        plane: DataPlane,
        health: Health,
        listen: ListenSpec,
        leaving: Leaving,
        tls: Contexts | None,
        tokens: TokenDesk | None = None,
        work: WorkDesk | None = None,
        tickets: tuple[TicketBook, TicketDesk] | None = None,
    ) -> None:
        self._book = None if tickets is None else tickets[0]
        self._plane, self._leaving = plane, leaving
        if work is not None:
            plane.upload_bytes, plane.upload_seconds = work.max_bytes + FORM_BYTES, work.upload_seconds
        application = WithSockets(AsgiApplication(DataApplication(plane, health, tokens, work, tickets)))
        self.state = ListenerState(plane, application, is_inference)
        sockets = application.sockets = Sockets(plane, self.state)
        plane.listeners += [self.state.sweep, sockets.sweep]
        self._server = data_server(self.state, tls, listen.drain_timeout)
        self._running: asyncio.Task[None] | None = None
        self._address = listen.grpc
        self._grpc: Any = None
        if listen.grpc is not None:
            self._grpc = grpc_listener()(plane, health, listen, tls)

    async def start(self, sock: socket.socket) -> None:
        """Accepts connections on a listening socket, which it closes at the end. Raises ConfigError where gRPC cannot listen."""
        if self._grpc is not None:
            port = await self._grpc.start(self._address)
            self.grpc = f"{str(self._address).rpartition(':')[0]}:{port}"
        self._running = self._plane.tasks.spawn(self._server.serve(sockets=[sock]), name="data listener")

    async def retire(self) -> None:
        """Other processes accept on the same socket from now on. Returns when every connection has ended after its last answer."""
        calls: asyncio.Task[None] | None = None
        if self._grpc is not None:
            calls = self._plane.tasks.spawn(self._grpc.leave(self._plane.current().spec.listen.request_timeout), name="retire gRPC")
        await self._leaving.retire(self._server, self.state)
        while calls is not None and not calls.done() and not self._leaving.asked.is_set():
            await asyncio.sleep(LOOK_SECONDS)

    async def leave(self, delay: float) -> None:
        """Returns when nothing is under way any more (gateway.server.leaving). delay: seconds for which it goes on serving first."""
        listen = self._plane.current().spec.listen  # a reload may have changed it
        self._server.config.timeout_graceful_shutdown = int(listen.drain_timeout + LINGER_SECONDS) + 1
        if self._grpc is not None:
            self._plane.tasks.spawn(self._leave_grpc(listen.drain_timeout), name="leave gRPC")
        await self._leaving.leave(self._server, self.state, delay=delay, timeout=listen.drain_timeout)
        if self._book is not None:
            await self._book.aclose(0.0 if self._leaving.hurried else listen.drain_timeout)

    async def _leave_grpc(self, timeout: float) -> None:
        """Together with the other listener, after its delay."""
        await self._server.ending()
        await self._grpc.leave(timeout)

    async def aclose(self) -> None:
        """Closes what is left."""
        self._server.end()
        self._server.force_exit = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=5.0)
        if self._grpc is not None:
            await self._grpc.leave(0.0)


def grpc_listener() -> Any:
    """The class of the listener. Raises ConfigError where grpcio is not installed: nothing loads it but this setting."""
    try:
        return import_module(GRPC_MODULE).GrpcListener
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise ConfigError("needs the extra grpc, which this installation lacks", path="listen.grpc") from None
