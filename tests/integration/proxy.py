"""A proxy between a store and its PostgreSQL (over Unix sockets) that passes everything, hangs, or refuses, as a test likes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from tests.integration.postgres import USER, PostgresServer

NAME = ".s.PGSQL.5432"
Mode = Literal["pass", "hang"]


class Proxy:
    """`mode`: `hang` neither passes a byte nor closes anything, like a network that drops packets. Life: `start`, `aclose`."""

    def __init__(self, server: PostgresServer) -> None:
        self._to = server.directory / NAME
        self.directory = Path(tempfile.mkdtemp(prefix="gatehouse-proxy-"))
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0

    async def start(self) -> Proxy:
        self._server = await asyncio.start_unix_server(self._accept, self.directory / NAME)
        return self

    def url(self, database: str) -> str:
        """The URL of a database of the server, through this proxy."""
        name = database.rsplit("/", 1)[1].partition("?")[0]
        return f"postgresql://{USER}@/{name}?host={quote(str(self.directory), safe='')}"

    @property
    def mode(self) -> Mode:
        return "pass" if self._passing.is_set() else "hang"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode == "pass":
            self._passing.set()
        else:
            self._passing.clear()

    def cut(self) -> None:
        """Ends every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def refuse(self) -> None:
        """Accepts no more connections, and ends those that are open."""
        if self._server is not None:
            self._server.close()
            (self.directory / NAME).unlink(missing_ok=True)
            self._server = None
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_unix_connection(self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while part := await source.read(65536):
                await self._passing.wait()
                sink.write(part)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()
            self._writers.discard(sink)

    async def aclose(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        shutil.rmtree(self.directory, ignore_errors=True)
