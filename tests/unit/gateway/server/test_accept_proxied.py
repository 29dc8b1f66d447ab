"""Connections of trusted proxies, which send the PROXY protocol's header first: whose they are, and whose bounds they count against."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.specs import TlsSpec
from gateway.server.listener import bind, data_server
from gateway.server.protocol import ListenerState
from gateway.server.tls import Contexts, context_of, read
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import World
from tests.unit.gateway.server.test_proxy_protocol import BAD, FOUR, GOOD, SIX
from tests.unit.gateway.server.wires import Application
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import reached

PROXY = ("127.0.0.0/8",)
REQUEST = b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
ANSWER = b"</x>"


class Listener:
    """A data listener on a free port."""

    def __init__(self, certificates: Certificates | None, **listen: Any) -> None:
        self.world = World(**{"trusted_peers": PROXY, "proxy_protocol": "required", **listen})
        self.application = Application()
        self.application.at_once = True
        self.state = ListenerState(self.world.plane, self.application, is_inference)
        self.sock = bind("127.0.0.1:0", "listen.data")
        contexts = None
        if certificates is not None:
            contexts = Contexts(context_of(read(TlsSpec(cert=certificates.server, key=certificates.server_key), "listen.tls")))
        self.server = data_server(self.state, contexts, 1.0)
        self.open: list[socket.socket] = []

    @property
    def arriving(self) -> int:
        return self.server.arriving

    def connect(self, data: bytes) -> socket.socket:
        """A connection that sends this and waits."""
        sock = socket.create_connection(self.sock.getsockname())
        self.open.append(sock)
        sock.sendall(data)
        return sock

    async def ask(self, data: bytes) -> bytes:
        """Everything that comes back until the connection ends."""
        sock = self.connect(data)
        sock.settimeout(30)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.to_thread(sock.recv, 65536):
                answer += part
        return answer


@contextlib.asynccontextmanager
async def listening(certificates: Certificates | None = None, **listen: Any) -> AsyncIterator[Listener]:
    listener = Listener(certificates, **listen)
    running = asyncio.create_task(listener.server.serve(sockets=[listener.sock]))
    await reached(lambda: listener.server.started)
    try:
        yield listener
    finally:
        for sock in listener.open:
            sock.close()
        listener.server.end()
        await running
        await reached(lambda: listener.arriving == 0 and not listener.state.connections)
        await listener.world.plane.tasks.aclose()


def client(listener: Listener) -> tuple[str, bool]:
    """Who the last connection was from, and whether it is trusted."""
    (connection,) = listener.state.connections
    return connection.peer.address, connection.peer.trusted


@pytest.mark.parametrize(("data", "address", "own"), GOOD, ids=range(len(GOOD)))
async def test_the_client_is_the_one_that_the_header_names(data: bytes, address: str | None, own: bool) -> None:
    async with listening() as listener:
        listener.connect(data)
        await reached(lambda: len(listener.state.connections) == 1)
        shown = "203.0.113.7" if address == "::ffff:203.0.113.7" or address == "::ffff:cb00:7107" else address
        assert client(listener) == (shown or "127.0.0.1", own)
        listener.open.pop().close()
        await reached(lambda: not listener.state.connections)
        assert await listener.ask(data + REQUEST) == ANSWER


async def test_a_client_that_is_a_proxy_too_is_trusted() -> None:
    async with listening(trusted_peers=(*PROXY, "203.0.113.0/24")) as listener:
        listener.connect(FOUR)
        await reached(lambda: len(listener.state.connections) == 1)
        assert client(listener) == ("203.0.113.7", True)


@pytest.mark.parametrize("data", [REQUEST, b"\x16\x03\x01" + b"x" * 40, *BAD[:4]], ids=range(6))
async def test_where_one_is_required_a_connection_without_is_closed_without_an_answer(data: bytes) -> None:
    async with listening() as listener:
        assert await listener.ask(data) == b""


async def test_where_one_is_optional_a_request_may_come_without() -> None:
    async with listening(proxy_protocol="optional") as listener:
        assert await listener.ask(REQUEST) == ANSWER
        assert await listener.ask(FOUR + REQUEST) == ANSWER
        assert await listener.ask(BAD[0] + REQUEST) == b""


@pytest.mark.parametrize("header", [b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443\r\n", FOUR, SIX])
@pytest.mark.parametrize("mode", ["off", "optional", "required"])
async def test_others_are_never_believed(mode: str, header: bytes) -> None:
    async with listening(trusted_peers=("192.0.2.9",), proxy_protocol=mode) as listener:
        assert await listener.ask(REQUEST) == ANSWER
        assert b"400 Bad Request" in await listener.ask(header + REQUEST)


async def test_a_second_header_is_no_request() -> None:
    async with listening() as listener:
        for second in (FOUR, b"PROXY TCP4 198.51.100.1 192.0.2.2 4711 443\r\n"):
            assert b"400 Bad Request" in await listener.ask(FOUR + second + REQUEST)


async def test_connections_count_for_the_client_and_the_proxy_is_not_held_to_its_share() -> None:
    async with listening(max_connections_per_peer=3) as listener:
        for number in range(40):
            listener.connect(b"PROXY TCP4 203.0.113.%d 192.0.2.2 1 2\r\n" % number)
        await reached(lambda: len(listener.state.connections) == 40)
        assert set(listener.state.per_peer.values()) == {1} and "127.0.0.1" not in listener.state.per_peer
        for _ in range(3):
            listener.connect(b"PROXY TCP4 198.51.100.1 192.0.2.2 1 2\r\n")
        await reached(lambda: listener.state.per_peer.get("198.51.100.1") == 3)
        assert b"503 Service Unavailable" in await listener.ask(b"PROXY TCP4 198.51.100.1 192.0.2.2 1 2\r\n" + REQUEST)
        assert await listener.ask(b"PROXY TCP4 198.51.100.2 192.0.2.2 1 2\r\n" + REQUEST) == ANSWER


async def test_headers_that_are_awaited_count_for_nobody_and_have_a_deadline() -> None:
    async with listening(max_connections_per_peer=2, header_timeout=2.0) as listener:
        slow = [listener.connect(b"PROXY TCP4 203.0.") for _ in range(20)]
        await reached(lambda: listener.arriving == 20)
        assert await listener.ask(FOUR + REQUEST) == ANSWER
        await reached(lambda: listener.arriving == 0)
        for sock in slow:
            sock.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(sock.recv, 1) == b""


async def test_all_that_arrive_are_bounded_together() -> None:
    async with listening(max_connections=10) as listener:
        for _ in range(10):
            listener.connect(b"PROXY ")
        await reached(lambda: listener.arriving == 10)
        assert await listener.ask(FOUR + REQUEST) == b""
        listener.open[0].close()
        await reached(lambda: listener.arriving == 9)
        assert await listener.ask(FOUR + REQUEST) == ANSWER


async def test_the_header_comes_before_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.create_default_context(cafile=certificates.ca)
    async with listening(certificates) as listener:

        def ask(header: bytes) -> bytes:
            with socket.create_connection(listener.sock.getsockname(), timeout=30) as sock:
                sock.sendall(header)
                with context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
                    tls.sendall(REQUEST)
                    return tls.recv(100)

        for header in (FOUR, SIX, b"PROXY TCP4 203.0.113.7 192.0.2.2 1 2\r\n"):
            assert await asyncio.to_thread(ask, header) == ANSWER
        with pytest.raises(OSError):
            await asyncio.to_thread(ask, b"")


async def test_handshakes_behind_a_proxy_count_for_the_client(tmp_path: Path) -> None:
    async with listening(Certificates(tmp_path), max_connections_per_peer=2) as listener:
        for _ in range(2):
            listener.connect(FOUR)
        await reached(lambda: listener.server._acceptors[0]._per_peer == {"203.0.113.7": 2})  # type: ignore[attr-defined]
        assert await listener.ask(FOUR) == b""
        listener.connect(SIX)
        await reached(lambda: listener.arriving == 3)


async def test_the_last_connections_of_a_listener_that_leaves_are_served() -> None:
    async with listening() as listener:
        listener.server.stop_accepting()
        late = listener.connect(FOUR + REQUEST)
        assert await listener.server.accept_rest() == 1
        assert await asyncio.to_thread(late.recv, 100) == ANSWER


async def test_the_end_of_the_listener_ends_those_that_arrive() -> None:
    async with listening() as listener:
        listener.connect(b"PROXY ")
        await reached(lambda: listener.arriving == 1)
