"""A TCP proxy for faults of the network between two parts of a cluster: it can drop, delay, reset and swallow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

CHUNK = 65536


class Network:
    """The thread with the loop that all proxies of a cluster share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def proxy(self, target: tuple[str, int] | str) -> Proxy:
        """A proxy that listens on a port of loopback. target: host and port, or the path of a Unix socket."""
        made = Proxy(self, target)
        self.run(made.start())
        return made

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Proxy:
    """Passes bytes on, until it is told otherwise. Each method holds for the connections there are and for new ones, until `heal`."""

    def __init__(self, network: Network, target: tuple[str, int] | str) -> None:
        self._network, self._target = network, target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._refusing = False
        self.port = 0
        self.accepted = 0
        """Connections so far."""

    # --- what a test says

    def partition(self) -> None:
        """A black hole: nothing arrives on either side and nothing is closed. What was sent meanwhile arrives after `heal`."""
        self._network.run(self._set(closed=True))

    def delay(self, seconds: float) -> None:
        """Everything takes so much longer, each way."""
        self._network.run(self._set(delay=seconds))

    def drop(self) -> None:
        """All connections are reset, and so is each new one."""
        self._network.run(self._set(refusing=True))
        self.reset()

    def reset(self) -> None:
        """The connections of this moment are reset; new ones are welcome."""
        self._network.run(self._reset())

    def heal(self) -> None:
        """Back to passing bytes on."""
        self._network.run(self._set())

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        self._network.run(self._stop())

    # --- in the network's thread

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _set(self, *, closed: bool = False, delay: float = 0.0, refusing: bool = False) -> None:
        self._delay, self._refusing = delay, refusing
        if closed:
            self._open.clear()
        else:
            self._open.set()

    async def _reset(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            if self._refusing:
                return
            await self._open.wait()
            if isinstance(self._target, str):
                there = await asyncio.open_unix_connection(self._target)
            else:
                there = await asyncio.open_connection(*self._target)
            writers.append(there[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, there[1]))
                group.create_task(self._pass(there[0], writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in writers:
                _abort(one)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        await self._open.wait()
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Closes with a reset, so that the peer notices at once."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
