"""Where a replica gives its model files to the others: HTTP/1.1 over TLS, to those who have a certificate of a replica.

    GET /v1/models/DIGEST/NUMBER?offset=K   -> at most PIECE bytes of that file of the model, from K on

A model is named by its content, so what is served is what was announced, or 404: also while it is replaced or deleted.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

from gateway.app.joined.small_server import small_server
from gateway.app.shared_models.credentials import Credentials
from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.modelfiles import MAX_UPLOAD
from gateway.core.modelshare import PIECE, LocalModel
from gateway.core.tasks import TaskOwner
from gateway.server.listener import bind

Scope = dict[str, Any]
_FILE: Final = re.compile(r"/v1/models/([0-9a-f]{64})/([0-9]{1,4})")
CONNECTIONS: Final = 64
END_SECONDS: Final = 2.0


class Offering:
    """models: those of this machine. Life: `start`, `aclose`."""

    def __init__(self, credentials: Credentials, models: Callable[[], Awaitable[list[LocalModel]]]) -> None:
        self._models = models
        self._owner = TaskOwner("offered models")
        self._listening: socket.socket | None = None
        self._server = small_server(self._application, connections=CONNECTIONS, keep_alive=60, graceful=1, tls=credentials.context)

    def start(self, listen: str) -> int:
        """Listens, and returns the port. Raises ConfigError."""
        listening = bind(listen, "model_sharing.listen")
        self._listening = listening
        self._owner.spawn(self._server.serve(sockets=[listening]), name="listener")
        return int(listening.getsockname()[1])

    async def aclose(self) -> None:
        self._server.end()
        self._server.force_exit = True
        await self._owner.finish(END_SECONDS)  # the server takes its socket out of the loop before that is closed
        if self._listening is not None:
            self._listening.close()

    async def _application(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        kind = b"application/octet-stream"
        try:
            status, body = 200, await self._answer(scope)
        except GatehouseError as error:
            status, body, kind = error.status, error.body(), b"application/json"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> bytes:
        """Raises GatehouseError."""
        wanted = _FILE.fullmatch(scope["path"])
        if wanted is None or scope["method"] != "GET":
            raise NotFound("There is no such path.")
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=4)
        offset = query.get("offset", ["0"])[-1]
        if not (offset.isascii() and offset.isdigit() and len(offset) < 16 and int(offset) <= MAX_UPLOAD):
            raise RequestError("offset is not a number of bytes.", code="invalid_value")
        for model in await self._models():
            if model.digest == wanted[1] and int(wanted[2]) < len(model.paths):
                path, stamp = model.paths[int(wanted[2])]
                return await asyncio.to_thread(_piece, path, stamp, int(offset))
        raise NotFound("This replica does not have it (any more).")


def _piece(path: str, stamp: tuple[int, int, int], offset: int) -> bytes:
    """Bytes of a file that is as it was when its checksum was computed. Raises NotFound."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise NotFound("This replica does not have it (any more).") from None
    try:
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns, status.st_ino) != stamp:
            raise NotFound("The file has changed here.")
        return os.pread(descriptor, PIECE, offset)
    except OSError as error:
        raise GatehouseError(f"The disk refused: {error.strerror}.", code="storage_failed") from None
    finally:
        os.close(descriptor)
