"""Requests that ask for another protocol are served in this one."""

from __future__ import annotations

import pytest

from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT
from tests.unit.gateway.server.wires import Wire, get, post

H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
"""What Java's HttpClient sends with the first request of each connection."""
SIZED = b"POST " + CHAT + b" HTTP/1.1\r\nhost: a\r\n" + H2C + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"POST " + CHAT + b" HTTP/1.1\r\nhost: a\r\n" + H2C + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
)


@pytest.mark.parametrize("request_bytes", [SIZED, CHUNKED], ids=["sized", "chunked"])
def test_the_body_arrives_wherever_the_reads_end(request_bytes: bytes) -> None:
    for cut in range(1, len(request_bytes) + 1):
        wire = Wire()
        for part in (request_bytes[:cut], request_bytes[cut:]):
            if part:
                wire.receive(part)
        (call,) = wire.world.engine.calls
        assert call.request_body == BODY
        wire.world.call.answer()
        assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n") and wire.written.endswith(ANSWER)
        assert wire.written.count(b"HTTP/1.1 ") == 1 and not wire.transport.closed


def test_what_follows_on_the_connection_is_read_as_ever() -> None:
    wire = Wire()
    websocket = b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    wire.receive(get(b"/first") + SIZED + websocket + post(b"/second", b"{}") + CHUNKED + websocket + get(b"/third"))
    handlers, calls = wire.application.handlers, wire.world.engine.calls
    handlers[0].answer()
    calls[0].answer()
    handlers[1].answer()
    handlers[2].answer()
    calls[1].answer()
    handlers[3].answer()
    handlers[4].answer()
    assert [handler.request.raw_path for handler in handlers] == [b"/first", b"/socket", b"/second", b"/socket", b"/third"]
    assert [call.request_body for call in calls] == [BODY, BODY]
    assert [handler.body for handler in handlers] == [b"", b"", b"{}", b"", b""]
    assert wire.connection.serving is None and not wire.transport.closed


@pytest.mark.parametrize(
    "broken",
    [
        SIZED.replace(b"content-length: ", b"content-length: 1\r\ncontent-length: "),
        CHUNKED.replace(b"\r\n0\r\n\r\n", b"X\r\n0\r\n\r\n"),
        CHUNKED.replace(b"0\r\n\r\n", b"0\r\ntrailer: x\r\n\r\n"),
        CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: 3\r\ntransfer-encoding: chunked"),
        CHUNKED.replace(b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked"),
    ],
)
def test_the_rules_for_bodies_hold(broken: bytes) -> None:
    wire = Wire()
    wire.receive(broken)
    wire.receive(get(b"/after"))
    assert wire.status == 400 and wire.written.count(b"HTTP/1.1 ") == 1
    assert wire.transport.half_closed
    assert not wire.application.handlers and not wire.world.engine.calls and wire.plane.exchanges == set()


def test_a_large_body_is_refused() -> None:
    wire = Wire(max_body_bytes=len(BODY) - 1)
    wire.receive(CHUNKED)
    assert wire.status == 413 and not wire.world.engine.calls
