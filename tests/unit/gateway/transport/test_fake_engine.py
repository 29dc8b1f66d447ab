"""The scripted engine does what its script says: tests of faults rest on it."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from gateway.core.ports import EngineClient
from gateway.transport.pool import EndpointClient
from tests.fakes.answers import Step, parse_script
from tests.fakes.engine import FakeEngine
from tests.fakes.receiver import Sink
from tests.unit.gateway.transport.conftest import BODY, HEAD, STREAM, Way


def test_scripts_are_written_in_one_line() -> None:
    steps = parse_script("status:code=503,retry_after=2*2; reset:at=mid,chunks=8; normal")
    assert steps == [*[Step("status", code=503, retry_after="2")] * 2, Step("reset", at="mid", chunks=8), Step()]
    for wrong in ("explode", "reset:at=nowhere", "normal:speed=9"):
        with pytest.raises((ValueError, AttributeError)):
            parse_script(wrong)


async def test_scripted_answers_come_in_order_or_by_model() -> None:
    async with FakeEngine("status:code=500; status:code=429") as engine:
        client: EngineClient = EndpointClient(engine.address)
        seen = []
        for body in (BODY, b'{"model":"fake:status:code=418"}', BODY, BODY):
            sink = Sink()
            client.send(HEAD, body, sink, 60, 60)
            await sink.finished()
            assert sink.head is not None
            seen.append(sink.head.status)
        assert seen == [500, 418, 429, 200]
        await client.aclose()


async def test_a_stream_has_the_shape_of_openais(tcp: Way) -> None:
    body = b'{"model":"m1","stream":true,"stream_options":{"include_usage":true},"messages":[]}'
    events = [e.removeprefix(b"data: ") for e in (await tcp.get(body, fake="normal:chunks=2")).body.split(b"\n\n") if e]
    assert events.pop() == b"[DONE]"
    parsed = [json.loads(e) for e in events]
    assert [c["delta"].get("content") for p in parsed for c in p["choices"]] == ["", " tok0", " tok1", None]
    assert parsed[-2]["choices"][0]["finish_reason"] == "stop"
    assert parsed[-1]["usage"]["completion_tokens"] == 2


async def test_health_and_models(tcp: Way) -> None:
    for path, key in ((b"/health", "state"), (b"/v1/models", "data")):
        sink = Sink()
        tcp.client.send(b"GET %b HTTP/1.1\r\n" % path, b"", sink, 60, 60)
        assert key in json.loads((await sink.finished()).body)


async def test_capacity_is_bounded() -> None:
    async with FakeEngine(slots=2, queue=1, default=Step("hold")) as engine:
        client = EndpointClient(engine.address)
        way = Way(engine, client)
        sinks = [way.send() for _ in range(5)]
        await engine.until(lambda: engine.refused == 2 and engine.holding == 2)
        engine.release()
        await engine.until(lambda: engine.holding == 1)  # the one that waited
        engine.release()
        for sink in sinks:
            await sink.finished()
        statuses = sorted(sink.head.status for sink in sinks if sink.head)
        assert statuses == [200, 200, 200, 503, 503]
        assert (engine.most_busy, engine.refused) == (2, 2)
        await client.aclose()


async def test_a_full_engine_still_answers_its_health_check() -> None:
    async with FakeEngine("hold", slots=1) as engine:
        client = EndpointClient(engine.address)
        held = Way(engine, client).send()
        await engine.until(lambda: engine.holding == 1)
        probe = Sink()
        client.send(b"GET /health HTTP/1.1\r\n", b"", probe, 60, 60)
        assert json.loads((await probe.finished()).body)["in_use"] == 1
        assert probe.head is not None and probe.head.status == 200
        engine.release()
        await held.finished()
        await client.aclose()


async def test_a_slow_accept_delays_the_answer_only() -> None:
    async with FakeEngine(accept=False) as engine:
        client = EndpointClient(engine.address)
        sink = Way(engine, client).send(STREAM)
        assert not sink.over and engine.connections == 0
        engine.start_accepting()
        await sink.finished()
        await client.aclose()


async def test_a_reset_takes_nothing_from_a_peer_that_is_slow_to_read() -> None:
    async with FakeEngine() as engine:
        with socket.create_connection(("127.0.0.1", int(engine.address.rpartition(":")[2]))) as peer:
            peer.sendall(b"%bhost: a\r\nx-fake: reset:at=mid\r\ncontent-length: %d\r\n\r\n%b" % (HEAD, len(STREAM), STREAM))
            await engine.until(lambda: bool(engine.requests) and engine.requests[0].done is not None)
            await asyncio.sleep(3 * Step().linger)
            heard = b""
            with pytest.raises(ConnectionResetError):
                while data := await asyncio.to_thread(peer.recv, 65536):
                    heard += data
        assert heard.startswith(b"HTTP/1.1 200 ") and b" tok0" in heard
