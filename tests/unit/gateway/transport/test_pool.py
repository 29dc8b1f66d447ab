"""The client of an endpoint: connecting, keeping, deadlines, cancelling, closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError, EngineError, EngineTimeout, Overloaded
from gateway.core.specs import ClientTlsSpec
from gateway.transport.pool import EndpointClient
from tests.fakes.descriptors import without_descriptors
from tests.fakes.engine import FakeEngine
from tests.fakes.ports import empty_port
from tests.fakes.receiver import Sink, until
from tests.unit.gateway.transport.conftest import BODY, HEAD, STREAM, Certificates, Way

# --- connecting


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_reported_as_refused(host: str) -> None:
    with empty_port() as port:
        client = EndpointClient(f"http://{host}:{port}")
        sink = Sink()
        client.send(HEAD, BODY, sink, 60, 60)
        error = await sink.failed()
    assert isinstance(error, EngineError)
    assert (error.code, error.safe, error.refused) == ("engine_failed", True, True)
    assert (client.in_flight, client.failed, client.opened) == (0, 1, 0)
    await client.aclose()


async def test_a_socket_that_is_not_there_is_refused(short_folder: Path) -> None:
    client = EndpointClient(f"unix:{short_folder}/absent.sock")
    sink = Sink()
    client.send(HEAD, BODY, sink, 60, 60)
    error = await sink.failed()
    assert isinstance(error, EngineError) and error.safe and error.refused
    await client.aclose()


async def test_a_name_that_does_not_resolve_is_safe_but_not_refused() -> None:
    client = EndpointClient("http://engine.invalid:80")
    sink = Sink()
    client.send(HEAD, BODY, sink, 60, 60)
    error = await sink.failed()
    assert isinstance(error, EngineError) and error.safe and not error.refused and "engine.invalid" not in error.message
    await client.aclose()


@contextlib.contextmanager
def deaf_listener() -> Iterator[int]:
    """A listener whose queue is full: connecting to it hangs, as it does behind a firewall that drops."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_connecting_has_a_deadline() -> None:
    with deaf_listener() as port:
        client = EndpointClient(f"http://127.0.0.1:{port}", connect_timeout=0.05)
        sink = Sink()
        client.send(HEAD, BODY, sink, 60, 60)
        error = await sink.failed()
        assert isinstance(error, EngineTimeout) and error.safe and not error.refused and error.code == "engine_timeout"
        await client.aclose()


async def test_cancelling_ends_the_attempt_to_connect() -> None:
    with deaf_listener() as port:
        client = EndpointClient(f"http://127.0.0.1:{port}", connect_timeout=60)
        sink = Sink()
        call = client.send(HEAD, BODY, sink, 60, 60)
        await until(lambda: len(client._tasks) == 1)
        call.cancel()
        await until(lambda: len(client._tasks) == 0)
        assert (client.in_flight, client.failed, sink.calls) == (0, 0, [])
        await client.aclose()


async def test_cancelling_at_every_moment_of_connecting_leaks_no_connection(way: Way) -> None:
    for turns in range(12):
        sink = way.send()
        for _ in range(turns):
            await asyncio.sleep(0)
        if not sink.over:
            assert sink.call is not None
            sink.call.cancel()
            assert way.client.in_flight == 0
        way.client.replace(way.engine.address)  # so that each turn connects anew
        await until(lambda: not way.client._tasks._tasks and not way.client._connections)
    await way.engine.until(lambda: way.engine.open == 0)


async def test_a_gateway_out_of_descriptors_does_not_blame_the_engine(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    sinks = [Sink() for _ in range(3)]
    with without_descriptors():
        for sink in sinks:
            way.send(sink=sink)
            error = await sink.failed()
            assert isinstance(error, Overloaded) and (error.status, error.code) == (503, "overloaded") and error.retry_after == 1.0
    assert [record.message for record in caplog.records] == ["cannot open a connection to an engine: Too many open files"]
    await way.get()


async def test_a_lookup_that_fails_for_lack_of_descriptors_does_not_blame_the_engine() -> None:
    with empty_port() as port:
        socket.getaddrinfo("localhost", port)  # the first look-up reads the system's settings, and answers without them if it cannot
        client = EndpointClient(f"http://localhost:{port}")
        sink = Sink()
        with without_descriptors():
            client.send(HEAD, BODY, sink, 60, 60)
            error = await sink.failed()
    assert isinstance(error, Overloaded)
    await client.aclose()


async def test_a_call_can_be_paused_before_it_is_connected(way: Way) -> None:
    sink = way.send()
    assert sink.call is not None
    sink.call.pause()
    await way.engine.until(lambda: any(r.done for r in way.engine.requests))
    assert sink.calls == []
    sink.call.resume()
    await sink.finished()


# --- deadlines


async def test_the_first_byte_has_a_deadline(way: Way) -> None:
    sink = way.send(fake="hang:at=before")
    await way.engine.until(lambda: len(way.engine.requests) == 1)
    client = way.client
    client.tick(1000.0)  # starts the deadline: 30 s
    client.tick(1029.9)
    assert not sink.over
    client.tick(1030.1)
    error = sink.error
    assert isinstance(error, EngineTimeout) and error.safe and error.status == 504
    assert (client.in_flight, client.failed, client.idle) == (0, 1, 0)
    await way.engine.until(lambda: len(way.engine.cancelled) == 1)


@pytest.mark.parametrize("piece", [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", b"HTTP/1.1 200 OK\r\n"], ids=["interim", "in pieces"])
async def test_what_comes_before_the_end_of_the_head_does_not_move_its_deadline(way: Way, piece: bytes) -> None:
    sink = way.send(STREAM, fake="hang:at=before")
    await way.engine.until(lambda: len(way.engine.requests) == 1)
    assert sink.call is not None and sink.call.connection is not None
    for now in range(1000, 1030, 3):
        sink.call.connection.data_received(piece)
        way.client.tick(float(now))
        assert not sink.over
        piece = piece if b"103" in piece else b"x-a: b\r\n"
    way.client.tick(1030.1)
    error = sink.error
    assert isinstance(error, EngineTimeout) and "did not answer in time" in error.message
    assert not error.safe, "a byte of an answer has come"


async def test_a_pause_of_this_process_is_no_silence_of_the_engine(way: Way) -> None:
    sink = way.send(fake="hang:at=before")
    await way.engine.until(lambda: len(way.engine.requests) == 1)
    client = way.client
    client.tick(1000.0)  # starts the deadline: 30 s
    client.tick(1025.0)
    client.tick(1125.0, stood=100.0)
    client.tick(1129.9)
    assert not sink.over
    client.tick(1130.1)
    assert isinstance(sink.error, EngineTimeout)


async def test_the_time_between_bytes_has_a_deadline(way: Way) -> None:
    sink = way.send(STREAM, fake="hang:at=mid")
    await sink.until(lambda: b" tok0" in sink.body)
    client = way.client
    client.tick(1000.0)
    client.tick(1009.9)
    assert not sink.over
    client.tick(1010.1)
    error = sink.error
    assert isinstance(error, EngineTimeout) and not error.safe
    await way.engine.until(lambda: len(way.engine.cancelled) == 1)


async def test_bytes_renew_the_deadline(way: Way) -> None:
    sink = way.send(STREAM, fake="hang:at=mid")
    await sink.until(lambda: b" tok0" in sink.body)
    assert sink.call is not None
    for now in range(1000, 1100, 9):
        sink.call.active = True  # what a read does
        way.client.tick(float(now))
    assert not sink.over
    way.client.tick(1200.0)
    assert isinstance(sink.error, EngineTimeout)


async def test_a_paused_call_is_not_idle(way: Way) -> None:
    sink = way.send(STREAM, fake="hang:at=mid")
    await sink.until(lambda: b" tok0" in sink.body)
    assert sink.call is not None
    way.client.tick(1000.0)
    sink.call.pause()
    for now in range(1000, 2000, 100):
        way.client.tick(float(now))
    assert not sink.over
    sink.call.resume()
    way.client.tick(1905.0)
    assert not sink.over
    way.client.tick(1920.0)
    assert isinstance(sink.error, EngineTimeout)


# --- backpressure


async def test_a_paused_stream_stops_the_engine_and_goes_on_later(way: Way) -> None:
    chunks, size = 600, 32_000
    sink = Sink()
    way.send(STREAM, sink, fake=f"normal:chunks={chunks},size={size}")
    assert sink.call is not None
    sink.on_call = lambda what: sink.call.pause() if what == "body" and len(sink.chunks) == 1 and sink.call else None
    await sink.until(lambda: sink.call is not None and sink.call.paused)
    held = len(sink.body)
    assert held <= 256 * 1024
    await until(lambda: max(_unsent(way.engine)) > 1_000_000)  # the engine writes on, nobody reads
    assert len(sink.body) == held, "something arrived while the call was paused"
    sink.on_call = None
    sink.call.resume()
    await sink.finished()
    assert sink.body.count(b"data: ") == chunks + 3
    assert max(map(len, sink.chunks)) <= 256 * 1024


def _unsent(engine: FakeEngine) -> list[int]:
    return [c._transport.get_write_buffer_size() for c in engine._live]


# --- cancelling


@pytest.mark.parametrize("fake", ["hang:at=before", "hang:at=head", "hang:at=mid"])
async def test_cancelling_closes_the_connection_and_the_receiver_hears_nothing_more(way: Way, fake: str) -> None:
    sink = way.send(STREAM, fake=fake)
    if fake == "hang:at=before":
        await way.engine.until(lambda: len(way.engine.requests) == 1)
    else:
        await sink.until(lambda: "head" in sink.calls)
    assert sink.call is not None
    heard = list(sink.calls)
    sink.call.cancel()
    sink.call.cancel()
    await way.engine.until(lambda: len(way.engine.cancelled) == 1 and way.engine.open == 0)
    assert sink.calls == heard
    assert (way.client.in_flight, way.client.idle, way.client.failed) == (0, 0, 0)
    await way.get()


@pytest.mark.parametrize("where", ["head", "body"])
async def test_cancelling_from_inside_a_callback(way: Way, where: str) -> None:
    sink = Sink()
    sink.on_call = lambda what: sink.call.cancel() if what == where and sink.call else None
    way.send(STREAM, sink, fake="normal:chunks=40")
    await way.engine.until(lambda: len(way.engine.requests) == 1 and way.engine.open == 0)
    assert sink.calls[-1] == where and sink.calls.count(where) == 1
    assert (way.client.in_flight, way.client.idle) == (0, 0)


async def test_cancelling_after_the_end_does_not_hurt_the_next_call(way: Way) -> None:
    first = await way.get()
    second = way.send(STREAM, fake="hang:at=mid")
    await second.until(lambda: bool(second.chunks))
    assert first.call is not None and second.call is not None
    first.call.cancel()
    first.call.pause()
    first.call.resume()
    assert not second.over and way.client.in_flight == 1 and not second.call.paused
    second.call.cancel()


async def test_a_finished_call_keeps_nothing_alive(way: Way) -> None:
    """Receivers know their calls; were calls to know their receivers for ever, each request would be work for the collector."""
    gc.collect()
    gc.disable()
    try:
        freed = []
        for fake in ("normal", "reset:at=before", "hang:at=before"):
            sink = way.send(fake=fake)
            if fake.startswith("hang"):
                await way.engine.until(lambda: bool(way.engine.requests) and way.engine.requests[-1].step.kind == "hang")
                assert sink.call is not None
                sink.call.cancel()
            else:
                await sink.until(lambda sink=sink: sink.over)  # type: ignore[misc]
            freed.append(weakref.ref(sink))
            del sink
        await until(lambda: not way.client._tasks._tasks)
        assert [ref() for ref in freed] == [None, None, None]
    finally:
        gc.enable()


# --- keeping


async def test_idle_connections_are_bounded_and_the_latest_is_used_first(tcp: Way) -> None:
    client = EndpointClient(tcp.engine.address, max_idle=2)
    sinks = [Sink() for _ in range(5)]
    for sink in sinks:
        client.send(HEAD, BODY, sink, 60, 60)
    for sink in sinks:
        await sink.finished()
    assert (client.opened, client.idle) == (5, 2)
    newest = client._idle[-1]
    sink = Sink()
    assert client.send(HEAD, BODY, sink, 60, 60).connection is newest
    await sink.finished()
    await client.aclose()


async def test_connections_that_were_idle_too_long_are_closed(way: Way) -> None:
    client = way.client
    now = time.monotonic()
    client.tick(now)
    sinks = [way.send() for _ in range(3)]
    for sink in sinks:
        await sink.finished()
    assert client.idle == 3
    client.tick(now + 50)
    await way.get()
    assert client.idle == 3
    client.tick(now + 56)
    assert client.idle == 1
    await way.engine.until(lambda: way.engine.open == 1)
    client.tick(now + 106)
    assert client.idle == 0


async def test_a_connection_that_the_engine_closes_leaves_the_idle_list(way: Way) -> None:
    await way.get()
    way.engine.close_connections()
    await until(lambda: way.client.idle == 0 and not way.client._connections)
    await way.get()
    assert (way.client.opened, way.client.retried) == (2, 0)


async def test_replacing_the_address(short_folder: Path) -> None:
    async with FakeEngine(unix=str(short_folder / "a.sock")) as old, FakeEngine() as new:
        client = EndpointClient(old.address)
        way = Way(old, client)
        await way.get()
        busy = way.send(STREAM, fake="normal:chunks=3,interval=0.01")
        await busy.until(lambda: bool(busy.chunks))
        client.replace(new.address)
        await way.get()
        assert len(new.requests) == 1
        await busy.finished()
        assert b"[DONE]" in busy.body
        await old.until(lambda: old.open == 0)
        assert (client.idle, len(old.requests)) == (1, 2)
        with pytest.raises(ConfigError):
            client.replace("ftp://nowhere")
        await way.get()
        assert len(new.requests) == 2
        await client.aclose()


# --- closing


async def test_closing_fails_what_is_under_way(way: Way) -> None:
    streaming = way.send(STREAM, fake="hang:at=mid")
    await streaming.until(lambda: bool(streaming.chunks))
    waiting = way.send(fake="hang:at=before")
    await way.engine.until(lambda: len(way.engine.requests) == 2)
    await way.client.aclose()
    for sink, safe in ((streaming, False), (waiting, True)):
        assert isinstance(sink.error, EngineError) and sink.error.safe is safe
    late = Sink()
    assert way.client.closed
    way.client.send(HEAD, BODY, late, 60, 60)
    assert isinstance(late.error, EngineError) and late.error.safe
    assert way.client.in_flight == 0
    await way.engine.until(lambda: way.engine.open == 0)
    await way.client.aclose()


async def test_closing_with_grace_lets_calls_end(way: Way) -> None:
    sink = way.send(STREAM, fake="normal:chunks=3,interval=0.01")
    await sink.until(lambda: bool(sink.chunks))
    await way.client.aclose(grace=60.0)
    assert sink.ended and not sink.errors


async def test_closing_while_connecting() -> None:
    with deaf_listener() as port:
        client = EndpointClient(f"http://127.0.0.1:{port}", connect_timeout=60)
        sink = Sink()
        client.send(HEAD, BODY, sink, 60, 60)
        await until(lambda: len(client._tasks) == 1)
        await client.aclose()
        assert isinstance(sink.error, EngineError) and sink.error.safe
        assert (client.in_flight, len(client._tasks)) == (0, 0)


# --- TLS


async def test_tls_with_another_name_and_a_client_certificate(certificates: Certificates) -> None:
    async with FakeEngine(tls=certificates.server_context(ask_client=True)) as engine:
        tls = ClientTlsSpec(ca=certificates.ca, cert=certificates.client, key=certificates.client_key, server_name="engine.test")
        client = EndpointClient(engine.address, tls=tls)
        sink = await Way(engine, client).get()
        assert json.loads(sink.body)["usage"]
        await client.aclose()


@pytest.mark.parametrize("case", ["unknown CA", "wrong name", "no client certificate"])
async def test_tls_that_does_not_verify_sends_nothing(certificates: Certificates, case: str) -> None:
    async with FakeEngine(tls=certificates.server_context(ask_client=case == "no client certificate")) as engine:
        tls = {"unknown CA": ClientTlsSpec(), "wrong name": ClientTlsSpec(ca=certificates.ca, server_name="other.test")}
        client = EndpointClient(engine.address, tls=tls.get(case, ClientTlsSpec(ca=certificates.ca)))
        sink = Sink()
        client.send(HEAD, BODY, sink, 60, 60)
        error = await sink.failed()
        assert isinstance(error, EngineError) and error.safe and error.code == "engine_failed"
        assert engine.requests == [] and client.in_flight == 0
        await client.aclose()
        await engine.until(lambda: engine.open == 0)


# --- an engine that is found not to work


async def test_calls_without_an_answer_are_given_up_where_their_receivers_can_go_elsewhere(way: Way) -> None:
    leaves, stays = Sink(), Sink()
    leaves.can_leave = True
    way.send(sink=leaves, fake="hang")
    way.send(sink=stays, fake="hang")
    await until(lambda: len(way.engine.requests) == 2)
    way.client.forsake()
    assert isinstance(leaves.error, EngineError) and leaves.error.safe and not leaves.error.refused
    assert not stays.over and way.client.in_flight == 1
    way.client.forsake()
    assert len(leaves.errors) == 1


async def test_a_call_with_a_byte_of_its_answer_is_not_given_up(way: Way) -> None:
    sink = Sink()
    sink.can_leave = True
    way.send(sink=sink, fake="hold:at=head")
    await sink.until(lambda: sink.head is not None)
    way.client.forsake()
    assert not sink.over
    way.engine.release()
    await sink.finished()
