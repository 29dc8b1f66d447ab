"""What a connection holds of the memory budget: bodies before they are read, answers until they are taken."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import EngineError
from gateway.core.specs import LimitSpec
from gateway.core.types import Principal
from gateway.core.waiting import Signal
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from gateway.pipeline.memory import STEP, UNCOUNTED
from policies.limits import LimitRules, estimate
from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT, SSE_HEAD, STREAM_BODY, chunk
from tests.unit.gateway.server.wires import Transport, Wire, get, post

MIB = 1024 * 1024
LARGE = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * MIB)


def code(transport: Transport) -> str:
    return str(json.loads(bytes(transport.written).rpartition(b"\r\n\r\n")[2])["error"]["code"])


def head_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def test_a_body_is_reserved_before_it_is_read_and_given_back_at_the_end() -> None:
    wire = Wire()
    wire.receive(head_of(post(CHAT, LARGE)))
    memory = wire.plane.memory
    assert memory.held == memory.share("acme/api_key/k") == len(LARGE)
    assert wire.transport.reading
    wire.receive(LARGE)
    assert memory.held == len(LARGE), "the request still holds its body"
    wire.world.call.answer()
    assert wire.status == 200
    assert memory.held == 0


def test_a_small_body_is_not_counted() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY)[:-5])
    assert wire.plane.memory.held == 0 == wire.world.metrics.held_bytes()
    wire.receive(BODY[-5:])
    assert len(wire.world.engine.calls) == 1


def test_a_body_for_which_there_is_no_memory_is_refused_unread() -> None:
    wire = Wire(memory_bytes=2 * MIB, memory_share=1.0)
    connections = [wire.connect() for _ in range(3)]
    for connection, _ in connections:
        connection.data_received(head_of(post(CHAT, LARGE)))
    assert [transport.half_closed for _, transport in connections] == [False, True, True]
    assert [code(transport) for _, transport in connections[1:]] == ["overloaded", "overloaded"]
    assert b"retry-after: 1\r\n" in connections[1][1].written
    assert [(o.status, o.code) for o in wire.world.audit.outcomes] == [(503, "overloaded")] * 2


def test_a_caller_has_no_more_than_a_share() -> None:
    wire = Wire(memory_bytes=6 * MIB, memory_share=0.3)
    first, _ = wire.connect()
    first.data_received(head_of(post(CHAT, LARGE)))
    _, transport = second = wire.connect()
    second[0].data_received(head_of(post(CHAT, LARGE)))
    assert bytes(transport.written).startswith(b"HTTP/1.1 429 ") and code(transport) == "concurrency_exceeded"
    wire.world.identity.caller = Principal("other", "acme", "api_key", ("*",))
    third, transport = wire.connect()
    third.data_received(head_of(post(CHAT, LARGE)))
    assert transport.written == b""


def test_a_chunked_body_is_reserved_in_steps() -> None:
    wire = Wire(memory_bytes=MIB, memory_share=1.0)
    memory = wire.plane.memory
    wire.receive(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    assert memory.held == 0
    wire.receive(b"%x\r\n%b\r\n" % (UNCOUNTED, b"x" * UNCOUNTED))
    assert memory.held == 0
    wire.receive(b"1\r\nx\r\n")
    assert memory.held == STEP
    while not wire.transport.half_closed:
        wire.receive(b"%x\r\n%b\r\n" % (STEP, b"x" * STEP))
        assert memory.held <= MIB
    assert wire.status == 503
    assert memory.held == 0 and wire.plane.exchanges == set()


def test_nothing_is_read_of_a_large_body_until_its_sender_is_known() -> None:
    wire = Wire()
    known: Signal[Principal | None] = Signal()
    wire.world.identity.caller = known
    wire.receive(head_of(post(CHAT, LARGE)))
    assert not wire.transport.reading and wire.plane.memory.held == 0
    known.set(Principal("k", "acme", "api_key", ("*",)))
    assert wire.transport.reading and wire.plane.memory.held == len(LARGE)
    wire.receive(LARGE)
    wire.world.call.answer()
    assert wire.status == 200


def test_a_large_body_waits_unread_behind_the_request_before_it() -> None:
    wire = Wire()
    wire.receive(get(b"/x") + head_of(post(CHAT, LARGE)))
    assert not wire.transport.reading
    wire.application.handlers[0].answer()
    assert wire.transport.reading and wire.plane.memory.held == len(LARGE)
    wire.receive(LARGE)
    wire.world.call.answer()
    assert wire.status == 200


@pytest.mark.parametrize("sent", [b"", LARGE[:-1], LARGE])
def test_a_client_that_leaves_holds_nothing(sent: bytes) -> None:
    wire = Wire()
    wire.receive(head_of(post(CHAT, LARGE)))
    wire.receive(sent)
    wire.transport.closed = True
    wire.connection.connection_lost(ConnectionResetError())
    assert wire.plane.memory.held == 0


# --- answers


def large_answer() -> bytes:
    return ANSWER[:-1] + b',"filler":"%b"}' % (b"x" * MIB)


def unread(wire: Wire) -> None:
    """A large answer of which the client takes nothing."""
    wire.receive(post(CHAT, BODY))
    wire.connection.pause_writing()  # the transport says so while it takes the answer
    wire.transport.unsent = MIB
    wire.world.call.answer(large_answer())


def test_an_answer_counts_and_its_request_is_under_way_until_it_is_taken() -> None:
    wire = Wire()
    unread(wire)
    (reservation,) = wire.world.limiter.reservations
    assert wire.world.outcome.outcome == "ok"
    assert reservation.settled == [] and wire.plane.memory.held > MIB
    wire.transport.unsent = 1000
    wire.connection.resume_writing()
    assert len(reservation.settled) == 1 and wire.plane.memory.held == 0


def test_a_concurrency_limit_counts_requests_whose_answers_are_not_taken() -> None:
    wire = Wire()
    limits = LimitRules([LimitSpec(name="one", per="key", concurrent=1)])
    wire.world.snapshot.limiter = LocalLimiter(limits, BucketRegistry(), estimate=estimate)
    unread(wire)
    second, transport = wire.connect()
    second.data_received(post(CHAT, BODY))
    assert bytes(transport.written).startswith(b"HTTP/1.1 429 ") and code(transport) == "concurrency_exceeded"
    wire.connection.resume_writing()
    second.data_received(post(CHAT, BODY))
    wire.world.call.answer()
    assert b"HTTP/1.1 200 " in transport.written


def test_an_unread_answer_is_freed_when_its_client_leaves() -> None:
    wire = Wire()
    unread(wire)
    wire.transport.closed = True
    wire.connection.connection_lost(None)
    (reservation,) = wire.world.limiter.reservations
    assert len(reservation.settled) == 1 and wire.plane.memory.held == 0


def test_an_answer_that_is_taken_at_once_holds_nothing() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY))
    wire.world.call.answer(large_answer())
    (reservation,) = wire.world.limiter.reservations
    assert len(reservation.settled) == 1 and wire.plane.memory.held == 0


def test_an_answer_for_which_there_is_no_memory_is_an_error() -> None:
    wire = Wire(memory_bytes=MIB)
    wire.receive(post(CHAT, BODY))
    wire.world.call.answer(large_answer())
    assert wire.status == 503 and code(wire.transport) == "overloaded"
    assert wire.plane.memory.held == 0


def test_an_answer_counts_while_it_is_gathered() -> None:
    wire = Wire()
    wire.receive(post(CHAT, BODY))
    call = wire.world.call.head()
    call.body(b"{" + b" " * UNCOUNTED)
    assert wire.plane.memory.held == wire.plane.memory.share("acme/api_key/k") == STEP
    call.body(b" " * (3 * STEP))
    assert wire.plane.memory.held >= 3 * STEP
    call.fail(EngineError("gone"))
    assert wire.status == 502 and wire.plane.memory.held == 0


def test_an_answer_that_is_not_taken_is_cut() -> None:
    wire = Wire()
    unread(wire)
    wire.at(wire.plane.now + 59.0)
    assert not wire.transport.aborted
    wire.at(wire.plane.now + 1.0)
    assert wire.transport.aborted


def test_an_answer_that_is_taken_slowly_goes_on() -> None:
    wire = Wire()
    unread(wire)
    for _ in range(5):
        wire.transport.unsent -= 64 * 1024
        wire.at(wire.plane.now + 60.0)
        assert not wire.transport.aborted
    wire.transport.unsent -= 64 * 1024 - 1
    wire.at(wire.plane.now + 60.0)
    assert wire.transport.aborted


def test_a_stream_that_is_not_read_frees_its_engine() -> None:
    wire = Wire()
    wire.receive(post(CHAT, STREAM_BODY))
    wire.world.call.head(SSE_HEAD).body(chunk("a"))
    wire.connection.pause_writing()
    assert wire.world.call.paused
    wire.at(wire.plane.now + 59.0)
    assert not wire.transport.aborted
    wire.at(wire.plane.now + 1.0)
    assert wire.transport.aborted and wire.world.call.cancelled
    assert (wire.world.outcome.outcome, wire.world.outcome.code) == ("timeout", "client_stalled")
    assert wire.world.route.attempts[0].results[0] != "failure", "it is not the engine's fault"


def test_a_stream_may_be_paused_for_so_long_in_all() -> None:
    wire = Wire()
    wire.receive(post(CHAT, STREAM_BODY))
    wire.world.call.head(SSE_HEAD).body(chunk("a"))
    for _ in range(3):
        wire.connection.pause_writing()
        wire.at(wire.plane.now + 19.0)
        wire.connection.resume_writing()
    wire.connection.pause_writing()
    wire.at(wire.plane.now + 2.0)
    assert not wire.transport.aborted
    wire.at(wire.plane.now + 1.0)
    assert wire.transport.aborted
