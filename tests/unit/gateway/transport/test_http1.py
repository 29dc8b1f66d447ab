"""One connection, one answer after the other: what arrives, what is reused, what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.transport.http1 import Connection, EngineCall
from gateway.transport.pool import LARGE_BODY
from tests.fakes.receiver import Sink
from tests.unit.gateway.transport.conftest import BODY, HEAD, STREAM, Way


async def test_a_whole_answer_arrives(way: Way) -> None:
    sink = await way.get()
    assert sink.head is not None and sink.head.status == 200
    assert sink.head.get(b"content-type") == b"application/json"
    assert json.loads(sink.body)["choices"][0]["message"]["content"] == " tok0 tok1 tok2 tok3"
    assert sink.calls[0] == "head" and sink.calls[-1] == "end"


async def test_the_engine_gets_exactly_what_was_sent(way: Way) -> None:
    await way.get()
    request = way.engine.requests[0]
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", BODY)
    host = way.engine.address.rpartition("/")[2] if not way.engine.address.startswith("unix:") else "localhost"
    assert request.headers == [("content-type", "application/json"), ("host", host), ("content-length", str(len(BODY)))]


@pytest.mark.parametrize("size", [LARGE_BODY - 1, LARGE_BODY, 3 * 1024 * 1024])
async def test_large_bodies_arrive_whole(way: Way, size: int) -> None:
    sink, body = Sink(), bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    way.client.send(HEAD, body, sink, 60, 60)
    await sink.finished()
    request = way.engine.requests[-1]
    assert request.body == body and ("content-length", str(size)) in request.headers


async def test_a_request_without_a_body(way: Way) -> None:
    sink = Sink()
    way.client.send(b"GET /health HTTP/1.1\r\n", b"", sink, 60, 60)
    await sink.finished()
    assert json.loads(sink.body)["state"] == "ready"


async def test_a_stream_arrives_in_order(way: Way) -> None:
    sink = await way.get(STREAM, fake="normal:chunks=50")
    places = [sink.body.index(b" tok%d" % i) for i in range(50)]
    assert places == sorted(places)
    assert sink.body.endswith(b"data: [DONE]\n\n")


async def test_connections_are_kept_and_used_again(way: Way) -> None:
    for _ in range(5):
        await way.get(STREAM)
    client = way.client
    assert (client.opened, client.reused, client.idle, client.in_flight, client.failed) == (1, 4, 1, 0, 0)
    assert way.engine.connections == 1


async def test_the_connection_is_idle_again_before_the_receiver_hears_of_the_end(way: Way) -> None:
    first, second = Sink(), Sink()

    def follow(what: str) -> None:
        if what == "end":
            way.send(sink=second)

    first.on_call = follow
    way.send(sink=first)
    await second.finished()
    assert (way.client.opened, way.client.reused) == (1, 1)


async def test_a_large_request_arrives_whole(way: Way) -> None:
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode()
    await way.get(body)
    assert way.engine.requests[0].body == body


async def test_interim_responses_are_skipped(way: Way) -> None:
    sink = await way.get(fake="interim")
    assert sink.head is not None and sink.head.status == 200 and sink.head.get(b"link") is None
    assert sink.calls.count("head") == 1
    await way.get()
    assert way.client.opened == 1


async def test_trailers_do_not_reach_the_next_answer(way: Way) -> None:
    first = await way.get(STREAM, fake="trailers")
    second = await way.get(STREAM)
    assert way.client.opened == 1
    assert first.head is not None and second.head is not None
    for sink in (first, second):
        assert sink.head is not None and sink.head.get(b"x-checksum") is None and sink.head.get(b"x-last") is None
    assert second.head.headers == first.head.headers


async def test_an_answer_that_ends_with_the_connection_is_whole_but_never_reused(way: Way) -> None:
    sink = await way.get(STREAM, fake="until_close")
    assert sink.body.endswith(b"data: [DONE]\n\n")
    await way.get()
    assert (way.client.opened, way.client.reused) == (2, 0)


async def test_a_byte_at_a_time(way: Way) -> None:
    sink = await way.get(STREAM, fake="dribble")
    assert sink.body.endswith(b"data: [DONE]\n\n") and b" tok3" in sink.body
    await way.get()
    assert way.client.opened == 1


@pytest.mark.parametrize(("code", "retry_after"), [(429, "1.5"), (500, ""), (503, "7")])
async def test_the_engines_errors_are_answers_like_others(way: Way, code: int, retry_after: str) -> None:
    sink = await way.get(fake=f"status:code={code},retry_after={retry_after}" if retry_after else f"status:code={code}")
    assert sink.head is not None and sink.head.status == code
    assert sink.head.get(b"retry-after") == (retry_after.encode() or None)
    await way.get()
    assert (way.client.opened, way.client.failed) == (1, 0)


async def test_nagle_is_off(tcp: Way) -> None:
    sink = tcp.send(fake="hang")
    await tcp.engine.until(lambda: len(tcp.engine.requests) == 1)
    assert sink.call is not None and sink.call.connection is not None
    sock = cast(asyncio.Transport, sink.call.connection._transport).get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    sink.call.cancel()


# --- bytes that are wrong


async def test_bytes_after_the_answer_poison_the_connection(way: Way) -> None:
    sink = await way.get(fake="surplus")
    assert b"stolen" not in sink.body and json.loads(sink.body)["usage"]
    assert way.client.idle == 0
    second = await way.get()
    assert b"stolen" not in second.body
    assert (way.client.opened, way.client.reused) == (2, 0)


async def test_a_content_length_too_short_poisons_the_connection(way: Way) -> None:
    sink = await way.get(fake="short_length")
    assert len(sink.body) == int(sink.head.get(b"content-length") or 0) if sink.head else False
    await way.get()
    assert (way.client.opened, way.client.reused) == (2, 0)


async def test_bytes_on_an_idle_connection_close_it(tcp: Way) -> None:
    await tcp.get()
    (connection,) = tcp.engine._live
    connection._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen")
    await tcp.engine.until(lambda: tcp.engine.open == 0)
    assert tcp.client.idle == 0
    assert b"stolen" not in (await tcp.get()).body


@pytest.mark.parametrize(
    ("fake", "stream", "safe"),
    [
        ("long_length", False, False),
        ("garbage:at=before", True, False),
        ("garbage:at=head", True, False),
        ("garbage:at=mid", True, False),
        ("endless_header", True, False),
        ("huge_header", True, False),
        ("reset:at=before", True, True),
        ("reset:at=head", True, False),
        ("reset:at=mid", True, False),
        ("close:at=before", True, True),
        ("close:at=head", True, False),
        ("close:at=mid", True, False),
        ("close:at=mid", False, False),
    ],
)
async def test_faults_fail_the_call_once_and_close_the_connection(way: Way, fake: str, stream: bool, safe: bool) -> None:
    sink = way.send(STREAM if stream else BODY, fake=fake)
    error = await sink.failed()
    assert isinstance(error, EngineError) and (error.code, error.status) == ("engine_failed", 502)
    assert (error.safe, error.refused) == (safe, False)
    assert way.engine.address.rpartition(":")[2] not in error.message
    assert sink.calls.count("failed") == 1 and not sink.ended
    await way.engine.until(lambda: way.engine.open == 0)
    assert (way.client.in_flight, way.client.idle, way.client.failed) == (0, 0, 1)
    await way.get()


async def test_what_came_before_the_garbage_is_delivered_first(way: Way) -> None:
    sink = way.send(STREAM, fake="garbage:at=mid,chunks=6")
    await sink.failed()
    assert sink.head is not None and sink.head.status == 200
    assert b" tok1" in sink.body and b"not HTTP" not in sink.body


# --- the boundary towards receivers


@pytest.mark.parametrize("where", ["head", "body", "end"])
async def test_a_receiver_that_raises_is_told_once(way: Way, where: str) -> None:
    sink = Sink(raise_in=where)  # type: ignore[arg-type]
    way.send(STREAM, sink)
    error = await sink.failed()
    assert isinstance(error, RuntimeError) and sink.calls.count("failed") == 1 and sink.calls[-1] == "failed"
    assert (way.client.in_flight, way.client.failed) == (0, 1)
    if where != "end":  # then the answer had been read to the end, and the connection is as good as any
        await way.engine.until(lambda: way.engine.open == 0)
    await way.get()


async def test_a_receiver_that_raises_while_told_of_a_failure_is_logged(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(raise_in="failed")
    way.send(fake="reset:at=before", sink=sink)
    await sink.failed()
    assert "planted in failed" in caplog.text
    assert way.client.in_flight == 0
    await way.get()


# --- every split of the bytes, without a socket


class Wire(asyncio.Transport):
    """A transport that keeps what is written and knows whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Keeper:
    """The smallest Owner."""

    def __init__(self) -> None:
        self.in_flight, self.failed = 1, 0
        self.released: list[Connection] = []

    def release(self, connection: Connection) -> None:
        self.released.append(connection)

    def retire(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...

    def redial(self, call: EngineCall) -> None:
        raise AssertionError("nothing was stale")


def receive(reads: list[bytes]) -> tuple[Sink, Wire, Keeper]:
    keeper, wire, sink = Keeper(), Wire(), Sink()
    connection = Connection(keeper, 0)
    connection.connection_made(wire)
    assert connection.start(EngineCall(keeper, sink, HEAD, 1.0, 1.0))
    for read in reads:
        if not wire.closed:
            connection.data_received(read)
    return sink, wire, keeper


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello world",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nx-t: 1\r\nx-u: 2\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world",
]


@settings(max_examples=150)
@given(st.sampled_from(ANSWERS), st.sampled_from([b"", b"H", b"junk"]), st.lists(st.integers(0, 500), max_size=10))
def test_any_split_gives_the_same_answer(answer: bytes, surplus: bytes, places: list[int]) -> None:
    stream = answer + surplus
    marks = sorted({p % (len(stream) + 1) for p in places})
    sink, wire, keeper = receive([r for a, b in zip([0, *marks], [*marks, len(stream)], strict=True) if (r := stream[a:b])])
    assert sink.head is not None and sink.head.status == 200 and sink.head.get(b"x-t") is None
    assert sink.body == b"hello world" and sink.ended and not sink.errors
    assert keeper.in_flight == 0
    assert wire.closed == bool(surplus)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(200)) + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n" * 5000,
        b"HTTP/1.1 000 Nothing\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 Nothing\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00\x00\x00\x00",
    ],
)
def test_answers_that_are_refused(answer: bytes) -> None:
    for reads in ([answer], [answer[i : i + 1000] for i in range(0, len(answer), 1000)]):
        sink, wire, keeper = receive(reads)
        assert isinstance(sink.error, EngineError) and not sink.error.safe
        assert sink.calls[-1] == "failed" and wire.closed and keeper.in_flight == 0 and not keeper.released


@pytest.mark.parametrize("endless", [b"1;" + b"e" * 70_000, b"0\r\n" + b"x-trailer: 1\r\n" * 10_000])
def test_chunk_extensions_and_trailers_are_bounded(endless: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    sink, wire, _ = receive([head, b"3\r\nabc\r\n", *(endless[i : i + 1000] for i in range(0, len(endless), 1000))])
    assert sink.body == b"abc" and sink.calls[-1] == "failed" and wire.closed


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: Keep-Alive, Close\r\n"],
)
def test_an_engine_that_closes_is_not_asked_again(head: bytes) -> None:
    sink, wire, keeper = receive([head + b"content-length: 2\r\n\r\nok"])
    assert sink.ended and wire.closed and not keeper.released


def test_no_content_has_no_body() -> None:
    sink, wire, keeper = receive([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert sink.calls == ["head", "end"] and keeper.released and not wire.closed


def test_chunks_of_one_read_arrive_joined() -> None:
    sink, _, _ = receive([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n", b"1\r\nc\r\n0\r\n\r\n"])
    assert sink.chunks == [b"ab", b"c"]
