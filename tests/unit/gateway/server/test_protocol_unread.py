"""A client that sends but does not read: what it costs is bounded, in memory and in time."""

from __future__ import annotations

import pytest

from gateway.server.closing import STALL_SECONDS
from gateway.server.protocol import MAX_PIPELINED, MAX_PIPELINED_BODY
from tests.unit.gateway.pipeline.world import BODY, CHAT
from tests.unit.gateway.server.wires import Wire, get, post


def test_no_request_begins_while_the_answers_before_it_are_not_taken() -> None:
    wire = Wire()
    wire.application.at_once = True
    wire.connection.pause_writing()
    wire.receive(get(b"/1") + get(b"/2"))
    assert wire.written == b"" and not wire.transport.reading
    wire.connection.resume_writing()
    assert wire.written == b"</1></2>" and wire.transport.reading
    wire.receive(get(b"/3"))
    assert wire.written.endswith(b"</3>")


def test_answers_that_fill_the_buffer_stop_those_that_wait() -> None:
    wire = Wire()
    wire.receive(b"".join(get(b"/%d" % i) for i in range(4)))
    wire.application.at_once = True
    wire.connection.pause_writing()
    wire.application.handlers[0].answer()
    assert wire.written == b"</0>"
    wire.connection.resume_writing()
    assert wire.written == b"</0></1></2></3>"


def test_a_large_body_that_waits_is_the_last_one_read() -> None:
    wire = Wire()
    wire.receive(get(b"/1"))
    wire.receive(post(b"/2", b"x" * (MAX_PIPELINED_BODY + 1)))
    assert not wire.transport.reading
    wire.application.handlers[0].answer()
    assert wire.transport.reading
    wire.application.handlers[1].answer()
    assert wire.written == b"</1></2>"


def test_many_bodies_that_wait_count_together() -> None:
    wire = Wire()
    wire.receive(get(b"/0"))
    part = MAX_PIPELINED_BODY // 4
    for i in range(1, 5):
        wire.receive(post(b"/%d" % i, b"x" * part))
    assert wire.transport.reading
    wire.receive(post(b"/5", b"x"))
    assert not wire.transport.reading
    wire.application.handlers[0].answer()
    assert wire.transport.reading
    for i in range(1, 6):
        wire.application.handlers[i].answer()
    assert wire.written == b"</0></1></2></3></4></5>"


def test_an_inference_is_not_started_for_a_client_that_does_not_read() -> None:
    wire = Wire()
    wire.connection.pause_writing()
    wire.receive(post(CHAT, BODY))
    assert wire.world.engine.calls == []
    wire.connection.resume_writing()
    wire.world.call.answer()
    assert wire.status == 200


def test_a_deadline_does_not_run_while_it_is_us_who_do_not_read() -> None:
    wire = Wire(body_timeout=5.0)
    wire.receive(b"".join(get(b"/%d" % i) for i in range(MAX_PIPELINED)))
    whole = post(b"/last", b"body")
    wire.receive(whole[:-1])
    assert not wire.transport.reading
    now = wire.plane.now + 6.0
    wire.at(now)
    assert wire.written == b""
    wire.application.handlers[0].answer()
    assert wire.transport.reading
    wire.at(now + 4.0)
    wire.receive(whole[-1:])
    for i in range(1, MAX_PIPELINED + 1):
        wire.application.handlers[i].answer()
    assert wire.written.endswith(b"</last>")


@pytest.mark.parametrize("waiting", [b"", get(b"/2"), post(b"/2", b"body")[:-1], get(b"/2")[:-1], get(b"/2") + get(b"/3")[:-1]])
def test_a_client_that_never_reads_loses_its_connection(waiting: bytes) -> None:
    wire = Wire()
    limits = wire.connection.limits
    wire.receive(get(b"/1"))
    wire.connection.pause_writing()
    wire.transport.unsent = 100_000
    wire.application.handlers[0].answer()
    wire.receive(waiting)
    now = wire.plane.now
    for seconds in (limits.body_timeout + limits.header_timeout + limits.keep_alive_timeout, 1, STALL_SECONDS + 1, STALL_SECONDS + 1):
        now += seconds
        wire.at(now)
    assert wire.transport.aborted
    assert len(wire.application.handlers) == 1


@pytest.mark.parametrize("behind", [b"", b"NONSENSE\r\n\r\n"])
def test_a_request_that_waited_for_its_client_to_read_has_its_own_time(behind: bytes) -> None:
    wire = Wire()
    wire.receive(get(b"/1"))
    wire.connection.pause_writing()
    wire.receive(post(CHAT, BODY) + behind)
    wire.application.handlers[0].answer()
    wire.connection.resume_writing()
    wire.at(wire.plane.now + wire.connection.limits.keep_alive_timeout + 1)
    wire.world.call.answer()
    assert wire.written.startswith(b"</1>HTTP/1.1 200") and wire.written.count(b"HTTP/1.1 400") == bool(behind)


def test_a_client_that_reads_slowly_gets_everything() -> None:
    wire = Wire()
    wire.connection.pause_writing()
    wire.transport.unsent = 2_000_000
    wire.receive(get(b"/1", b"connection: close"))
    wire.connection.resume_writing()
    wire.connection.pause_writing()
    wire.application.handlers[0].answer()
    now = wire.plane.now
    for _ in range(10):
        now += STALL_SECONDS + 1
        wire.transport.unsent -= 100_000
        wire.at(now)
    assert wire.transport.closed and not wire.transport.aborted
    wire.at(now + STALL_SECONDS + 1)
    assert wire.transport.aborted


def test_nothing_is_started_once_the_connection_closes() -> None:
    wire = Wire()
    wire.connection.pause_writing()
    wire.receive(get(b"/1"))
    wire.connection.shutdown()
    assert wire.transport.closed
    wire.connection.resume_writing()
    assert not wire.application.handlers


def test_an_http_1_0_client_is_never_sent_a_100() -> None:
    wire = Wire()
    head, _, _ = post(CHAT, BODY, b"expect: 100-continue").partition(b"\r\n\r\n")
    wire.receive(head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n")
    assert wire.written == b""
    wire.receive(BODY)
    wire.world.call.answer()
    assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
