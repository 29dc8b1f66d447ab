"""The reading half of a connection by itself: which requests bytes become, and where reading ends."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.core.errors import RequestError
from gateway.pipeline.exchange import Exchange
from gateway.server.protocol import Connection
from gateway.server.reading import LOWERED, NEVER, RequestReader
from gateway.server.request import ParsedRequest
from gateway.server.states import BETWEEN, BODY, HEAD, OVER
from gateway.transport.repeated import TRIES
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


HEADS = (
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\naccept: */*\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\nContent-Length:%d\r\nx-request-id: one\r\n\r\n",
    b"POST /a?q HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\nconnection: close\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\nexpect: 100-continue\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d \r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST /v1/files HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n",
)


def heard(reader: Heard, reads: list[bytes]) -> list[object]:
    """What a connection hears of these reads."""
    refusal = None
    for data in reads:
        refusal = refusal or reader.parse(data)
    heads = [
        (one.method, one.raw_path, one.query, one.headers, one.keep_alive, one.bound, one.streams, one.complete) for one in reader.heads
    ]
    given = [one.request_id for one in reader.heads if b"x-request-id" in one.headers]
    parts = [b"".join(one.parts) for one in reader.heads]
    told = None if refusal is None else (refusal.error.code, str(refusal.error))
    return [heads, given, parts, reader.bodies, told, reader.reading, reader.due == NEVER, reader.request is None]


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 1, 1, *range(2, len(HEADS))]), st.binary(max_size=12)), min_size=1, max_size=8),
    st.booleans(),
    st.data(),
)
def test_a_head_that_comes_again_says_what_the_parser_would(requests: list[tuple[int, bytes]], whole: bool, data: st.DataObject) -> None:
    messages = [HEADS[head] % len(body) + body for head, body in requests]
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = messages if whole else [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parsed = Heard()
    parsed._tries = 0  # nothing is remembered
    assert heard(Heard(), reads) == heard(parsed, reads)


def fed(reader: Heard) -> list[bytes]:
    """Takes the parser's place: what it is given from now on."""

    class Spy:
        def __init__(self, parser: Any) -> None:
            self._parser = parser

        def feed_data(self, data: bytes) -> None:
            seen.append(data)
            self._parser.feed_data(data)

    seen: list[bytes] = []
    reader.parser = Spy(reader.parser)
    return seen


def test_the_parser_sees_a_head_once() -> None:
    reader = Heard()
    reader.parse(HEADS[0] % 4 + b"body")
    seen = fed(reader)
    reader.parse(HEADS[0] % 6 + b"longer")
    assert reader.parse(HEADS[0] % 4 + b"bo") is None and reader.in_request
    reader.parse(b"dy" + HEADS[0] % 3 + b"one" + HEADS[0] % 3 + b"two")
    assert seen == [] and reader.bodies == [b"body", b"longer", b"body", b"one", b"two"] and reader.due == NEVER
    first, *others = reader.heads
    assert {one.headers[b"content-length"] for one in others} == {b"6", b"4", b"3"} and first.headers[b"content-length"] == b"4"
    assert len({one.request_id for one in reader.heads}) == 5
    assert len({id(one.headers) for one in reader.heads}) == 5


def test_a_known_head_whose_body_is_too_large_is_refused() -> None:
    reader = Heard()
    reader.parse(HEADS[0] % 4 + b"body")
    refusal = reader.parse(HEADS[0] % 99_999_999 + b"x")
    assert refusal is not None and refusal.error.status == 413


def test_a_known_head_is_parsed_again_under_other_limits() -> None:
    reader = Heard()
    reader.parse(HEADS[0] % 4 + b"body")
    reader.limits = structs.replace(reader.limits, max_headers=1)
    refusal = reader.parse(HEADS[0] % 4 + b"body")
    assert refusal is not None and refusal.error.status == 431


def test_a_client_whose_heads_differ_is_not_compared_for_ever() -> None:
    reader = Heard()
    for number in range(TRIES + 1):
        assert reader._tries == TRIES - number if number < TRIES else reader._tries == 0
        reader.parse(b"POST /a HTTP/1.1\r\nhost: h\r\ntraceparent: %d\r\ncontent-length: 1\r\n\r\nx" % number)
    assert reader._known is None


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
