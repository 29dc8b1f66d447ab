"""Connections that must not be used again, and the one request that is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.core.errors import EngineError
from gateway.transport.pool import EndpointClient
from tests.fakes.ports import empty_port
from tests.fakes.receiver import Sink, until
from tests.unit.gateway.transport.conftest import BODY, HEAD, Way


class Canned(asyncio.Protocol):
    """A server's side of a connection: answers requests, whatever their connection, with these bytes in turn; None: closes."""

    def __init__(self, answers: list[bytes | None], seen: list[bytes], live: set[Canned], *, reads: bool = True) -> None:
        self.answers, self.seen, self.live, self.reads = answers, seen, live, reads
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.live.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.live.discard(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.reads and not self.buffer.endswith(BODY):
            return
        self.seen.append(self.buffer)
        self.buffer = b""
        answer = self.answers.pop(0)
        if answer is None:
            self.transport.close()
        else:
            self.transport.write(answer)
        if not self.reads:
            self.transport.pause_reading()


@contextlib.asynccontextmanager
async def canned(*answers: bytes | None, reads: bool = True) -> AsyncIterator[tuple[EndpointClient, list[bytes]]]:
    """A client of a server that answers with these bytes; and the requests that the server has seen."""
    seen: list[bytes] = []
    live: set[Canned] = set()
    left = list(answers)
    server = await asyncio.get_running_loop().create_server(lambda: Canned(left, seen, live, reads=reads), "127.0.0.1", 0)
    client = EndpointClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield client, seen
    await client.aclose()
    server.close()
    for connection in list(live):
        connection.transport.abort()
    await until(lambda: not live)
    assert client.in_flight == 0


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize("stale", [None, TIMED_OUT])
async def test_a_stale_connection_is_replaced_without_the_receiver_noticing(stale: bytes | None) -> None:
    async with canned(OK, stale, OK) as (client, seen):
        for _ in range(2):
            sink = Sink()
            client.send(HEAD, BODY, sink, 60, 60)
            await sink.finished()
            assert sink.body == b"ok" and sink.calls.count("head") == 1
        assert (client.opened, client.reused, client.retried, client.failed, client.in_flight) == (2, 1, 1, 0, 0)
        assert len(seen) == 3 and seen[1] == seen[2]


async def test_a_stale_connection_is_replaced_only_once() -> None:
    async with canned(OK, None, None, OK) as (client, seen):
        first, second = Sink(), Sink()
        client.send(HEAD, BODY, first, 60, 60)
        await first.finished()
        client.send(HEAD, BODY, second, 60, 60)
        error = await second.failed()
        assert isinstance(error, EngineError) and error.safe and error.lost
        assert len(seen) == 3 and (client.retried, client.failed, client.in_flight) == (1, 1, 0)


async def test_a_fresh_connection_that_is_closed_is_not_asked_again() -> None:
    async with canned(None, OK) as (client, seen):
        sink = Sink()
        client.send(HEAD, BODY, sink, 60, 60)
        error = await sink.failed()
        assert isinstance(error, EngineError) and error.safe and error.lost
        assert len(seen) == 1 and client.retried == 0


async def test_a_request_that_a_kept_connection_had_is_lost_if_nobody_listens_any_more() -> None:
    with empty_port() as port:
        async with canned(OK, None) as (client, seen):
            first, second, third = Sink(), Sink(), Sink()
            client.send(HEAD, BODY, first, 60, 60)
            await first.finished()
            client.send(HEAD, BODY, second, 60, 60)
            client.replace(f"http://127.0.0.1:{port}")
            error = await second.failed()
            assert isinstance(error, EngineError) and error.refused and error.lost and len(seen) == 2
            client.send(HEAD, BODY, third, 60, 60)
            error = await third.failed()
            assert isinstance(error, EngineError) and error.refused and not error.lost


async def test_an_answer_that_had_begun_is_never_asked_for_again() -> None:
    async with canned(OK, OK[:20], None) as (client, seen):
        first, second = Sink(), Sink()
        client.send(HEAD, BODY, first, 60, 60)
        await first.finished()
        call = client.send(HEAD, BODY, second, 60, 60)
        await until(lambda: call.heard)
        assert call.connection is not None and call.connection._transport is not None
        call.connection._transport.write(BODY)  # makes the server close
        error = await second.failed()
        assert isinstance(error, EngineError) and not error.safe
        assert (client.retried, len(seen), second.calls) == (0, 3, ["failed"])


async def test_cancelling_a_call_that_is_sent_again(way: Way) -> None:
    await way.get()
    sink = way.send(fake="reset:at=before")
    await until(lambda: way.client.retried == 1)
    assert sink.call is not None
    sink.call.cancel()
    assert (way.client.in_flight, sink.calls) == (0, [])


async def test_an_answer_before_the_request_was_sent_is_not_reused(caplog: pytest.LogCaptureFixture) -> None:
    async with canned(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", reads=False) as (client, _):
        sink = Sink()
        client.send(HEAD, b"x" * 50_000_000, sink, 60, 60)
        await sink.finished()
        assert sink.head is not None and sink.head.status == 413
        assert client.idle == 0
    assert caplog.records == [], "a request that an engine takes slowly is nobody's failure"
