"""The connection on real sockets: what the kernel does with answers that nobody reads, and with bytes that come too late."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.server.protocol import Connection, ListenerState
from gateway.server.states import OVER
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import CHAT, SSE_HEAD, STREAM_BODY, World, chunk
from tests.unit.gateway.server.wires import Application, post
from tests.waiting import reached

ANSWER = b"x" * (8 * 1024 * 1024)


class Site:
    """A listener on a free port."""

    def __init__(self, world: World) -> None:
        self.world, self.application = world, Application()
        self.state = ListenerState(world.plane, self.application, is_inference)
        self.address: Any = None

    @property
    def connection(self) -> Connection:
        (found,) = self.state.connections
        return found

    def client(self, receive_buffer: int = 4096) -> socket.socket:
        """A client whose kernel takes little that it does not read."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(self.address)
        return sock


@contextlib.asynccontextmanager
async def serving(**listen: Any) -> AsyncIterator[Site]:
    site = Site(World(**listen))
    state = SimpleNamespace(connections=set(), total_requests=0)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(site.state, state), "127.0.0.1", 0)  # type: ignore[type-var]
    site.address = server.sockets[0].getsockname()
    try:
        yield site
    finally:
        server.close()
        for connection in list(site.state.connections):
            connection.transport.abort()
        await reached(lambda: not site.state.connections)


def received(sock: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 20):
            parts.append(data)
    return b"".join(parts)


@pytest.mark.parametrize("late", [b"x", b"x" * 100_000])
async def test_bytes_that_come_after_the_last_request_do_not_destroy_its_answer(late: bytes) -> None:
    """Before, the connection was closed with the answer; the kernel met the late bytes with a reset, which threw away what was unread."""
    async with serving() as site:
        with site.client() as client:
            client.sendall(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            await reached(lambda: site.application.handlers)
            connection = site.connection
            connection.send(ANSWER)
            connection.finished(False)
            reading = asyncio.get_running_loop().run_in_executor(None, received, client)
            await reached(lambda: connection.reading == OVER and not connection.transport.get_write_buffer_size())
            with contextlib.suppress(ConnectionError):
                client.sendall(late)
            assert await reading == ANSWER


async def test_the_kernel_does_not_take_megabytes_that_the_client_does_not_read() -> None:
    async with serving() as site:
        with site.client() as client:
            client.sendall(post(CHAT, STREAM_BODY))
            await reached(lambda: site.world.engine.calls)
            call = site.world.call.head(SSE_HEAD)
            event = chunk("x" * 4000)
            sent = 0
            for _ in range(1000):
                if call.paused:
                    break
                call.body(event)
                sent += len(event)
                await asyncio.sleep(0)
            assert call.paused
            assert sent <= 512 * 1024
            call.cancel()


async def test_a_stream_whose_client_does_not_read_is_cut() -> None:
    async with serving() as site:
        with site.client() as client:
            client.sendall(post(CHAT, STREAM_BODY))
            await reached(lambda: site.world.engine.calls)
            call = site.world.call.head(SSE_HEAD)
            while not call.paused:
                call.body(chunk("x" * 4000))
                await asyncio.sleep(0)
            site.world.plane.now += 60.0
            site.state.sweep()
            assert call.cancelled
            await reached(lambda: not site.state.connections)
            assert site.world.outcome.code == "client_stalled"
