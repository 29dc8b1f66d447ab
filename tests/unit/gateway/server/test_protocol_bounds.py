"""What a connection refuses: heads and bodies beyond their bounds, malformed requests, and everything after them."""

from __future__ import annotations

import json
import uuid

import pytest

from gateway.core.specs import CorsSpec
from gateway.pipeline.memory import UNCOUNTED
from gateway.server.reading import MOST_PARTS
from tests.fakes import http2
from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT, World
from tests.unit.gateway.server.wires import Wire, get, post


def code(wire: Wire) -> str:
    return str(json.loads(wire.written.rpartition(b"\r\n\r\n")[2])["error"]["code"])


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n"])
def test_only_http_1_1_needs_a_host(more: bytes) -> None:
    """RFC 9112, 3.2; a load balancer's check may be no more than `GET /readyz HTTP/1.0`."""
    wire = Wire()
    wire.receive(b"GET /readyz HTTP/1.0\r\n" + more + b"\r\n")
    (handler,) = wire.application.handlers
    assert handler.request.raw_path == b"/readyz" and handler.keep_alive is False
    wire = Wire()
    wire.receive(b"GET /readyz HTTP/1.1\r\n" + more + b"\r\n")
    assert code(wire) == "invalid_header" and not wire.application.handlers
    wire = Wire()
    wire.receive(b"GET /readyz HTTP/1.0\r\nhost: a/b\r\n" + more + b"\r\n")
    assert code(wire) == "invalid_header"


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"x" * 2000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %b\r\n" % (i, b"v" * 50) for i in range(50)) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: v\r\n" % i for i in range(20)) + b"\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_head_too_large(data: bytes, size: int) -> None:
    wire = Wire(max_header_bytes=1000, max_headers=12)
    for place in range(0, len(data), size):
        wire.receive(data[place : place + size])
    assert (wire.status, code(wire)) == (431, "request_too_large")
    assert wire.transport.half_closed
    assert not wire.application.handlers


@pytest.mark.parametrize("before", [b"", get(b"/a")])
def test_a_head_that_is_too_large_and_has_no_end_yet_is_refused_at_once(before: bytes) -> None:
    wire = Wire(max_header_bytes=1000)
    if before:
        wire.receive(before)
        wire.application.handlers[0].answer()
    wire.receive(b"GET / HTTP/1.1\r\nx: " + b"x" * 1000)
    assert wire.status == 431


def test_a_head_that_never_ends_is_refused_before_it_is_parsed() -> None:
    wire = Wire(max_header_bytes=1000)
    wire.receive(b"GET / HTTP/1.1\r\nx: ")
    sent = 0
    while not wire.transport.half_closed:
        wire.receive(b"x" * 100)
        sent += 100
    assert sent <= 1100


@pytest.mark.parametrize("length", [101, 10**12])
def test_a_body_that_says_it_is_too_large(length: int) -> None:
    wire = Wire(max_body_bytes=100)
    wire.receive(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % length)
    assert (wire.status, code(wire)) == (413, "request_too_large")
    assert wire.world.engine.calls == [] and wire.plane.exchanges == set()


def test_a_chunked_body_that_becomes_too_large() -> None:
    wire = Wire(max_body_bytes=100)
    wire.receive(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    assert len(wire.plane.exchanges) == 1
    for _ in range(4):
        wire.receive(b"1e\r\n" + b"x" * 30 + b"\r\n")
    assert (wire.status, code(wire)) == (413, "request_too_large")
    assert wire.plane.exchanges == set()
    assert wire.transport.half_closed


@pytest.mark.parametrize("framing", [b"e" * 100, b"1\r\na\r\n" * 20])
def test_what_stands_around_the_chunks_of_a_body_is_bounded(framing: bytes) -> None:
    wire = Wire(max_body_bytes=1000, max_header_bytes=500)
    wire.receive(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + (b"1;" if framing[:1] == b"e" else b""))
    for _ in range(30):
        wire.receive(framing)
    (handler,) = wire.application.handlers
    assert [error.status for error in handler.errors] == [413]
    assert wire.transport.half_closed


def test_a_body_in_small_chunks_passes() -> None:
    wire = Wire(max_body_bytes=1000)
    wire.receive(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(150):
        wire.receive(b"1;e=f\r\na\r\n")
    wire.receive(b"0\r\n\r\n")
    (handler,) = wire.application.handlers
    assert handler.body == b"a" * 150


@pytest.mark.parametrize("size", [UNCOUNTED - 100, UNCOUNTED + 1, 4 * UNCOUNTED])
@pytest.mark.parametrize("read", [16 * 1024, UNCOUNTED, 256 * 1024])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [CHAT, b"/x"])
def test_behind_a_large_body_the_next_request_is_read(size: int, read: int, chunked: bool, path: bytes) -> None:
    body = BODY.replace(b"hi", b"h" * size) if path == CHAT else b"x" * size
    data = post(path, body)
    if chunked:
        head = b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % path
        data = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    wire = Wire()
    for number in range(1, 4):
        for place in range(0, len(data), read):
            assert wire.transport.reading
            wire.receive(data[place : place + read])
            if path == b"/x" and place == 0:
                wire.connection.read_body()
        if path == CHAT:
            assert len(wire.world.engine.calls) == number
            wire.world.call.answer()
        else:
            wire.application.handlers.pop().answer()
        assert wire.transport.reading
        assert wire.server_state.total_requests == number


def test_a_body_at_its_bound_passes() -> None:
    wire = Wire(max_body_bytes=len(BODY))
    wire.receive(post(CHAT, BODY))
    assert len(wire.world.engine.calls) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\nhost: a\n\n" + b"GET /",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n folded: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1_0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: 1\r\nauthorization: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
def test_a_malformed_request_is_refused_and_nothing_after_it_is_read(data: bytes) -> None:
    wire = Wire()
    wire.receive(data)
    wire.receive(post(CHAT, BODY) + get(b"/after"))
    assert wire.status == 400
    assert wire.written.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in wire.written
    assert wire.transport.half_closed
    assert not wire.application.handlers and not wire.world.engine.calls


@pytest.mark.parametrize(
    "body", [b"zz\r\nxx\r\n0\r\n\r\n", b"5\r\nhelloX\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"0\r\ntrailer: x\r\n\r\n"]
)
def test_a_malformed_chunked_body_reaches_no_engine(body: bytes) -> None:
    wire = Wire()
    wire.receive(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    assert wire.status == 400
    assert wire.written.count(b"HTTP/1.1 ") == 1
    assert wire.world.engine.calls == []
    assert wire.plane.exchanges == set()


@pytest.mark.parametrize("body", [b"zz\r\n", b"1\r\nab\r\n"])
def test_a_request_refused_at_its_head_is_not_refused_again_for_its_body(body: bytes) -> None:
    wire = Wire()
    wire.world.identity.caller = None
    wire.receive(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    assert wire.status == 401
    assert wire.written.count(b"HTTP/1.1 ") == 1
    assert wire.transport.half_closed


def test_nothing_is_answered_after_the_last_answer() -> None:
    wire = Wire()
    wire.application.at_once = True
    wire.receive(get(b"/1", b"connection: close") + b"BROKEN\r\n\r\n")
    assert wire.written == b"</1>" and wire.transport.half_closed


def test_the_request_before_a_broken_one_is_answered_first() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY) + b"BROKEN\r\n\r\n" + get(b"/after"))
    assert wire.written == b""
    wire.world.call.answer()
    first, second = wire.written.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200") and first.endswith(ANSWER)
    assert second.startswith(b"400")
    assert wire.transport.half_closed
    assert not wire.application.handlers


def cut(stream: bytes, size: int) -> list[bytes]:
    return [stream[place : place + size] for place in range(0, len(stream), size)]


RTSP = post(CHAT, BODY).replace(b"HTTP/1.1", b"RTSP/1.0", 1)


@pytest.mark.parametrize("protocol", [b"RTSP/1.0", b"ICE/1.0"])
@pytest.mark.parametrize("size", [1, 10, 60, 10_000])
@pytest.mark.parametrize("before", [b"", b"\r\n"])
def test_another_protocol_is_not_served(protocol: bytes, size: int, before: bytes) -> None:
    wire = Wire()
    for data in cut(before + RTSP.replace(b"RTSP/1.0", protocol), size):
        wire.receive(data)
    assert (wire.status, code(wire)) == (400, "invalid_request")
    assert wire.world.engine.calls == [] and wire.plane.exchanges == set()
    assert wire.written.count(b"HTTP/1.1 ") == 1 and wire.transport.half_closed


@pytest.mark.parametrize("size", [1, 7, 150, 10_000])
def test_another_protocol_behind_a_request_is_not_served(size: int) -> None:
    wire = Wire()
    wire.application.at_once = True
    for data in cut(post(b"/x", b"{}") + RTSP, size):
        wire.receive(data)
    assert wire.world.engine.calls == [] and wire.plane.exchanges == set()
    assert wire.status == 400 and wire.transport.half_closed


def test_a_body_may_speak_of_another_protocol() -> None:
    wire = Wire()
    body = b'{"model":"m","messages":[{"role":"user","content":"GET /x RTSP/1.0\\r\\n"}]}'
    wire.receive(post(CHAT, body) + post(CHAT, body))
    wire.world.call.answer()
    assert wire.status == 200 and not wire.transport.half_closed


def test_a_client_that_begins_with_http_2_is_told_what_is_spoken_here() -> None:
    wire = Wire()
    wire.receive(http2.PREFACE)
    assert wire.written.startswith(b"HTTP/1.1 400 ") and b'"HTTP/2 is not supported; use HTTP/1.1."' in wire.written


def test_headers_with_underscores_are_dropped() -> None:
    wire = Wire()
    wire.receive(get(b"/x", b"x_forwarded_for: 1.2.3.4", b"good: 1"))
    assert set(wire.application.handlers[0].request.headers) == {b"host", b"good"}


@pytest.mark.parametrize(
    ("given", "kept"), [(b"abc-1.2_3", True), (b"x" * 128, True), (b"x" * 129, False), (b"a b", False), (b"", False), (b"a\xc3\xa9", False)]
)
def test_a_request_identifier_is_kept_when_it_has_the_form(given: bytes, kept: bool) -> None:
    wire = Wire()
    wire.receive(get(b"/x", b"x-request-id: " + given))
    found = wire.application.handlers[0].request.request_id
    assert (found == given) is kept
    assert kept or uuid.UUID(found.decode()).version == 4


@pytest.mark.parametrize("behind", [b"", post(CHAT, BODY)])
@pytest.mark.parametrize(
    ("line", "status"), [(b"content-type: text/plain", b"415"), (b"content-length: 9999999", b"413"), (b"expect: tea", b"400")]
)
def test_a_request_refused_by_its_head_keeps_its_identifier_and_its_page_may_read_why(behind: bytes, line: bytes, status: bytes) -> None:
    wire = Wire(World(cors=CorsSpec(origins=("https://app",))))
    length = b"" if line.startswith(b"content-length") else b"content-length: 2\r\n"
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\norigin: https://app\r\n"
        + line
        + b"\r\n"
        + length
        + b"\r\n"
    )
    wire.receive(behind + head)
    if behind:
        wire.world.call.answer()
    answer = wire.written.rpartition(b"HTTP/1.1 ")[2]
    assert answer.startswith(status)
    assert b"\r\nx-request-id: mine\r\n" in answer
    assert b"\r\naccess-control-allow-origin: https://app\r\n" in answer


@pytest.mark.parametrize(
    ("agent", "form"), [(b"python/gevent-http-client-2.3.1", b'{"error":"Encoded'), (b"curl/8", b'{"error":{"message":"Encoded')]
)
def test_a_request_refused_by_its_head_is_told_so_in_the_form_that_its_client_reads(agent: bytes, form: bytes) -> None:
    wire = Wire()
    wire.receive(post(b"/v2/models/m/infer", b"body", b"content-encoding: gzip", b"user-agent: %b" % agent))
    assert wire.written.startswith(b"HTTP/1.1 415 ") and form in wire.written


@pytest.mark.parametrize(
    "broken", [b"NONSENSE\r\n\r\n", post(b"/broken", b"body", b"expect: nonsense"), post(b"/broken", b"")[:-2] + b"a\x00: b\r\n\r\n"]
)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("reads", [1, 2])
def test_whole_requests_are_answered_before_the_broken_one_behind_them(broken: bytes, at_once: bool, reads: int) -> None:
    wire = Wire()
    wire.application.at_once = at_once
    parts = [get(b"/1") + post(b"/2", b"body") + get(b"/3"), broken + get(b"/never")]
    for data in parts if reads == 2 else [b"".join(parts)]:
        wire.receive(data)
    for number in range(0 if at_once else 3):
        assert len(wire.application.handlers) == number + 1 and b"HTTP/1.1 400" not in wire.written
        wire.application.handlers[number].answer()
    assert wire.written.startswith(b"</1></2></3>HTTP/1.1 400") and wire.written.count(b"HTTP/1.1") == 1
    assert wire.transport.half_closed and len(wire.application.handlers) == 3


def test_nothing_is_said_behind_the_answer_to_a_request_that_is_the_last() -> None:
    wire = Wire()
    wire.receive(get(b"/1", b"connection: close") + b"NONSENSE\r\n\r\n")
    wire.application.handlers[0].answer()
    assert wire.written == b"</1>" and wire.transport.half_closed


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a:\r\n"])
def test_a_header_that_is_repeated_counts_each_time_and_is_put_together_no_further(line: bytes) -> None:
    wire = Wire(max_headers=12)
    wire.receive(get(b"/x", *[line[:-2]] * 11))
    assert len(wire.application.handlers) == 1
    wire = Wire(max_headers=12)
    wire.receive(b"GET / HTTP/1.1\r\nhost: a\r\n" + line * 3000)
    assert (wire.status, code(wire)) == (431, "request_too_large") and len(wire.connection._headers.get(b"a", b"")) < 50


def test_a_body_in_tiny_chunks_is_not_kept_as_tiny_parts() -> None:
    wire = Wire()
    body = BODY[:-1] + b" " * 20_000 + b"}"
    wire.receive(b"POST " + CHAT + b" HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    request = wire.connection.request
    assert request is not None
    for at in range(0, len(body), 2):
        piece = body[at : at + 2]
        wire.receive(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert len(request.parts) < MOST_PARTS
    wire.receive(b"0\r\n\r\n")
    assert request.body == body and len(wire.world.engine.calls) == 1
