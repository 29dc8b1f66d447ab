"""The connection over a fake transport: order, bounds, deadlines, refusals, backpressure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.core.errors import GatehouseError, Overloaded
from gateway.server.closing import LINGER_SECONDS
from gateway.server.protocol import MAX_PIPELINED, MAX_WAITING
from gateway.server.reading import NEVER
from gateway.server.refusals import plain_error
from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT, DONE, SSE_HEAD, STREAM_BODY, chunk
from tests.unit.gateway.server.wires import Transport, Wire, get, post


def code(wire: Wire) -> str:
    return str(json.loads(wire.written.rpartition(b"\r\n\r\n")[2])["error"]["code"])


# --- requests and their order


def test_a_request_that_is_no_inference_goes_to_the_application() -> None:
    wire = Wire()
    wire.receive(get(b"/livez?a=1", b"x-one: 1", b"X-Two: 2", b"x-two: 3"))
    (handler,) = wire.application.handlers
    request = handler.request
    assert (request.method, request.raw_path, request.query) == (b"GET", b"/livez", b"a=1")
    assert request.headers == {b"host": b"a", b"x-one": b"1", b"x-two": b"2, 3"}
    assert handler.body == b""
    handler.answer()
    assert wire.written == b"</livez>"
    assert not wire.transport.closed
    assert wire.server_state.total_requests == 1


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n"])
def test_other_versions_of_http_are_refused(version: bytes, more: bytes) -> None:
    wire = Wire()
    wire.receive(b"POST " + CHAT + b" HTTP/" + version + b"\r\nhost: a\r\n" + more + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    assert wire.written.startswith(b"HTTP/1.1 400") and code(wire) == "invalid_request"
    assert wire.world.engine.calls == [] and wire.transport.half_closed


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n"])
def test_http_1_0_gets_nothing_chunked(more: bytes) -> None:
    head = b"POST " + CHAT + b" HTTP/1.0\r\nhost: a\r\n" + more
    wire = Wire()
    wire.receive(head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    wire.world.call.answer()
    assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n") and b"chunked" not in wire.written
    assert b"connection: close\r\n" in wire.written and wire.transport.half_closed, "a client of this version waits for the end"
    wire = Wire()
    wire.receive(head + b"content-length: %d\r\n\r\n" % len(STREAM_BODY) + STREAM_BODY)
    wire.world.call.head(SSE_HEAD).body(chunk("hello") + DONE).end()
    sent, _, body = wire.written.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in sent and b"transfer-encoding" not in sent and b"content-length" not in sent
    assert body == chunk("hello") + DONE and wire.transport.half_closed
    wire = Wire()
    wire.receive(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert code(wire) == "invalid_header" and wire.world.engine.calls == []


def test_an_inference_goes_straight_into_the_pipeline() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY))
    assert not wire.application.handlers
    wire.world.call.answer()
    assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n") and wire.written.endswith(ANSWER)
    assert not wire.transport.closed


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"OPTIONS"])
def test_only_a_post_is_inference(method: bytes) -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY).replace(b"POST", method, 1))
    assert len(wire.application.handlers) == 1


def test_pipelined_requests_are_answered_in_order() -> None:
    wire = Wire()
    wire.receive(get(b"/1") + post(CHAT, BODY) + get(b"/3"))
    assert [h.request.raw_path for h in wire.application.handlers] == [b"/1"]
    assert not wire.world.engine.calls
    wire.application.handlers[0].answer()
    assert len(wire.world.engine.calls) == 1
    assert len(wire.application.handlers) == 1
    wire.world.call.answer()
    wire.application.handlers[1].answer()
    first, middle = wire.written.find(b"</1>"), wire.written.find(b"HTTP/1.1 200")
    assert first == 0 < middle < wire.written.find(b"</3>")


def test_too_many_pipelined_requests_pause_the_reading() -> None:
    wire = Wire()
    wire.receive(b"".join(get(b"/%d" % i) for i in range(MAX_PIPELINED)))
    assert wire.transport.reading
    wire.receive(get(b"/last"))
    assert not wire.transport.reading
    wire.application.handlers[0].answer()
    assert wire.transport.reading
    for i in range(1, MAX_PIPELINED + 1):
        wire.application.handlers[i].answer()
    assert wire.written.endswith(b"</last>")


def test_many_pipelined_requests_need_no_stack() -> None:
    wire = Wire()
    wire.receive(get(b"/0"))
    wire.receive(b"".join(get(b"/%d" % i) for i in range(1, MAX_WAITING + 1)))
    wire.application.at_once = True
    wire.application.handlers[0].answer()
    assert wire.written == b"".join(b"</%d>" % i for i in range(MAX_WAITING + 1))
    assert wire.transport.reading


def test_many_pipelined_denials_need_no_stack() -> None:
    wire = Wire()
    wire.receive(get(b"/0"))
    wire.receive(post(CHAT, b"{}") * MAX_WAITING)
    wire.application.handlers[0].answer()
    assert wire.written.count(b"HTTP/1.1 400 ") == MAX_WAITING
    assert len(wire.world.audit.outcomes) == MAX_WAITING
    assert wire.plane.exchanges == set()


def test_more_requests_than_may_wait_are_refused() -> None:
    wire = Wire()
    wire.receive(get(b"/0"))
    wire.receive(b"".join(get(b"/%d" % i) for i in range(1, MAX_WAITING + 2)))
    wire.application.at_once = True
    wire.application.handlers[0].answer()
    assert wire.written.startswith(b"".join(b"</%d>" % i for i in range(MAX_WAITING + 1)) + b"HTTP/1.1 400")
    assert code(wire) == "invalid_request" and wire.transport.half_closed


def test_what_comes_with_the_end_of_a_last_request_is_dropped() -> None:
    """The answer is complete, and our end closed, while the rest of that read is still with the parser."""
    wire = Wire()
    wire.receive(post(CHAT, b"{}", b"connection: close")[:-2])
    wire.receive(b"{}\0")
    assert wire.written.startswith(b"HTTP/1.1 400") and wire.written.count(b"HTTP/1.1") == 1
    assert wire.transport.half_closed and not wire.transport.aborted


REQUESTS = st.lists(
    st.sampled_from([get(b"/a"), post(b"/b", b"body" * 10), post(CHAT, BODY), get(b"/c", b"x-long: " + b"x" * 500)]), min_size=1, max_size=6
)


@given(REQUESTS, st.data())
def test_how_requests_are_cut_into_reads_does_not_matter(requests: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    wire = Wire()
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if b > a:
            wire.receive(stream[a:b])
    answered = 0
    while wire.connection.serving is not None:
        serving = wire.connection.serving.raw_path
        if serving == CHAT:
            wire.world.call.answer()
        else:
            wire.application.handlers[-1].answer()
        answered += 1
    assert answered == len(requests)
    assert not wire.transport.closed


def test_a_head_within_its_bound_passes_however_it_is_cut() -> None:
    wire = Wire(max_header_bytes=1000)
    head = get(b"/x", *(b"x-%d: %b" % (i, b"v" * 80) for i in range(9)))
    assert 800 < len(head) < 1000
    for place in range(len(head)):
        wire.receive(head[place : place + 1])
    assert len(wire.application.handlers) == 1
    assert wire.written == b""


def test_what_came_before_a_head_in_the_same_read_is_not_counted_to_it() -> None:
    wire = Wire(max_header_bytes=1000)
    wire.receive(post(b"/a", b"b" * 5000) + get(b"/b")[:-2])
    wire.receive(b"\r\n")
    assert wire.written == b""
    wire.application.handlers[0].answer()
    assert len(wire.application.handlers) == 2


# --- connections


def test_connections_are_counted_per_peer_and_refused_beyond_the_bound() -> None:
    wire = Wire(max_connections_per_peer=2)
    second, _ = wire.connect()
    third, refused = wire.connect()
    other, fine = wire.connect(Transport("192.0.2.9"))
    assert refused.half_closed and b"HTTP/1.1 503" in refused.written and b"retry-after: 1\r\n" in refused.written
    assert not fine.half_closed
    third.connection_lost(None)
    second.connection_lost(None)
    assert wire.state.per_peer == {"192.0.2.1": 1, "192.0.2.9": 1}
    fourth, fine = wire.connect()
    assert not fine.half_closed
    for connection in (fourth, other, wire.connection):
        connection.connection_lost(None)
    assert wire.state.per_peer == {} and wire.state.connections == set() == wire.server_state.connections


def test_connections_that_hear_of_their_refusal_are_bounded_too() -> None:
    wire = Wire(max_connections_per_peer=2)
    more = [wire.connect() for _ in range(3)]
    assert [transport.half_closed for _, transport in more] == [False, True, True]
    connection, transport = wire.connect()
    assert transport.aborted and not transport.written
    connection.data_received(get())
    connection.connection_lost(None)
    assert wire.state.per_peer == {"192.0.2.1": 4}


def test_connections_are_bounded_in_all() -> None:
    wire = Wire(max_connections=1)
    _, refused = wire.connect(Transport("192.0.2.9"))
    assert refused.half_closed and b'"type":"overloaded_error"' in refused.written


def test_the_peer_and_its_certificate() -> None:
    wire = Wire(trusted_peers=("10.0.0.0/8",))
    connection, _ = wire.connect(Transport("10.1.2.3", b"DER"))
    assert (connection.peer.address, connection.peer.trusted, connection.peer.certificate) == ("10.1.2.3", True, b"DER")
    assert (wire.connection.peer.trusted, wire.connection.peer.certificate) == (False, None)
    assert wire.transport.limits == (64 * 1024, 16 * 1024)


def test_a_trusted_proxy_names_the_client() -> None:
    wire = Wire(trusted_peers=("192.0.2.1",))
    wire.receive(post(CHAT, BODY, b"x-forwarded-for: 6.6.6.6, 203.0.113.5"))
    assert wire.world.audit.intents[0].peer == "203.0.113.5"
    wire = Wire()
    wire.receive(post(CHAT, BODY, b"x-forwarded-for: 203.0.113.5"))
    assert wire.world.audit.intents[0].peer == "192.0.2.1"


def test_a_proxy_that_is_no_longer_trusted_names_nobody_on_a_kept_connection() -> None:
    wire = Wire(trusted_peers=("192.0.2.1",))
    named = post(CHAT, BODY, b"x-forwarded-for: 203.0.113.5")
    wire.receive(named)
    wire.world.call.answer()
    spec = wire.world.snapshot.spec
    wire.world.snapshot.spec = structs.replace(spec, listen=structs.replace(spec.listen, trusted_peers=("192.0.2.9",)))
    wire.receive(named)
    assert [intent.peer for intent in wire.world.audit.intents] == ["203.0.113.5", "192.0.2.1"]


def test_two_headers_of_a_proxy_that_name_different_clients_are_refused() -> None:
    wire = Wire(trusted_peers=("192.0.2.1",), forwarding="either")
    wire.receive(post(CHAT, BODY, b"forwarded: for=203.0.113.5;proto=https"))
    assert wire.world.audit.intents[0].peer == "203.0.113.5"
    wire = Wire(trusted_peers=("192.0.2.1",), forwarding="either")
    wire.receive(post(CHAT, BODY, b"forwarded: for=203.0.113.5\r\nx-forwarded-for: 203.0.113.6"))
    assert b"HTTP/1.1 400" in wire.transport.written and b"ambiguous_forwarding" in wire.transport.written and not wire.world.audit.intents


def test_a_client_that_leaves() -> None:
    wire = Wire()
    wire.receive(post(CHAT, STREAM_BODY) + get(b"/next"))
    wire.world.call.head(SSE_HEAD).body(chunk("a"))
    wire.transport.closed = True
    wire.connection.connection_lost(None)
    assert wire.world.call.cancelled
    assert wire.world.outcome.outcome == "cancelled"
    assert not wire.application.handlers
    assert wire.plane.exchanges == set()


def test_a_client_that_leaves_in_the_middle_of_a_body() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY)[:-5])
    wire.transport.closed = True
    wire.connection.connection_lost(ConnectionResetError())
    assert wire.world.outcome.outcome == "cancelled"


# --- deadlines


def test_a_head_that_comes_too_slowly() -> None:
    wire = Wire(header_timeout=10.0)
    wire.receive(b"GET / HTTP/1.1\r\n")
    wire.at(1009.9)
    assert wire.written == b""
    wire.at(1010.0)
    assert (wire.status, code(wire)) == (408, "request_timeout")
    assert wire.transport.half_closed


def test_bytes_that_trickle_do_not_move_the_deadline() -> None:
    wire = Wire(header_timeout=10.0)
    for i, byte in enumerate(b"GET / HTTP"):
        wire.plane.now = 1000.0 + i
        wire.receive(bytes([byte]))
    wire.at(1010.0)
    assert wire.status == 408


def test_a_connection_that_never_says_anything_is_closed() -> None:
    wire = Wire(header_timeout=10.0)
    wire.at(1010.0)
    assert wire.transport.closed
    assert wire.written == b""


def test_a_body_that_comes_too_slowly() -> None:
    wire = Wire(body_timeout=30.0)
    wire.receive(post(CHAT, BODY)[:-5])
    wire.at(1029.9)
    assert wire.written == b""
    wire.at(1030.0)
    assert wire.status == 408
    assert wire.plane.exchanges == set()
    assert wire.world.outcome.code == "request_timeout"


def test_an_idle_connection_is_closed_without_a_word() -> None:
    wire = Wire(keep_alive_timeout=75.0)
    wire.receive(get())
    wire.at(5000.0)
    assert not wire.transport.closed, "the answer may take its time"
    wire.application.handlers[0].answer()
    wire.at(5074.9)
    assert not wire.transport.closed
    wire.at(5075.0)
    assert wire.transport.closed
    assert wire.written == b"</x>"


def test_a_new_request_on_an_idle_connection_has_its_own_deadline() -> None:
    wire = Wire(keep_alive_timeout=75.0, header_timeout=10.0)
    wire.receive(get())
    wire.application.handlers[0].answer()
    wire.plane.now = 1074.0
    wire.receive(b"GET")
    wire.at(1083.9)
    assert not wire.transport.closed and not wire.transport.half_closed
    wire.at(1084.0)
    assert wire.status == 408


def test_a_refused_connection_lingers_and_is_closed() -> None:
    wire = Wire()
    wire.receive(b"BROKEN\r\n\r\n")
    wire.receive(b"x" * 100_000)
    assert not wire.transport.closed
    wire.at(1000.0 + LINGER_SECONDS)
    assert wire.transport.closed
    assert wire.written.count(b"HTTP/1.1") == 1


def test_a_transport_that_cannot_half_close_is_closed() -> None:
    wire = Wire()
    wire.transport.can_eof = False
    wire.receive(b"BROKEN\r\n\r\n")
    assert wire.transport.closed


# --- the end of an answer


@pytest.mark.parametrize("version", [b"HTTP/1.1\r\nconnection: close", b"HTTP/1.0"])
def test_a_connection_that_is_not_kept(version: bytes) -> None:
    wire = Wire()
    wire.receive(b"GET /x " + version + b"\r\nhost: a\r\n\r\n")
    assert not wire.application.handlers[0].keep_alive
    wire.application.handlers[0].answer()
    assert wire.transport.half_closed


def test_an_answer_before_the_body_closes_after_lingering() -> None:
    wire = Wire()
    wire.world.identity.caller = None
    wire.receive(post(CHAT, BODY)[:-5])
    assert wire.status == 401
    assert b"connection: close\r\n" in wire.written
    assert wire.transport.half_closed
    wire.receive(BODY[-5:])
    wire.at(1002.0)
    assert wire.transport.closed
    assert wire.written.count(b"HTTP/1.1") == 1


def test_a_body_is_asked_for_once_the_caller_is_known() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY, b"expect: 100-continue")[: -len(BODY)])
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.receive(BODY)
    wire.world.call.answer()
    assert b"HTTP/1.1 200 OK" in wire.written
    wire = Wire()
    wire.world.identity.caller = None
    wire.receive(post(CHAT, BODY, b"expect: 100-continue")[: -len(BODY)])
    assert b"100 Continue" not in wire.written


# --- backpressure


def test_a_client_that_does_not_read_pauses_its_handler() -> None:
    wire = Wire()
    wire.receive(get())
    wire.connection.pause_writing()
    wire.connection.resume_writing()
    assert wire.application.handlers[0].events == ["pause", "resume"]


def test_a_client_that_does_not_read_pauses_the_engine() -> None:
    wire = Wire()
    wire.receive(post(CHAT, STREAM_BODY))
    wire.connection.pause_writing()
    assert wire.world.call.paused
    wire.connection.resume_writing()
    assert not wire.world.call.paused


# --- shutdown


def test_shutdown_closes_an_idle_connection() -> None:
    wire = Wire()
    wire.connection.shutdown()
    assert wire.transport.closed


def test_shutdown_lets_an_answer_end() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY))
    wire.connection.shutdown()
    assert not wire.transport.closed
    wire.receive(get(b"/late"))
    wire.world.call.answer()
    assert wire.written.endswith(ANSWER)
    assert b"connection: close\r\n" in wire.written
    assert wire.transport.half_closed
    assert not wire.application.handlers


def test_shutdown_lets_a_request_that_is_being_received_end() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY)[:-5])
    wire.connection.shutdown()
    wire.receive(BODY[-5:] + get(b"/late"))
    wire.world.call.answer()
    assert wire.written.endswith(ANSWER)
    assert wire.transport.half_closed
    assert not wire.application.handlers


def test_a_drain_ends_a_stream_with_an_error() -> None:
    wire = Wire()
    wire.receive(post(CHAT, STREAM_BODY))
    wire.world.call.head(SSE_HEAD).body(chunk("a"))
    for exchange in list(wire.plane.exchanges):
        exchange.cancel(Overloaded("The gateway is shutting down."))
    assert wire.written.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert wire.world.call.cancelled


def test_denials_of_broken_requests_are_counted() -> None:
    wire = Wire()
    wire.receive(b"BROKEN\r\n\r\n")
    assert wire.world.metrics.denials == {(400, "invalid_request"): 1}


def test_the_deadline_of_a_served_connection_is_never() -> None:
    wire = Wire()
    wire.receive(get())
    assert wire.connection.due == NEVER


def test_a_plain_error_is_a_whole_response() -> None:
    error = GatehouseError("No.", code="c", status=503, retry_after=0.0301, headers=(("x-a", "b"),))
    head, _, body = plain_error(error, b"DATE", b"ID").partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 503 Service Unavailable"
    assert set(lines[1:]) == {
        b"date: DATE", b"content-type: application/json", b"content-length: %d" % len(body), b"x-request-id: ID",
        b"x-gatehouse-overhead-us: 0", b"x-a: b", b"retry-after: 1", b"retry-after-ms: 31", b"connection: close",
    }  # fmt: skip
    assert json.loads(body)["error"]["message"] == "No."
