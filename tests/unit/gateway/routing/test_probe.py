"""The HTTP probe against real sockets: what counts as good, as bad, and as refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.core.secret import Secret
from gateway.core.specs import ClientTlsSpec, EngineSpec, HealthSpec
from gateway.routing import probe as module
from gateway.routing.probe import HttpProbe, _at_port
from tests.fakes.descriptors import without_descriptors
from tests.fakes.engine import FakeEngine
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import SECONDS, reached


def spec(path: str | None = None, metrics: str | None = None, **options: object) -> EngineSpec:
    return EngineSpec(name="e", runtime="external", health=HealthSpec(path=path, metrics=metrics), **options)  # type: ignore[arg-type]


@pytest.fixture
async def probe() -> AsyncIterator[HttpProbe]:
    probe = HttpProbe(lambda: 1000.0)  # by this clock the process never stands still, which would be no result
    yield probe
    await probe.aclose()


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives these answers to the paths asked for, one each, the last repeated; None-like b"" never answers."""
    left, asked = list(answers), list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.decode())
            answer = left.pop(0) if len(left) > 1 else left[0]
            if not answer:
                await reader.read()
            writer.write(answer)
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_a_probe_during_which_this_process_stood_still_says_nothing() -> None:
    """Its deadline was over when the process went on; the engine had no time to answer, or its answer was not read."""
    times = iter([1000.0, 1015.0, 2000.0, 2000.3])
    probe = HttpProbe(lambda: next(times))
    async with answering(b"") as (address, _):
        assert await probe.probe(spec("/health"), address, 0.1) is None
        result = await probe.probe(spec("/health"), address, 0.1)
    assert result is not None and not result.ok and result.reason == "no answer within 0.1 s"
    await probe.aclose()


def answer(status: int, body: bytes = b"", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


async def test_a_healthy_engine_tells_its_slots(probe: HttpProbe):
    async with FakeEngine(slots=5) as engine:
        result = await probe.probe(spec(), engine.address, SECONDS)
        assert (result.ok, result.slots) == (True, 5)
        assert result.details["device"] == "cpu"
        assert [request.path for request in engine.requests] == ["/health"]
        await probe.probe(spec(), engine.address, SECONDS)
        assert engine.connections == 1


async def test_over_a_unix_socket(probe: HttpProbe, short_path: Path):
    async with FakeEngine(unix=str(short_path / "e.sock")) as engine:
        assert (await probe.probe(spec(), engine.address, SECONDS)).ok


async def test_an_address_where_nothing_listens_refuses(probe: HttpProbe, short_path: Path):
    async with FakeEngine() as engine:
        address = engine.address
    assert (await probe.probe(spec(), address, SECONDS)).refused
    assert (await probe.probe(spec(), f"unix:{short_path}/none.sock", SECONDS)).refused


async def test_a_gateway_without_descriptors_draws_no_conclusion(probe: HttpProbe):
    with without_descriptors():
        assert await probe.probe(spec(), "http://127.0.0.1:9", SECONDS) is None


async def test_an_engine_that_was_there_and_went(probe: HttpProbe):
    async with FakeEngine() as engine:
        assert (await probe.probe(spec(), engine.address, SECONDS)).ok
    result = await probe.probe(spec(), engine.address, SECONDS)
    assert (result.ok, result.refused) == (False, True)


async def test_silence_is_not_a_refusal(probe: HttpProbe):
    async with answering(b"") as (address, _):
        result = await probe.probe(spec(), address, 0.05)
    assert (result.ok, result.refused) == (False, False)
    assert "0.05 s" in result.reason


@pytest.mark.parametrize(
    ("sent", "ok", "reason"),
    [
        (answer(200), False, "did not answer with JSON"),
        (answer(200, b"[" * 10_000), False, "did not answer with JSON"),
        (answer(503, b"[" * 10_000), False, "answered 503"),
        (answer(200, b"", "text/plain"), True, ""),
        (answer(204, b"", "text/plain"), True, ""),
        (answer(200, b'{"state": "ready"}'), True, ""),
        (answer(200, b'{"state": "loading"}'), False, "state is loading"),
        (answer(200, b'{"status": "ok"}'), True, ""),
        (answer(200, b"[1, 2]"), True, ""),
        (answer(500), False, "answered 500"),
        (answer(503), False, "answered 503"),
        (answer(302), False, "answered 302"),
        (b"garbage\r\n\r\n", False, "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", False, "closed the connection"),
    ],
)
async def test_answers(probe: HttpProbe, sent: bytes, ok: bool, reason: str):
    async with answering(sent) as (address, _):
        result = await probe.probe(spec(), address, SECONDS)
    assert result.ok == ok
    assert reason in result.reason
    assert not result.refused


@pytest.mark.parametrize(
    ("status", "body", "loading"),
    [
        (200, b'{"state": "loading", "slots": 4}', True),
        (200, b'{"state": "starting"}', True),
        (503, b'{"state": "loading"}', True),
        (503, b'{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}', True),
        (200, b'{"state": "failed"}', False),
        (503, b'{"error": {"message": "no room"}}', False),
        (503, b'{"error": "Loading model"}', False),
        (503, b"[1]", False),
        (503, b"Loading model", False),
        (500, b'{"state": "loading"}', False),
    ],
)
async def test_an_engine_that_loads_says_so(probe: HttpProbe, status: int, body: bytes, loading: bool):
    async with answering(answer(status, body)) as (address, _):
        result = await probe.probe(spec(), address, SECONDS)
    assert (result.ok, result.loading) == (False, loading)


@pytest.mark.parametrize("slots", [b"0", b"-3", b"true", b'"8"', b"1.5", b"100000000"])
async def test_nonsense_slots_are_not_believed(probe: HttpProbe, slots: bytes):
    async with answering(answer(200, b'{"state": "ready", "slots": ' + slots + b"}")) as (address, _):
        result = await probe.probe(spec(), address, SECONDS)
    assert result.ok
    assert result.slots is None


async def test_without_a_health_path_the_model_list_is_probed_from_then_on(probe: HttpProbe):
    async with answering(answer(404), answer(200, b'{"data": []}')) as (address, asked):
        assert (await probe.probe(spec(), address, SECONDS)).ok
        assert (await probe.probe(spec(), address, SECONDS)).ok
    assert [head.split()[1] for head in asked] == ["/health", "/v1/models", "/v1/models"]


async def test_a_configured_path_is_probed_with_the_engines_key_and_headers(probe: HttpProbe):
    async with answering(answer(200, b"{}")) as (address, asked):
        engine = spec("/status?deep=1", api_key=Secret("k" * 32), headers={"x-team": "red"})
        assert (await probe.probe(engine, address + "/base", SECONDS)).ok
    assert asked[0].startswith("GET /base/status?deep=1 HTTP/1.1\r\n")
    assert f"authorization: bearer {'k' * 32}" in asked[0].lower()
    assert "x-team: red" in asked[0].lower()


async def test_changed_settings_count_at_once(probe: HttpProbe):
    async with answering(answer(200, b"{}")) as (address, asked):
        await probe.probe(spec(), address, SECONDS)
        await probe.probe(spec(headers={"x-new": "1"}), address, SECONDS)
    assert "x-new" not in asked[0]
    assert "x-new: 1" in asked[1]


@pytest.mark.parametrize("address", ["ftp://x", "unix:relative", "http://127.0.0.1:99999"])
async def test_an_unusable_address_is_a_result(probe: HttpProbe, address: str):
    result = await probe.probe(spec(), address, SECONDS)
    assert not result.ok
    assert result.reason


async def test_an_untrusted_certificate_is_a_failure_but_no_refusal(probe: HttpProbe, tmp_path: Path):
    certificates = Certificates(tmp_path)
    async with FakeEngine(tls=certificates.server_context()) as engine:
        result = await probe.probe(spec(), engine.address, SECONDS)
        assert (result.ok, result.refused) == (False, False)
        trusted = spec(tls=ClientTlsSpec(ca=certificates.ca, server_name="engine.test"))
        assert (await probe.probe(trusted, engine.address, SECONDS)).ok
        await probe.aclose()


METRICS = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n"


async def test_an_engine_that_tells_its_load_is_asked_beside_its_probes(probe: HttpProbe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOAD_TIMEOUT", SECONDS)
    monkeypatch.setattr(module, "LOAD_SECONDS", SECONDS)
    monkeypatch.setattr(module, "LOAD_FRESH", SECONDS)
    async with answering(answer(200, b"{}"), answer(200, METRICS, "text/plain")) as (address, asked):
        engine = spec("/health", "/metrics", api_key=Secret("engine-key-0123456789"))
        assert "load" not in (await probe.probe(engine, address, SECONDS)).details, "the first probe does not wait for it"
        await reached(lambda: len(asked) >= 2)
        seen = await reached_load(probe, engine, address)
        assert seen == {"running": 3.0, "kv": 0.5}
        await probe.probe(engine, address, SECONDS)
        assert [head.split()[1] for head in asked].count("/metrics") == 1, "not more often than it helps"
        assert all("authorization: bearer engine-key-0123456789" in head.lower() for head in asked)


async def reached_load(probe: HttpProbe, engine: EngineSpec, address: str) -> Any:
    async with asyncio.timeout(SECONDS):
        while "load" not in (result := await probe.probe(engine, address, SECONDS)).details:
            await asyncio.sleep(0)
    return result.details["load"]


async def test_what_an_engine_told_counts_on_when_it_does_not_answer_once(probe: HttpProbe, monkeypatch: pytest.MonkeyPatch):
    for name, seconds in (("LOAD_TIMEOUT", SECONDS), ("LOAD_SECONDS", 0.0), ("LOAD_FRESH", SECONDS)):
        monkeypatch.setattr(module, name, seconds)
    well, told, later = answer(200, b"{}"), answer(200, METRICS, "text/plain"), answer(200, METRICS.replace(b" 3", b" 4"), "text/plain")
    async with answering(well, told, well, b"nothing like HTTP", well, later) as (address, asked):
        engine = spec("/health", "/metrics")
        for heard in (2, 4):
            await probe.probe(engine, address, SECONDS)
            await reached(lambda least=heard: len(asked) >= least and not len(probe._tasks))
        assert (await probe.probe(engine, address, SECONDS)).details["load"] == {"running": 3.0, "kv": 0.5}, "its last answer was no load"
        await reached(lambda: len(asked) >= 6 and not len(probe._tasks))
        assert probe._loads["e"].load == {"running": 4.0, "kv": 0.5}, "it is asked again as soon as an engine that answers"


@pytest.mark.parametrize(
    "said", [answer(404), answer(200, b"no metrics"), answer(500), answer(200, METRICS + b"x" * module.LOAD_BYTES, "text/plain")]
)
async def test_an_engine_that_does_not_tell_its_load_is_well_all_the_same(probe: HttpProbe, said: Any):
    async with answering(answer(200, b"{}"), said, answer(200, b"{}")) as (address, asked):
        engine = spec("/health", "/metrics")
        assert (await probe.probe(engine, address, SECONDS)).ok
        await reached(lambda: len(asked) >= 2)
        result = await probe.probe(engine, address, SECONDS)
        assert result.ok and "load" not in result.details


@pytest.mark.parametrize(
    ("address", "port", "there"),
    [
        ("http://triton:8000", ":8002", "http://triton:8002"),
        ("http://triton", ":8002", "http://triton:8002"),
        ("http://[fd00::1]:8000", ":8002", "http://[fd00::1]:8002"),
        ("http://triton:8000#10.0.0.1:8000", ":8002", "http://triton:8002#10.0.0.1:8002"),
        ("http://triton:8000#[fd00::1]:8000", ":8002", "http://triton:8002#[fd00::1]:8002"),
        ("http://triton:8000", "", "http://triton:8000"),
    ],
)
def test_another_port_of_the_same_address(address: str, port: str, there: str):
    assert _at_port(address, port) == there
