"""Reads a form with a file from a connection, as it arrives, for the pipeline (gateway.pipeline.uploading).

No more of it is read while the pipeline has not taken what has come. A client that sends less than LEAST bytes within `listen.body_timeout`
is cut off: it would hold a place at an engine.
"""

from __future__ import annotations

from typing import Final, Protocol

from gateway.core.errors import GatehouseError
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.uploading import Upload
from gateway.server.multipart import MultipartReader, Part, boundary_of
from gateway.server.reading import NEVER
from gateway.server.request import ParsedRequest

LEAST: Final = 16 * 1024


class Reading(Protocol):
    """What a form needs of its connection. due: the monotonic time by which the form must be complete."""

    due: float

    def took(self, request: ParsedRequest) -> None:
        """What has come was taken: more may come, and has its time."""
        ...


class FormBody:
    """The form of one request."""

    def __init__(self, exchange: Exchange, request: ParsedRequest, connection: Reading) -> None:
        self._exchange, self._request, self._connection = exchange, request, connection
        self._marked = 0
        declared = request.declared()
        self.upload = Upload(exchange, request.bound if declared is None else declared, self._start)

    def _start(self) -> None:
        self._request.arrived = self.upload.wake.set
        self._exchange.plane.tasks.spawn(self._read(), name="form")

    async def _read(self) -> None:
        try:
            await self._parts(MultipartReader(boundary_of(self._request.headers.get(b"content-type", b""))))
        except GatehouseError as error:
            self.upload.failed(error)

    async def _parts(self, reader: MultipartReader) -> None:
        request, upload = self._request, self.upload
        while not upload.over:
            whole, data = request.complete, b"".join(request.parts)
            request.parts.clear()
            for event in reader.feed(data):
                if isinstance(event, Part):
                    upload.part(event.name, event.filename)
                else:
                    upload.data(event.data)
            if whole:
                reader.finish()
                upload.end()
                return
            waits = upload.waits
            if waits and not request.complete:
                self._connection.due = NEVER  # it is not for the client to send more
            await upload.room()
            self._taken(waits)
            while not (request.complete or request.parts or upload.over):
                upload.wake.clear()
                await upload.wake.wait()

    def _taken(self, waited: bool) -> None:
        """waited: the engine has taken what came before."""
        request, connection = self._request, self._connection
        due = connection.due
        connection.took(request)
        if waited or request.size - self._marked >= LEAST:
            self._marked = request.size
        elif not request.complete and due != NEVER:
            connection.due = due
