"""Who sends a request to the admin listener, and who is not let in: raw bytes through uvicorn's connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop
from msgspec import structs

from gateway.core.network import Networks
from gateway.core.types import Peer
from gateway.server.admin_protocol import PEER
from gateway.server.listener import admin_server, bind
from gateway.telemetry.refused import Refused
from tests.unit.gateway.pipeline.world import World
from tests.unit.gateway.server.test_proxy_protocol import FOUR
from tests.waiting import reached

GET = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n%b\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with who asks."""
    peer: Peer = scope["extensions"][PEER]
    body = f"{peer.address} {peer.trusted}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Listener:
    def __init__(self, networks: tuple[str, ...], **listen: Any) -> None:
        self.world = World(**listen)
        self.refused = self.world.plane.refused = Refused()
        self.world.plane.current().admin_networks = Networks().rules(networks)
        self.sock = bind("127.0.0.1:0", "listen.admin")
        self.server = admin_server(application, self.world.plane)

    async def ask(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.sock.getsockname())
        writer.write(data)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def who(self, headers: bytes = b"", before: bytes = b"") -> str:
        answer = await self.ask(before + GET % headers)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return answer.rpartition(b"\r\n\r\n")[2].decode()


@contextlib.asynccontextmanager
async def listening(*networks: str, **listen: Any) -> AsyncIterator[Listener]:
    listener = Listener(networks, **listen)
    running = asyncio.create_task(listener.server.serve(sockets=[listener.sock]))
    await reached(lambda: listener.server.started)
    try:
        yield listener
    finally:
        listener.server.end()
        await running
        await listener.world.plane.tasks.aclose()


LOCAL = ("127.0.0.0/8",)


@pytest.mark.parametrize(
    ("trusted", "headers", "expected"),
    [
        ((), b"x-forwarded-for: 203.0.113.5\r\n", "127.0.0.1 False"),
        (("192.0.2.1",), b"x-forwarded-for: 203.0.113.5\r\n", "127.0.0.1 False"),
        (LOCAL, b"", "127.0.0.1 True"),
        (LOCAL, b"x-forwarded-for: 203.0.113.5\r\n", "203.0.113.5 True"),
        (LOCAL, b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 203.0.113.5\r\n", "203.0.113.5 True"),
        (LOCAL, b"x-forwarded-for: 6.6.6.6, 203.0.113.5, 127.0.0.9\r\n", "203.0.113.5 True"),
        (LOCAL, b"x-forwarded-for: junk\r\n", "127.0.0.1 True"),
    ],
)
async def test_the_client_that_a_trusted_proxy_names(trusted: tuple[str, ...], headers: bytes, expected: str) -> None:
    async with listening(admin_trusted_peers=trusted) as listener:
        assert await listener.who(headers) == expected


async def test_a_proxy_that_is_no_longer_trusted_names_nobody_on_a_kept_connection() -> None:
    async with listening(admin_trusted_peers=("127.0.0.1",)) as listener, asyncio.timeout(60):
        snapshot = listener.world.snapshot
        reader, writer = await asyncio.open_connection(*listener.sock.getsockname())
        said = []
        for trusted in (("127.0.0.1",), ()):
            snapshot.spec = structs.replace(snapshot.spec, listen=structs.replace(snapshot.spec.listen, admin_trusted_peers=trusted))
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 203.0.113.5\r\n\r\n")
            length = int((await reader.readuntil(b"\r\n\r\n")).lower().partition(b"content-length: ")[2].split()[0])
            said.append(await reader.readexactly(length))
        writer.close()
        assert said == [b"203.0.113.5 True", b"127.0.0.1 False"]


async def test_a_head_without_end_is_refused() -> None:
    async with listening(max_header_bytes=4096) as listener:
        assert (await listener.ask(b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 5000)).startswith(b"HTTP/1.1 431 ")
        two = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 2 + b"GET / HTTP/1.1\r\nx: " + b"a" * 5000
        assert b"HTTP/1.1 431 " in await listener.ask(two)
        body = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 10000\r\n\r\n" + b"a" * 10_000
        assert (await listener.ask(body)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost: a\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n\r\n"])
async def test_a_connection_that_says_nothing_more_is_closed(said: bytes) -> None:
    async with listening(header_timeout=0.05) as listener, asyncio.timeout(60):
        answer = await listener.ask(said)
        assert answer.startswith(b"HTTP/1.1 200 ") if said.endswith(b"\r\n\r\n") else answer == b""


async def test_connections_are_bounded() -> None:
    async with listening(max_connections=2) as listener, asyncio.timeout(60):
        open_ones = [await asyncio.open_connection(*listener.sock.getsockname()) for _ in range(2)]
        await reached(lambda: len(listener.server.server_state.connections) == 2)
        assert await listener.ask(GET % b"") == b""
        for _, writer in open_ones:
            writer.close()
        await reached(lambda: not listener.server.server_state.connections)
        assert await listener.who() == "127.0.0.1 False"


async def test_the_proxy_protocol() -> None:
    async with listening(admin_trusted_peers=LOCAL, admin_proxy_protocol="required") as listener:
        assert await listener.who(before=FOUR) == "203.0.113.7 False"
        assert await listener.who(b"x-forwarded-for: 6.6.6.6\r\n", FOUR) == "203.0.113.7 False"
        assert await listener.ask(GET % b"") == b""
        assert listener.refused._totals == {("admin", "proxy_header"): 1}


async def test_who_is_not_let_in_gets_no_answer() -> None:
    async with listening("deny:127.0.0.0/8") as listener:
        assert await listener.ask(GET % b"") == b""
        assert listener.refused._totals == {("admin", "network"): 1}


async def test_behind_a_proxy_the_client_is_judged_and_the_proxy_only_if_it_is_denied() -> None:
    async with listening("203.0.113.0/24", admin_trusted_peers=LOCAL) as listener:
        assert await listener.who(b"x-forwarded-for: 203.0.113.5\r\n") == "203.0.113.5 True"
        for headers in (b"x-forwarded-for: 198.51.100.1\r\n", b""):
            assert (await listener.ask(GET % headers)).startswith(b"HTTP/1.1 403")
    async with listening("203.0.113.0/24", "deny:127.0.0.1", admin_trusted_peers=LOCAL) as listener:
        assert await listener.ask(GET % b"x-forwarded-for: 203.0.113.5\r\n") == b""


async def test_a_client_that_the_proxy_protocol_names_is_judged_before_a_byte_is_read() -> None:
    async with listening("deny:203.0.113.0/24", admin_trusted_peers=LOCAL, admin_proxy_protocol="required") as listener:
        assert await listener.ask(FOUR + GET % b"") == b""
        assert await listener.who(before=b"PROXY TCP4 198.51.100.1 192.0.2.2 1 2\r\n") == "198.51.100.1 False"


async def test_two_headers_that_name_different_clients_are_refused() -> None:
    both = b"forwarded: for=203.0.113.5;proto=https\r\nx-forwarded-for: %b\r\n"
    async with listening("deny:198.51.100.0/24", admin_trusted_peers=LOCAL, admin_forwarding="either") as listener:
        assert await listener.who(both % b"203.0.113.5") == "203.0.113.5 True"
        assert await listener.who(b"forwarded: for=203.0.113.6\r\nforwarded: for=203.0.113.7\r\n") == "203.0.113.7 True"
        answer = await listener.ask(GET % (both % b"203.0.113.6"))
        assert answer.startswith(b"HTTP/1.1 400") and b"name different clients" in answer
        assert (await listener.ask(GET % b"forwarded: for=198.51.100.1\r\n")).startswith(b"HTTP/1.1 403")
    async with listening(admin_trusted_peers=(), admin_forwarding="either") as listener:
        assert await listener.who(both % b"203.0.113.6") == "127.0.0.1 False", "of a stranger they mean nothing"


def test_a_request_that_came_while_the_process_stood_still_is_read_before_its_connection_is_closed() -> None:
    async def test() -> None:
        async with listening() as listener:
            listener.server.config.timeout_keep_alive = 1
            reader, writer = await asyncio.open_connection(*listener.sock.getsockname())
            asking, (woken, waking) = writer.get_extra_info("socket").fileno(), os.pipe()

            def still() -> None:
                os.read(woken, 1)
                os.write(asking, GET.replace(b"close", b"keep-alive") % b"")
                time.sleep(2.2)  # while it reads sockets, so that it looks at timers next, as after a pause

            asyncio.get_running_loop().add_reader(woken, still)
            os.write(asking, GET.replace(b"close", b"keep-alive") % b"")
            for _ in range(2):
                assert (await reader.readuntil(b"False")).startswith(b"HTTP/1.1 200")
                os.write(waking, b"x")
            async with asyncio.timeout(60):
                assert (await reader.read()).startswith(b"HTTP/1.1 200"), "and it is closed when nothing comes"
            writer.close()
            asyncio.get_running_loop().remove_reader(woken)
            os.close(woken)
            os.close(waking)

    uvloop.run(test())
