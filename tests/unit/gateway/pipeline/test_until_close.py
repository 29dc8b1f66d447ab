"""Streams without a transfer coding, for clients of HTTP/1.0."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import EngineError
from gateway.pipeline.until_close import decoded
from tests.unit.gateway.pipeline.test_inspect import deny
from tests.unit.gateway.pipeline.test_tools import guard
from tests.unit.gateway.pipeline.world import ANSWER, BODY, DONE, JSON_HEAD, SSE_HEAD, STREAM_BODY, USAGE, Client, World, chunk

OLD = {b":version": b"1.0"}


def asked(world: World, body: bytes = STREAM_BODY) -> Client:
    exchange, client = world.start(body, headers=OLD)
    exchange.keep_alive = False
    return client


def plain(client: Client) -> bytes:
    """The body, of an answer that says nothing of a coding or a length."""
    assert b"transfer-encoding" not in client.head and b"trailer" not in client.head and b"content-length" not in client.head
    return bytes(client.written).partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("guarded", [{}, {"response": [deny(mask=True)]}, {"response_tools": [guard()]}])
def test_a_stream_ends_with_the_connection(guarded: dict[str, list[object]]) -> None:
    world = World(**guarded)  # type: ignore[arg-type]
    client = asked(world)
    engine = world.call.head(SSE_HEAD).body(chunk("hel"))
    sent = plain(client)
    engine.body(chunk("lo" * 1000) + chunk("", finish="stop") + USAGE + DONE).end()
    body = plain(client)
    assert body.startswith(sent) and body.endswith(DONE) and body.count(b"data: ") >= 4
    texts = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in body.split(b"\n\n")[:-2]]
    assert "".join(texts) == "hel" + "lo" * 1000
    assert client.ends == [False] and world.outcome.outcome == "ok"


def test_a_failure_is_told_by_an_event() -> None:
    world = World()
    client = asked(world)
    world.call.head(SSE_HEAD).body(chunk("hel")).fail(EngineError("It broke."))
    assert plain(client).endswith(DONE) and b'"engine_failed"' in plain(client)


def test_what_is_no_stream_stays_as_it_is() -> None:
    world = World()
    client = asked(world, BODY)
    world.call.answer(ANSWER, JSON_HEAD)
    assert client.body == ANSWER and int(client.headers["content-length"]) == len(ANSWER)
    world.identity.caller = None
    assert asked(world).status == 401


def test_a_refusal_before_the_stream_has_a_length() -> None:
    world = World()
    client = asked(world)
    world.call.fail(EngineError("It broke."))
    assert client.status == 502 and int(client.headers["content-length"]) == len(client.body)


def test_whole_chunks_are_read() -> None:
    assert decoded(b"3\r\nabc\r\na\r\n0123456789\r\n0\r\nx-gatehouse-cost: 1 eur\r\n\r\n") == b"abc0123456789"
    assert decoded(b"0\r\n\r\n") == decoded(b"") == b""
