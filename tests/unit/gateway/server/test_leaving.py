"""How a data listener leaves: the delay, the finish, the end of what is too late; on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.specs import TlsSpec
from gateway.server import leaving
from gateway.server.leaving import Leaving
from gateway.server.listener import bind, data_server
from gateway.server.protocol import ListenerState
from gateway.server.tls import Contexts, context_of, read
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT, SSE_HEAD, STREAM_BODY, World, chunk
from tests.unit.gateway.server.wires import Application, get, post
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import reached

FOREVER = 3600.0


class Site:
    """A data listener on a free port, that leaves when the test says so."""

    def __init__(self, tls: TlsSpec | None = None) -> None:
        self.world, self.application = World(), Application()
        self.application.at_once = True
        self.state = ListenerState(self.world.plane, self.application, is_inference)
        self.sock = bind("127.0.0.1:0", "listen.data")
        self.address: Any = self.sock.getsockname()
        self.server = data_server(self.state, None if tls is None else Contexts(context_of(read(tls, "listen.tls"))), 1.0)
        self.leaving = Leaving()
        self.end: asyncio.Task[None] | None = None
        self.running = asyncio.ensure_future(self.server.serve(sockets=[self.sock]))

    def leave(self, delay: float = 0.0, timeout: float = FOREVER) -> None:
        self.leaving.ask()
        self.end = asyncio.ensure_future(self.leaving.leave(self.server, self.state, delay=delay, timeout=timeout))

    async def left(self) -> None:
        assert self.end is not None
        await asyncio.wait_for(self.end, 60)
        assert not self.state.connections

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection(*self.address))

    def refuses(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(self.address) != 0


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, path: bytes = b"/x") -> bytes:
        """Sends a request and returns the answer of the test's application, which is the path in brackets."""
        self.writer.write(get(path))
        return await self.reader.readuntil(b">")

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        data = await asyncio.wait_for(self.reader.read(), 60)
        self.writer.close()
        return data


@contextlib.asynccontextmanager
async def serving(tls: TlsSpec | None = None) -> AsyncIterator[Site]:
    site = Site(tls)
    await reached(lambda: site.server.started)
    try:
        yield site
    finally:
        if site.end is None:
            site.leave(timeout=0.0)
        await site.left()
        site.server.force_exit = True
        await asyncio.wait_for(site.running, 60)


async def test_in_the_delay_everything_is_served_and_each_connection_closes_after_its_answer() -> None:
    async with serving() as site:
        old = await site.client()
        await old.ask()
        site.leave(delay=FOREVER)
        await reached(lambda: site.world.plane.draining)
        assert await old.ask(b"/old") == b"</old>"
        assert await old.rest() == b""
        new = await site.client()
        assert await new.ask(b"/new") == b"</new>"
        assert await new.rest() == b""
        assert site.end is not None and not site.end.done()
        site.leaving.ask()
        await site.left()
        assert site.refuses()


async def test_an_inference_in_the_delay_is_told_that_its_connection_closes() -> None:
    async with serving() as site:
        site.leave(delay=FOREVER)
        await reached(lambda: site.world.plane.draining)
        client = await site.client()
        client.writer.write(post(CHAT, BODY))
        await reached(lambda: site.world.engine.calls)
        site.world.call.answer()
        answer = await client.rest()
        assert b"\r\nconnection: close\r\n" in answer and answer.endswith(ANSWER)
        site.leaving.ask()


async def test_idle_connections_close_and_what_runs_finishes() -> None:
    async with serving() as site:
        idle, busy = await site.client(), await site.client()
        await idle.ask()
        busy.writer.write(post(CHAT, BODY))
        await reached(lambda: site.world.engine.calls)
        site.leave()
        assert await idle.rest() == b""
        assert site.end is not None and not site.end.done()
        site.world.call.answer()
        assert (await busy.rest()).endswith(ANSWER)
        await site.left()


async def test_a_request_that_is_still_arriving_is_answered() -> None:
    async with serving() as site:
        client = await site.client()
        request = get(b"/slow")
        client.writer.write(request[:10])
        await reached(lambda: any(connection.in_request for connection in site.state.connections))
        site.leave()
        await reached(site.refuses)
        client.writer.write(request[10:])
        assert await client.rest() == b"</slow>"


async def test_what_runs_too_long_ends_with_an_error() -> None:
    async with serving() as site:
        stream, whole, arriving = await site.client(), await site.client(), await site.client()
        stream.writer.write(post(CHAT, STREAM_BODY))
        await reached(lambda: len(site.world.engine.calls) == 1)
        site.world.call.head(SSE_HEAD).body(chunk("a"))
        whole.writer.write(post(CHAT, BODY))
        await reached(lambda: len(site.world.engine.calls) == 2)
        arriving.writer.write(get(b"/x")[:10])
        await reached(lambda: len(site.state.connections) == 3 and all(connection.busy for connection in site.state.connections))
        site.leave(timeout=0.0)
        assert (await stream.rest()).endswith(b'"code":"overloaded"}}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n')
        for answer in (await whole.rest(), await arriving.rest()):
            assert answer.startswith(b"HTTP/1.1 503 ") and b'"type":"overloaded_error"' in answer
        assert all(call.cancelled for call in site.world.engine.calls)


async def test_asked_again_it_ends_at_once() -> None:
    async with serving() as site:
        client = await site.client()
        client.writer.write(post(CHAT, BODY))
        await reached(lambda: site.world.engine.calls)
        site.leave()
        await reached(site.refuses)
        site.leaving.ask()
        assert (await client.rest()).startswith(b"HTTP/1.1 503 ")
        await site.left()


async def test_connections_that_nobody_has_accepted_yet_are_served() -> None:
    """They come between the loop's last look at the socket and its closing."""
    async with serving() as site:
        asyncio.get_running_loop().remove_reader(site.sock.fileno())  # as if it had looked before they came
        late = [await site.client() for _ in range(3)]
        for number, client in enumerate(late):
            client.writer.write(get(b"/%d" % number))
        assert not site.state.connections
        site.leave()
        assert [await client.rest() for client in late] == [b"</0>", b"</1>", b"</2>"]


async def test_a_client_that_does_not_close_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LINGER_SECONDS", 0.01)
    async with serving() as site:
        client = await site.client()
        client.writer.write(post(CHAT, BODY))
        await reached(lambda: site.world.engine.calls)
        site.leave(timeout=0.0)
        assert site.end is not None
        await asyncio.wait_for(site.end, 60)
        await client.rest()
        await reached(lambda: not site.state.connections)


async def test_who_retires_keeps_idle_connections_until_their_next_answer() -> None:
    async with serving() as site:
        one, two = await site.client(), await site.client()
        await one.ask()
        await two.ask()
        retired = asyncio.ensure_future(site.leaving.retire(site.server, site.state))
        await reached(lambda: site.world.plane.closing)
        assert not site.world.plane.draining
        assert await one.ask(b"/one") == b"</one>"
        assert await one.rest() == b""
        assert not retired.done()
        assert await two.ask(b"/two") == b"</two>"
        assert await two.rest() == b""
        await asyncio.wait_for(retired, 60)


async def test_who_retires_closes_what_stays_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "IDLE_SECONDS", 0.01)
    async with serving() as site:
        idle, busy = await site.client(), await site.client()
        await idle.ask()
        busy.writer.write(post(CHAT, BODY))
        await reached(lambda: site.world.engine.calls)
        retired = asyncio.ensure_future(site.leaving.retire(site.server, site.state))
        assert await idle.rest() == b""
        assert not retired.done()
        site.world.call.answer()
        assert (await busy.rest()).endswith(ANSWER)
        await asyncio.wait_for(retired, 60)


async def test_a_pause_of_the_process_while_it_retires_closes_no_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "IDLE_SECONDS", 30.0)
    loop, ahead = asyncio.get_running_loop(), [0.0]
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + ahead[0])
    async with serving() as site:
        client = await site.client()
        await client.ask()
        retired = asyncio.ensure_future(site.leaving.retire(site.server, site.state))
        await reached(lambda: site.world.plane.closing)
        ahead[0] = 50.0
        await asyncio.sleep(2 * leaving.LOOK_SECONDS)
        assert await client.ask(b"/late") == b"</late>"
        assert await client.rest() == b""
        await asyncio.wait_for(retired, 60)


async def test_who_retires_leaves_new_connections_in_the_queue_for_others() -> None:
    async with serving() as site:
        other = site.sock.dup()
        await asyncio.wait_for(site.leaving.retire(site.server, site.state), 60)
        client = await site.client()
        other.setblocking(True)
        accepted, _ = other.accept()
        accepted.sendall(b"by another>")
        assert await client.reader.readuntil(b">") == b"by another>"
        accepted.close()
        other.close()
        client.writer.close()


async def test_who_retires_and_is_asked_to_leave_stops_waiting() -> None:
    async with serving() as site:
        client = await site.client()
        await client.ask()
        retired = asyncio.ensure_future(site.leaving.retire(site.server, site.state))
        await reached(lambda: site.world.plane.closing)
        site.leaving.ask()
        await asyncio.wait_for(retired, 60)
        site.end = asyncio.ensure_future(site.leaving.leave(site.server, site.state, delay=0.0, timeout=FOREVER))
        assert await client.rest() == b""


async def test_a_tls_handshake_that_has_begun_survives_a_retirement(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with serving(TlsSpec(cert=certificates.server, key=certificates.server_key)) as site:
        reader, writer = await asyncio.open_connection(*site.address)
        await reached(lambda: site.server.arriving == 1)
        retired = asyncio.ensure_future(site.leaving.retire(site.server, site.state))
        await reached(lambda: site.world.plane.closing)
        assert not retired.done() and site.server.arriving == 1
        writer.close()
        assert await reader.read() == b""
        await asyncio.wait_for(retired, 60)
