"""A machine's data port on a real loop: what passes, what is answered without a sidecar, certificates that change while it listens."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.joined.listener import Listener
from gateway.core.joining import host_of
from tests.unit.gateway.app.joined.test_authority import SECRETS, Machine, authorities, client
from tests.unit.gateway.transport.conftest import short_folder
from tests.waiting import reached

__all__ = ["short_folder"]


class Port:
    """A listener of `gpu-1` with an engine `chat`, and a sidecar that says what it hears twice, then closes at `end`."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.issuer, self.socket, self.up = authorities(folder / "a"), short / "s.sock", True
        self.machine = Machine(folder / "m", "gpu-1", self.issuer)
        self.listener = Listener("gpu-1", ("chat",), lambda engine: self.place if self.up else None)
        self.listener.present(self.machine.certificate, self.machine.key, self.issuer.gateways)
        self.heard, self.on_port = 0, False

    async def start(self) -> None:
        self._sidecar = await asyncio.start_unix_server(self._serve, self.socket)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = await self.listener.start("127.0.0.1", 0)

    @property
    def place(self) -> str:
        """Where the engine is served: by its sidecar, or by the server that this has started."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}" if self.on_port else f"unix:{self.socket}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        while data := await reader.read(65536):
            writer.write(data * 2)
            await writer.drain()
            if data.endswith(b"end"):
                break
        writer.close()
        self.heard -= 1

    async def ask(self, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
        """Everything that comes back until the connection ends. Raises OSError."""
        host = host_of("gpu-1", "chat")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context or client(self.issuer), server_hostname=host)
        writer.write(data)
        found = await reader.read()
        writer.close()
        return found

    async def aclose(self) -> None:
        await self.listener.aclose()
        self._sidecar.close()
        self._server.close()


@pytest.fixture
async def port(tmp_path: Path, short_folder: Path) -> AsyncIterator[Port]:
    made = Port(tmp_path, short_folder)
    await made.start()
    yield made
    await made.aclose()


@pytest.mark.parametrize("on_port", [False, True])
async def test_bytes_pass_both_ways_whole_and_a_sidecar_that_closes_closes_the_connection(port: Port, on_port: bool) -> None:
    port.on_port = on_port
    data = bytes(range(256)) * 4096 + b"end"
    answered = await port.ask(data)
    assert len(answered) == 2 * len(data)
    await reached(lambda: port.listener.connections == 0, what="the end of the connection")


async def test_a_gateway_that_closes_ends_what_the_sidecar_does(port: Port) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=client(port.issuer), server_hostname=host_of("gpu-1", "chat"))
    writer.write(b"x")
    await reached(lambda: port.heard == 1, what="the connection at the sidecar")
    writer.transport.abort()
    await reached(lambda: port.heard == 0 and port.listener.connections == 0, what="its end")


@pytest.mark.parametrize("known", [False, True])
async def test_without_a_sidecar_a_request_gets_no_byte_and_so_is_tried_elsewhere(port: Port, known: bool) -> None:
    """known: whether the supervisor knows already that the sidecar has gone, or its socket just refuses."""
    port.up, port.socket = not known, port.socket.with_name("none.sock")
    answered = b""
    with contextlib.suppress(OSError):
        answered = await port.ask(b"GET / HTTP/1.1\r\n\r\n")
    assert answered == b""
    await reached(lambda: port.listener.connections == 0, what="the end of the connection")


async def test_a_new_certificate_counts_for_new_connections(port: Port, tmp_path: Path) -> None:
    before = (tmp_path / "m" / "certificate.pem").read_bytes()
    other = Machine(tmp_path / "n", "gpu-1", port.issuer)
    port.listener.present(other.certificate, other.key, port.issuer.gateways)
    host = host_of("gpu-1", "chat")
    _, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=client(port.issuer), server_hostname=host)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert ssl.DER_cert_to_PEM_cert(found).encode() == other.certificate.read_bytes() != before


async def test_nobody_else_reaches_the_sidecar(port: Port, tmp_path: Path) -> None:
    foreign = authorities(tmp_path / "f", (SECRETS[0], b"other" * 6 + b"xx"))
    for context in (client(foreign), ssl.create_default_context(cafile=port.issuer.tls.ca)):
        try:
            assert await port.ask(b"xend", context) == b""
        except OSError:
            pass  # the refusal came before the first read
    assert port.heard == 0
