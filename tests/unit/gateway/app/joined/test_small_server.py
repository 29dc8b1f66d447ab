"""Small servers: how many connections they have."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.app.joined.small_server import answer, small_server
from tests.waiting import reached


def there(server: Any, count: int) -> bool:
    return len(server.server_state.connections) == count


async def test_connections_beyond_those_that_are_told_so_are_cut() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"{}")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()[:2]
        server = small_server(application, connections=2, keep_alive=30, graceful=1)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            for count in range(1, 5):
                opened.append(await asyncio.open_connection(*address))
                await reached(partial(there, server, count))
            reader, writer = await asyncio.open_connection(*address)
            opened.append((reader, writer))
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
            first, asking = opened[0]
            asking.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 503 " in await asyncio.wait_for(first.readline(), 30)
        finally:
            for _, each in opened:
                each.close()
            server.end()
            server.force_exit = True
            await serving
