"""The bridge to an ASGI application: scope, body, responses, failures, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.errors import PermissionDenied
from gateway.server import asgi
from gateway.server.asgi import AsgiApp, AsgiApplication, Message, Receive, Send
from tests.fakes.receiver import until
from tests.unit.gateway.server.wires import Wire, get, post


def wire_for(app: AsgiApp, **listen: Any) -> Wire:
    wire = Wire(**listen)
    wire.state.application = AsgiApplication(app)
    return wire


def simple(status: int = 200, body: bytes = b"ok", *headers: tuple[bytes, bytes]) -> AsgiApp:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body)), *headers]})
        await send({"type": "http.response.body", "body": body})

    return app


async def finished(wire: Wire) -> Wire:
    await until(lambda: wire.connection.serving is None)
    return wire


async def test_a_response() -> None:
    wire = wire_for(simple(404, b"gone", (b"x-a", b"b")))
    wire.receive(get(b"/x", b"x-request-id: abc"))
    await finished(wire)
    head, _, body = wire.written.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 404 Not Found"
    assert {b"content-length: 4", b"x-a: b", b"x-request-id: abc"} <= set(lines)
    (overhead,) = (int(line.partition(b": ")[2]) for line in lines if line.startswith(b"x-gatehouse-overhead-us: "))
    assert overhead > 0  # microseconds since the head was read
    assert body == b"gone"
    assert not wire.transport.closed


async def test_head_and_body_are_one_write() -> None:
    wire = wire_for(simple())
    writes: list[bytes] = []
    wire.connection.send = writes.append
    wire.receive(get())
    await finished(wire)
    assert len(writes) == 1 and writes[0].endswith(b"\r\n\r\nok")


async def test_a_failure_before_the_body_is_an_error_of_its_own() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise PermissionDenied("no")

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert wire.status == 403


async def test_the_scope() -> None:
    seen: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await simple()(scope, receive, send)

    wire = wire_for(app)
    wire.receive(get(b"/a%2fb?c=%20d", b"Host-Like: evil"))
    await finished(wire)
    scope = seen[0]
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a/b", b"/a%2fb", b"c=%20d")
    assert (scope["method"], scope["type"], scope["scheme"], scope["client"]) == ("GET", "http", "http", ("192.0.2.1", 0))
    assert (b"host-like", b"evil") in scope["headers"]
    assert scope["state"]["peer"] is wire.connection.peer


async def test_the_body_is_waited_for() -> None:
    got: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        got.append(await receive())
        await simple()(scope, receive, send)

    wire = wire_for(app)
    data = post(b"/x", b"hello", b"expect: 100-continue")
    wire.receive(data[:-5])
    await until(lambda: b"100 Continue" in wire.written)
    assert got == []
    wire.receive(b"hello")
    await finished(wire)
    assert got == [{"type": "http.request", "body": b"hello", "more_body": False}]


async def test_a_body_in_pieces_is_chunked() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert b"transfer-encoding: chunked\r\n" in wire.written
    assert wire.written.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    wire = wire_for(app)
    wire.receive(get().replace(b"HTTP/1.1", b"HTTP/1.0"))
    await until(lambda: wire.transport.half_closed)
    assert b"transfer-encoding" not in wire.written and wire.written.endswith(b"\r\n\r\nonetwo"), "the connection ends it"


async def test_a_client_that_does_not_read_holds_the_application() -> None:
    sent: list[int] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for i in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": i < 2})
            sent.append(i)

    wire = wire_for(app)
    wire.receive(get())
    wire.connection.pause_writing()
    await until(lambda: b"1\r\nx" in wire.written)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == []
    wire.connection.resume_writing()
    await finished(wire)
    assert sent == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "status", "code"), [(PermissionDenied("No."), 403, "policy_denied"), (ZeroDivisionError("secret"), 500, "internal_error")]
)
async def test_an_application_that_fails(error: Exception, status: int, code: str) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        raise error

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert wire.status == status
    assert json.loads(wire.written.partition(b"\r\n\r\n")[2])["error"]["code"] == code
    assert b"secret" not in wire.written
    assert wire.transport.half_closed


async def test_an_application_that_fails_in_the_middle_cuts_the_connection() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        raise ZeroDivisionError

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert wire.written.count(b"HTTP/1.1") == 1
    assert wire.transport.half_closed


async def test_an_application_that_says_nothing() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        return None

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert wire.status == 500


async def test_an_application_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "DEADLINE_SECONDS", 0.0)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    wire = wire_for(app)
    wire.receive(get())
    await finished(wire)
    assert wire.status == 500


async def test_a_client_that_leaves() -> None:
    got: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        got.append(await receive())
        await simple()(scope, receive, send)

    wire = wire_for(app)
    wire.receive(post(b"/x", b"hello")[:-1])
    wire.transport.closed = True
    wire.connection.connection_lost(None)
    await until(lambda: not len(wire.plane.tasks))
    assert got == [{"type": "http.disconnect"}]
    assert wire.written == b""


async def test_a_body_too_slow_is_refused_and_the_application_hears_no_body() -> None:
    got: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        got.append(await receive())
        await simple()(scope, receive, send)

    wire = wire_for(app, body_timeout=30.0)
    wire.receive(post(b"/x", b"hello")[:-1])
    wire.at(1030.0)
    await until(lambda: not len(wire.plane.tasks))
    assert wire.status == 408
    assert got == [{"type": "http.disconnect"}]
    assert wire.written.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("early", [True, False])
async def test_an_answer_before_the_body_closes_the_connection(early: bool) -> None:
    wire = wire_for(simple())
    data = post(b"/x", b"hello")
    wire.receive(data[:-1] if early else data)
    await finished(wire)
    assert (b"connection: close\r\n" in wire.written) is early
    assert wire.transport.half_closed is early


def lines(wire: Wire) -> Callable[[], int]:
    return lambda: wire.written.count(b"HTTP/1.1 200")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await simple(200, scope["raw_path"])(scope, receive, send)

    wire = wire_for(app)
    wire.receive(get(b"/1") + get(b"/2") + get(b"/3"))
    await until(lambda: lines(wire)() == 3)
    assert wire.written.index(b"\r\n\r\n/1") < wire.written.index(b"\r\n\r\n/2") < wire.written.index(b"\r\n\r\n/3")


async def test_a_client_that_leaves_before_the_end_is_no_failure_of_the_application(caplog: pytest.LogCaptureFixture) -> None:
    begun, left, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": True})
        begun.set()
        await left.wait()
        await send({"type": "http.response.body", "body": b""})
        over.set()

    wire = wire_for(app)
    wire.receive(get())
    await begun.wait()
    wire.connection.connection_lost(None)
    left.set()
    await over.wait()
    await asyncio.sleep(0)
    assert caplog.records == []
