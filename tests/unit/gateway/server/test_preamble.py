"""Taking a header of the PROXY protocol off a connection, in whatever parts it comes, and nothing that follows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from gateway.server import preamble
from gateway.server.preamble import read_header
from gateway.server.proxy_protocol import BadHeader, Header
from tests.unit.gateway.server.test_proxy_protocol import BAD, FOUR, GOOD, LONGEST
from tests.waiting import SECONDS

LINE = b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443\r\n"
REST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Pair:
    """A connection over TCP: `near` is ours."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.far = socket.create_connection(server.getsockname())
            self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.near, _ = server.accept()
        self.near.setblocking(False)

    def rest(self) -> bytes:
        """What is left unread."""
        with contextlib.suppress(BlockingIOError):
            return self.near.recv(65536)
        return b""


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.far.close()
    made.near.close()


async def arrives(near: socket.socket, count: int) -> None:
    """So many bytes are in the kernel."""
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(BlockingIOError):
                if len(near.recv(65536, socket.MSG_PEEK)) >= count:
                    return
            await asyncio.sleep(0)


@pytest.mark.parametrize(("data", "address", "own"), GOOD, ids=range(len(GOOD)))
async def test_the_header_is_taken_and_what_follows_is_left(pair: Pair, data: bytes, address: str | None, own: bool) -> None:
    pair.far.sendall(data + REST)
    assert await read_header(pair.near, 5.0, required=True) == Header(len(data), address, own)
    await arrives(pair.near, len(REST))
    assert pair.rest() == REST


@pytest.mark.parametrize("data", [LINE, FOUR], ids=["1", "2"])
@pytest.mark.parametrize("required", [True, False])
async def test_a_header_may_come_in_two_parts_split_anywhere(data: bytes, required: bool) -> None:
    for end in range(1, len(data)):
        pair = Pair()
        pair.far.sendall(data[:end])
        await arrives(pair.near, end)
        reading = asyncio.ensure_future(read_header(pair.near, 5.0, required=required))
        await asyncio.sleep(0)
        pair.far.sendall(data[end:] + REST)
        found = await reading
        assert found is not None and found.address == "203.0.113.7"
        await arrives(pair.near, len(REST))
        assert pair.rest() == REST
        pair.far.close()
        pair.near.close()


async def test_a_header_may_come_byte_by_byte(pair: Pair) -> None:
    reading = asyncio.ensure_future(read_header(pair.near, 30.0, required=True))
    for number in range(len(LONGEST)):
        assert not reading.done()
        pair.far.sendall(LONGEST[number : number + 1])
        await arrives(pair.near, number + 1)
    assert await reading is not None and pair.rest() == b""


@pytest.mark.parametrize("data", [REST, b"P", b"PO", b"POST / HTTP/1.1\r\n", b"\r\n\r\n" + REST, b"\x16\x03\x01"], ids=range(6))
async def test_something_else_is_left_alone_or_refused(data: bytes) -> None:
    for required in (True, False):
        pair = Pair()
        pair.far.sendall(data[:1])
        reading = asyncio.ensure_future(read_header(pair.near, 5.0, required=required))
        await asyncio.sleep(0)
        pair.far.sendall(data[1:] + b"OST / HTTP/1.1\r\n" if len(data) < 3 else data[1:])
        if required:
            with pytest.raises(BadHeader):
                await reading
        else:
            assert await reading is None and pair.rest().startswith(data[:1])
        pair.far.close()
        pair.near.close()


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
async def test_a_bad_header_is_refused_though_none_is_required(pair: Pair, data: bytes) -> None:
    pair.far.sendall(data)
    with pytest.raises(BadHeader):
        await read_header(pair.near, 5.0, required=False)


@pytest.mark.parametrize("data", [b"", b"P", LINE[:-1], FOUR[:-1]], ids=range(4))
async def test_a_connection_that_ends_or_is_slow_has_no_header(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(preamble, "AGAIN_SECONDS", 0.001)
    for reason, ends in (("ended", True), ("no whole header", False)):
        pair = Pair()
        pair.far.sendall(data)
        if ends:
            pair.far.shutdown(socket.SHUT_WR)
        with pytest.raises(BadHeader, match=reason):
            await read_header(pair.near, 5.0 if ends else 0.05, required=True)
        pair.far.close()
        pair.near.close()


async def test_a_header_counts_that_came_before_this_process_could_read_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause: the deadline passes, and the loop looks at its timers before it looks at its sockets."""

    async def unseen(sock: socket.socket) -> None:
        pair.far.sendall(LINE + b"GET")
        raise TimeoutError

    monkeypatch.setattr(preamble, "_seen", unseen)
    header = await read_header(pair.near, 5.0, required=True)
    assert header is not None and header.length == len(LINE) and pair.near.recv(10) == b"GET"


async def test_a_reset_is_an_error_of_the_connection(pair: Pair) -> None:
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.far.sendall(LINE[:10])
    pair.far.close()
    with pytest.raises((OSError, BadHeader)):
        await read_header(pair.near, 5.0, required=True)
