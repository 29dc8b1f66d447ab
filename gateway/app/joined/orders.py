"""Takes the orders of gateways at a machine: HTTP/1.1 on a Unix socket behind the port for gateways, which admits nobody else."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs

import msgspec

from gateway.app.joined.placed import PlacedEngines
from gateway.app.joined.received import ReceivedFiles
from gateway.app.joined.small_server import Scope, TimedConnection, answer, small_server
from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.joining import EngineLabel
from gateway.core.placing import MAX_FILE, MAX_ORDER, Order
from gateway.core.tasks import TaskOwner

_FILE: Final = re.compile(r"/v1/files/([0-9a-f]{64})")
_ENGINE: Final = "/v1/engines/"
CONNECTIONS: Final = 64
END_SECONDS: Final = 2.0


class _FromListener(TimedConnection):
    """A connection of this very process, which is its listener's: a sidecar that runs as the same user has no business here."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        super().connection_made(transport)
        if struct.unpack("3i", peer)[0] != os.getpid():
            transport.abort()


class Orders:
    """place: of its socket, in a folder that nobody else can enter. Life: `start`, `aclose`."""

    def __init__(self, place: Path, files: ReceivedFiles, engines: PlacedEngines) -> None:
        self._place, self._files, self._engines = place, files, engines
        self._owner = TaskOwner("orders")
        self._listening: socket.socket | None = None
        self._order = msgspec.json.Decoder(Order)
        self._server = small_server(self._application, connections=CONNECTIONS, keep_alive=60, graceful=1, connection=_FromListener)

    def start(self) -> None:
        """Raises OSError."""
        self._place.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listening.bind(str(self._place))
        finally:
            os.umask(before)
        listening.listen(CONNECTIONS)
        listening.setblocking(False)
        self._listening = listening
        self._owner.spawn(self._server.serve(sockets=[listening]), name="listener")

    async def aclose(self) -> None:
        self._server.end()
        self._server.force_exit = True
        await self._owner.finish(END_SECONDS)  # the server takes its socket out of the loop before that is closed
        if self._listening is not None:
            self._listening.close()
        self._place.unlink(missing_ok=True)

    async def _application(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            status, body = await self._answer(scope, receive)
        except GatehouseError as error:
            status, body = error.status, error.body()
        await answer(send, status, body)

    async def _answer(self, scope: Scope, receive: Any) -> tuple[int, bytes]:
        """Raises GatehouseError."""
        method, path = scope["method"], scope["path"]
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8).items()}
        if (file := _FILE.fullmatch(path)) is not None and method in ("GET", "PUT"):
            size = _number(query, "size", MAX_FILE)
            if method == "GET":
                return 200, msgspec.json.encode(self._files.state(file[1], size))
            taken = await self._files.append(file[1], size, _number(query, "offset", MAX_FILE), _parts(receive))
            return 200, msgspec.json.encode(taken)
        if path.startswith(_ENGINE) and method in ("PUT", "DELETE"):
            engine = _engine(path.removeprefix(_ENGINE))
            if method == "PUT":
                self._engines.put(engine, self._read(await _body(receive)))
            else:
                self._engines.remove(engine, _number(query, "fence", 2**62))
            return 202, b"{}"
        raise NotFound("There is no such path.")

    def _read(self, body: bytes) -> Order:
        try:
            return self._order.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _wrong(f"The order cannot be read: {error}")


def _engine(text: str) -> str:
    try:
        found: str = msgspec.convert(text, EngineLabel)
    except msgspec.ValidationError:
        _wrong("This is not the name of an engine.")
    return found


def _number(query: dict[str, str], name: str, most: int) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > most:
        _wrong(f"{name} is not a number up to {most}.")
    return int(text)


def _wrong(message: str) -> NoReturn:
    raise RequestError(message, code="invalid_value")


async def _parts(receive: Any) -> AsyncIterator[bytes]:
    """Ends with the body, or with the connection: what came counts, whoever sends the rest."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if data := message.get("body", b""):
            yield data
        if not message.get("more_body"):
            return


async def _body(receive: Any) -> bytes:
    data = bytearray()
    async for part in _parts(receive):
        data += part
        if len(data) > MAX_ORDER:
            raise RequestError(f"The order is larger than {MAX_ORDER} bytes.", code="request_too_large", status=413)
    return bytes(data)
