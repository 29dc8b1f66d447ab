"""The data port of a joined machine: TLS towards gateways alone, and behind it the sidecars, and the servers that some of them start.

A connection is for one engine, which the gateway names in the handshake (SNI, RFC 6066); its bytes are passed on as they are. So what a
gateway does with a connection (streams, cancellation by closing, a fresh one for a retry) is what it does with a sidecar of its own.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.core.joining import host_of
from gateway.core.placing import orders_host_of
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.machine")
HANDSHAKE_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 2.0
UNIX: Final = "unix:"
CHUNK: Final = 64 * 1024
MAX_CONNECTIONS: Final = 4096


class Listener:
    """name: of the machine. place: (engine) -> where it is served, `unix:PATH` or `http://HOST:PORT`; None while it is not. orders: the
    socket of what takes gateways' orders; None: nothing does. Life: `start`, `aclose`."""

    def __init__(self, name: str, engines: Iterable[str], place: Callable[[str], str | None], orders: Path | None = None) -> None:
        self._name, self._orders = name, None if orders is None else f"{UNIX}{orders}"
        self._engines = {host_of(name, engine): engine for engine in engines}
        self._place = place
        self._owner = TaskOwner("machine")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.num_tickets = 0  # a resumed session would outlive the authority that admitted it
        self._context.set_alpn_protocols(["http/1.1"])
        self._context.sni_callback = self._named
        self._server: asyncio.Server | None = None
        self._gateways = ""
        self.connections = 0

    def present(self, certificate: Path, key: Path, gateways: str) -> None:
        """Uses this certificate for new connections, and admits those of this authority (PEM) too. Raises OSError, ssl.SSLError."""
        self._context.load_cert_chain(certificate, key)
        if gateways != self._gateways:
            self._context.load_verify_locations(cadata=gateways)
            self._gateways = gateways

    def name(self, engine: str, there: bool) -> None:
        """Connections may ask for this engine, or not any longer."""
        if there:
            self._engines[host_of(self._name, engine)] = engine
        else:
            self._engines.pop(host_of(self._name, engine), None)

    async def start(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._arrived, host, port, ssl=self._context, limit=CHUNK, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=1.0
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._owner.aclose()

    def _named(self, connection: Any, host: str | None, context: ssl.SSLContext) -> int | None:
        if self._orders is not None and host == orders_host_of(self._name):
            connection.orders = True
            return None
        if host is None or host not in self._engines:
            return ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.engine = self._engines[host]
        return None

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.connections >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self.connections += 1
        task = self._owner.spawn(self._serve(reader, writer), name="connection")
        task.add_done_callback(lambda done: self._left(writer))

    def _left(self, writer: asyncio.StreamWriter) -> None:
        self.connections -= 1
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        named = writer.get_extra_info("ssl_object")
        engine = getattr(named, "engine", None)
        place = self._orders if getattr(named, "orders", False) else None if engine is None else self._place(engine)
        try:
            if place is None:
                raise FileNotFoundError
            async with asyncio.timeout(CONNECT_SECONDS):
                inner, outer = await _connected(place)
        except (OSError, TimeoutError):
            return  # without a byte of an answer: the gateway asks another machine then, which it does not do after an answer of 503
        there = self._owner.spawn(_copy(reader, outer), name="to the sidecar")
        back = self._owner.spawn(_copy(inner, writer), name="from the sidecar")
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            if back.done() and not writer.is_closing():  # the last bytes of an answer, and the end of the connection
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the gateway has gone
        finally:
            there.cancel()
            back.cancel()
            outer.transport.abort()


async def _connected(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError."""
    if place.startswith(UNIX):
        return await asyncio.open_unix_connection(place.removeprefix(UNIX), limit=CHUNK)
    parts = urlsplit(place)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=CHUNK)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of them ends."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side of the connection closes with this one
