"""The reading half of a connection by itself: which requests bytes become, and where reading ends."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.pipeline.exchange import Exchange
from gateway.server.protocol import Connection
from gateway.server.reading import LOWERED, NEVER, RequestReader
from gateway.server.request import ParsedRequest
from gateway.server.states import BETWEEN, BODY, HEAD, OVER
from tests.unit.gateway.pipeline.world import BODY as CHAT_BODY
from tests.unit.gateway.pipeline.world import CHAT, World
from tests.unit.gateway.server.wires import Wire, get, post


class Heard(RequestReader):
    """Keeps what it hears. `refuse`: refuses every request at its head."""

    def __init__(self, refuse: bool = False) -> None:
        super().__init__(World().plane)
        self.heads: list[ParsedRequest] = []
        self.bodies: list[bytes] = []
        self.refuse = refuse

    def head_read(self, request: ParsedRequest) -> None:
        self.heads.append(request)
        if self.refuse:
            raise self.rejected(RequestError("No.", code="no"))

    def body_read(self, request: ParsedRequest, body: bytes) -> None:
        self.bodies.append(body)


@given(st.lists(st.sampled_from([get(b"/a"), post(b"/b", b"body"), post(b"/c", b"")]), min_size=1, max_size=5), st.data())
def test_requests_are_the_same_however_they_are_cut(requests: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = Heard()
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        assert reader.parse(stream[a:b]) is None
    assert [request.raw_path for request in reader.heads] == [request.split(b" ")[1] for request in requests]
    assert reader.bodies == [request.partition(b"\r\n\r\n")[2] for request in requests]
    assert (reader.reading, reader.due, reader.request) == (BETWEEN, NEVER, None)


def test_where_a_request_is_cut_shows_in_the_state() -> None:
    reader = Heard()
    whole = post(b"/x", b"body")
    reader.parse(whole[:10])
    assert reader.reading == HEAD and reader.in_request
    reader.parse(whole[10:-1])
    assert reader.reading == BODY and reader.in_request and reader.request is reader.heads[0]
    reader.parse(whole[-1:])
    assert reader.reading == BETWEEN and not reader.in_request


@pytest.mark.parametrize(
    "spelt", [*sorted(LOWERED), b"AUTHORIZATION", b"contenT-type", b"X-Request-ID", b"X-Else", b"x_else", b"X_Api-Key"]
)
def test_a_header_is_known_by_its_name_in_lower_case(spelt: bytes) -> None:
    reader, name = Heard(), spelt.lower()
    lines = b"" if name == b"host" else b"host: a\r\n"
    value = {b"host": b"a", b"content-length": b"0", b"transfer-encoding": b"chunked"}.get(name, b"application/json")
    assert reader.parse(b"POST /x HTTP/1.1\r\n%b%b: %b\r\n\r\n" % (lines, spelt, value)) is None
    wanted = {b"host"} if b"_" in spelt else {b"host", name}
    assert set(reader.heads[0].headers) == wanted


def test_a_refused_head_ends_the_read() -> None:
    reader = Heard(refuse=True)
    refusal = reader.parse(get(b"/a") + get(b"/b"))
    assert refusal is not None and refusal.error.code == "no"
    assert [request.raw_path for request in reader.heads] == [b"/a"]


def test_nothing_is_read_once_reading_is_over() -> None:
    reader = Heard()
    reader.stop_reading()
    assert reader.parse(get(b"/a") + post(b"/b", b"body")) is None
    assert reader.reading == OVER
    assert reader.heads == [] and reader.bodies == []


def test_a_request_refused_by_its_framing_is_named() -> None:
    reader = Heard()
    refusal = reader.parse(post(b"/x", b"a", b"expect: tea"))
    assert refusal is not None and refusal.request is not None and refusal.request.raw_path == b"/x"
    assert reader.heads == []


def alive() -> list[object]:
    """What a request is made of and the garbage collector knows."""
    return [found for found in gc.get_objects() if isinstance(found, Connection | Exchange | ParsedRequest)]


@pytest.mark.parametrize("sent", [post(CHAT, CHAT_BODY)[:-5], post(CHAT, CHAT_BODY), get(b"/x") + post(CHAT, CHAT_BODY)])
def test_a_lost_connection_is_freed_without_the_garbage_collector(sent: bytes) -> None:
    wire = Wire()
    gc.collect()
    gc.disable()
    try:
        before = len(alive())
        connection, transport = wire.connect()
        connection.data_received(sent)
        assert len(alive()) > before + 1
        transport.closed = True
        connection.connection_lost(ConnectionResetError())
        wire.application.handlers.clear()
        wire.world.engine.calls.clear()
        del connection, transport
        assert len(alive()) == before
    finally:
        gc.enable()
