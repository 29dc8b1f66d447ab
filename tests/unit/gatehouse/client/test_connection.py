"""Faults on the way to the gateway, in both forms: what is sent again, what is not, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.connection import Connection
from gatehouse.client.errors import AdminError, ConnectionFailed

READ, WRITE = Call("GET", "/tenants"), Call("POST", "/tenants", body={})
Handler = Callable[[httpx.Request], httpx.Response]


def answering(*answers: httpx.Response | Exception) -> tuple[Handler, list[httpx.Request]]:
    """A server that gives these answers one after the other; the last for ever."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        answer = answers[min(len(seen), len(answers) - 1)]
        seen.append(request)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    return handler, seen


def ask(asynchronous: bool, handler: Handler, call: Call, how: str = "json") -> Any:
    transport = httpx.MockTransport(handler)
    if not asynchronous:
        connection = Connection("http://127.0.0.1:9", "key", 5.0, 2, True, transport)
        with connection.http:
            return connection.json(call) if how == "json" else list(getattr(connection, how)(call))

    async def run() -> Any:
        connection = AsyncConnection("http://127.0.0.1:9", "key", 5.0, 2, True, transport)
        async with connection.http:
            return await connection.json(call) if how == "json" else [part async for part in getattr(connection, how)(call)]

    return asyncio.run(run())


BUSY = httpx.Response(503, headers={"retry-after": "0"}, json={"detail": "busy", "code": "overloaded"})
FINE = httpx.Response(200, json={"items": []})
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@both
def test_a_read_is_sent_again_and_a_write_is_not(asynchronous: bool) -> None:
    handler, seen = answering(BUSY, BUSY, FINE)
    assert ask(asynchronous, handler, READ) == {"items": []} and len(seen) == 3
    assert seen[0].headers["authorization"] == "Bearer key" and seen[0].url.path == "/admin/v1/tenants"
    handler, seen = answering(BUSY)
    with pytest.raises(AdminError, match="busy"):
        ask(asynchronous, handler, WRITE)
    assert len(seen) == 1
    handler, seen = answering(BUSY, FINE)
    assert ask(asynchronous, handler, Call("POST", "/tenants", body={}, headers={"Idempotency-Key": "k"})) and len(seen) == 2


@both
def test_it_gives_up(asynchronous: bool) -> None:
    handler, seen = answering(BUSY)
    with pytest.raises(AdminError) as caught:
        ask(asynchronous, handler, READ)
    assert caught.value.code == "overloaded" and len(seen) == 3
    handler, seen = answering(httpx.Response(429, headers={"retry-after": "3600"}))
    with pytest.raises(AdminError) as caught:
        ask(asynchronous, handler, READ)
    assert caught.value.retry_after == 3600 and len(seen) == 1
    handler, seen = answering(httpx.Response(404, json={"detail": "There is none.", "code": "not_found"}))
    with pytest.raises(AdminError, match=r"There is none\."):
        ask(asynchronous, handler, READ)
    assert len(seen) == 1


@both
def test_a_connection_that_fails_is_told_as_such(asynchronous: bool) -> None:
    handler, seen = answering(httpx.ConnectError("refused"), FINE)
    assert ask(asynchronous, handler, READ) == {"items": []} and len(seen) == 2
    handler, seen = answering(httpx.ReadError("reset"))
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1: reset"):
        ask(asynchronous, handler, WRITE)
    assert len(seen) == 1
    for how in ("parts", "events"):
        with pytest.raises(ConnectionFailed, match="broke off"):
            ask(asynchronous, handler, READ, how)


@both
def test_something_else_answers(asynchronous: bool) -> None:
    with pytest.raises(AdminError, match="is it the admin listener"):
        ask(asynchronous, answering(httpx.Response(200, text="<html>"))[0], READ)
    assert ask(asynchronous, answering(httpx.Response(204))[0], READ) is None


@both
def test_long_answers_and_events_come_in_parts(asynchronous: bool) -> None:
    assert b"".join(ask(asynchronous, answering(httpx.Response(200, content=b"a\nb\n"))[0], READ, "parts")) == b"a\nb\n"
    stream = b': hello\n\nevent: reload\nid: 7\ndata: {"a":\ndata: 1}\n\ndata: 2\n\ndata: cut'
    events = ask(asynchronous, answering(httpx.Response(200, content=stream))[0], READ, "events")
    assert [tuple(event) for event in events] == [("reload", {"a": 1}, "7"), ("message", 2, "7")]
    for how in ("parts", "events"):
        with pytest.raises(AdminError, match="busy"):
            ask(asynchronous, answering(BUSY)[0], READ, how)
