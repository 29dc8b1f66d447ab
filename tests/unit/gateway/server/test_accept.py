"""The TLS listener: connections that never finish their handshake are bounded in number and in time, and hold nobody else up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.specs import TlsSpec
from gateway.server import accept
from gateway.server.listener import bind, data_server
from gateway.server.protocol import ListenerState
from gateway.server.tls import Contexts, context_of, read
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import World
from tests.unit.gateway.server.wires import Application
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import reached


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


class Listener:
    """A TLS listener on a free port, with `silent` connections to it."""

    def __init__(self, certificates: Certificates, **listen: Any) -> None:
        self.world = World(**listen)
        self.world.plane.now = time.monotonic()  # as its sweep has it, also on a machine that has just been started
        self.application = Application()
        self.application.at_once = True
        self.state = ListenerState(self.world.plane, self.application, is_inference)
        self.sock = bind("127.0.0.1:0", "listen.data")
        self.contexts = Contexts(context_of(read(TlsSpec(cert=certificates.server, key=certificates.server_key), "listen.tls")))
        self.server = data_server(self.state, self.contexts, 1.0)
        self.context = ssl.create_default_context(cafile=certificates.ca)
        self.silent: list[socket.socket] = []

    @property
    def acceptor(self) -> Any:
        return self.server.servers[0]

    @property
    def shaking(self) -> int:
        return len(self.acceptor._arriving)

    def swept(self) -> bool:
        """Enforces deadlines; whether nobody is left."""
        self.world.plane.sweep()
        return self.shaking == 0

    def connect(self, count: int) -> None:
        self.silent += [socket.create_connection(self.sock.getsockname()) for _ in range(count)]

    async def ask(self) -> bytes:
        reader, writer = await asyncio.open_connection(*self.sock.getsockname(), ssl=self.context)
        writer.write(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(certificates: Certificates, **listen: Any) -> AsyncIterator[Listener]:
    listener = Listener(certificates, **listen)
    running = asyncio.create_task(listener.server.serve(sockets=[listener.sock]))
    await reached(lambda: listener.server.started)
    try:
        yield listener
    finally:
        listener.server.end()
        await running
        for sock in listener.silent:
            sock.close()
        await reached(lambda: listener.shaking == 0 and not listener.state.connections)
        await listener.world.plane.tasks.aclose()


async def test_a_handshake_has_the_deadline_of_a_head(certificates: Certificates) -> None:
    async with listening(certificates, header_timeout=1.0) as listener:
        listener.connect(3)
        await reached(lambda: listener.shaking == 3)
        await reached(listener.swept)
        for sock in listener.silent:
            sock.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(sock.recv, 1) == b""


async def test_a_pause_of_the_process_ends_no_handshake(certificates: Certificates) -> None:
    async with listening(certificates) as listener:
        listener.connect(1)
        await reached(lambda: listener.shaking == 1)
        plane = listener.world.plane
        (task,) = listener.acceptor._arriving
        listener.acceptor._arriving[task] = plane.now
        plane.resting = True
        listener.acceptor._sweep()
        assert not task.cancelling()
        plane.resting = False
        listener.acceptor._sweep()
        assert task.cancelling()


async def test_handshakes_of_one_peer_are_bounded_and_hold_nobody_up(certificates: Certificates) -> None:
    async with listening(certificates, max_connections_per_peer=4) as listener:
        listener.connect(3)
        await reached(lambda: listener.shaking == 3)
        assert await listener.ask() == b"</x>"
        await reached(lambda: listener.shaking == 3)
        listener.connect(1)
        await reached(lambda: listener.shaking == 4)
        with pytest.raises((ssl.SSLError, OSError)):
            await listener.ask()
        assert listener.shaking == 4
        listener.silent.pop().close()
        await reached(lambda: listener.shaking == 3)
        assert await listener.ask() == b"</x>"


async def test_the_end_of_the_listener_ends_the_handshakes(certificates: Certificates) -> None:
    async with listening(certificates) as listener:
        listener.connect(2)
        await reached(lambda: listener.shaking == 2)


async def test_a_handshake_that_is_none_costs_nothing(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(certificates) as listener:
        listener.connect(2)
        listener.silent[0].sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        listener.silent.pop(1).close()
        await reached(lambda: listener.shaking == 0)
        assert await listener.ask() == b"</x>"
    assert not caplog.records


async def test_a_system_without_descriptors_is_asked_again(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept, "PAUSE_SECONDS", 0.01)

    def refuse() -> None:
        acceptor._sock = listener.sock
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with listening(certificates) as listener:
        acceptor = listener.acceptor
        acceptor._sock = SimpleNamespace(accept=refuse, fileno=listener.sock.fileno)
        assert await listener.ask() == b"</x>"
    assert [record.message for record in caplog.records] == ["cannot accept connections: Too many open files"]
