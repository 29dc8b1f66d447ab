"""Traces and lines in the log, from a running gateway to a receiver of OTLP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, configuration, external
from tests.e2e.resilience import reload
from tests.fakes.http_receiver import HttpReceiver
from tests.waiting import until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    made = HttpReceiver()
    yield made
    made.close()


@pytest.fixture
def gatehouse(tmp_path: Path, engine: EngineThread, receiver: HttpReceiver) -> Iterator[Gatehouse]:
    config = configuration(
        tmp_path / "state",
        engines=[external("fake", engine.port, slots=8)],
        models=[{"name": "m", "pool": ["fake"]}],
        guardrails=[{"name": "words", "type": "denylist", "settings": {"phrases": ["nightfall"], "action": "block"}}],
        telemetry={"log_format": "json", "request_log": "failed", "traces": {"endpoint": receiver.url, "ratio": 0}},
    )
    with Gatehouse(tmp_path, config) as running:
        yield running


def spans(receiver: HttpReceiver) -> list[Any]:
    bodies = [ExportTraceServiceRequest.FromString(body) for _, body in list(receiver.requests)]
    return [span for body in bodies for resource in body.resource_spans for scope in resource.scope_spans for span in scope.spans]


def traces(receiver: HttpReceiver) -> set[str]:
    return {span.trace_id.hex() for span in spans(receiver)}


def by_name(receiver: HttpReceiver, *names: str) -> dict[str, Any]:
    """The spans, once these have come."""

    def found() -> dict[str, Any]:
        return {span.name if span.kind != 3 else "call": span for span in spans(receiver)}

    until(lambda: found().keys() >= set(names), what=f"the spans {names}")
    return found()


def asked(gatehouse: Gatehouse, flag: str, trace: str = TRACE, **fields: Any) -> Any:
    with gatehouse.client() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "the secret plan"}], **fields}
        return client.post("/v1/chat/completions", json=body, headers={"traceparent": f"00-{trace}-{PARENT}-{flag}"})


def test_a_callers_trace_goes_on_through_the_gateway_to_the_engine(
    gatehouse: Gatehouse, engine: EngineThread, receiver: HttpReceiver
) -> None:
    assert asked(gatehouse, "01", stream=True).status_code == 200
    found = by_name(receiver, "chat m", "guardrails", "call", "prefill", "decode")
    own, call = found["chat m"], found["call"]
    assert {span.trace_id.hex() for span in found.values()} == {TRACE}
    assert (own.parent_span_id.hex(), call.parent_span_id) == (PARENT, own.span_id)
    assert dict(engine.received[-1].headers)["traceparent"] == f"00-{TRACE}-{call.span_id.hex()}-01"
    assert own.start_time_unix_nano <= call.start_time_unix_nano < call.end_time_unix_nano <= own.end_time_unix_nano
    assert not any(b"secret plan" in body or KEY.encode() in body for _, body in receiver.requests)


def test_an_unsampled_failure_is_told_with_a_line_and_a_span(gatehouse: Gatehouse, engine: EngineThread, receiver: HttpReceiver) -> None:
    assert asked(gatehouse, "00").status_code == 200
    engine.play("status:code=400")
    assert asked(gatehouse, "00").status_code == 400
    engine.play("reset:at=mid")
    answer = asked(gatehouse, "00", stream=True)
    [own] = until(lambda: spans(receiver), what="the span")
    assert (own.trace_id.hex(), own.parent_span_id.hex(), own.status.code) == (TRACE, PARENT, 2)
    [line] = until(lambda: [json.loads(line) for line in gatehouse.lines if "gatehouse.requests" in line], what="the line")
    assert (line["request_id"], line["trace_id"], line["level"]) == (answer.headers["x-request-id"], TRACE, "warning")
    assert "secret plan" not in "".join(gatehouse.lines)


def test_changed_telemetry_is_in_force_without_a_restart(gatehouse: Gatehouse, receiver: HttpReceiver) -> None:
    changed = {
        **gatehouse.config,
        "telemetry": {"log_format": "json", "request_log": "all", "traces": {"endpoint": receiver.url, "ratio": 1}},
    }
    reload(gatehouse, changed)
    until(lambda: gatehouse.chat(model="m").status_code == 200 and spans(receiver), what="a trace by chance")
    until(lambda: any("gatehouse.requests" in line for line in gatehouse.lines), what="a line")
    reload(gatehouse, {**gatehouse.config, "telemetry": {}})
    until(lambda: gatehouse.metric("gatehouse_config_version") >= 3, what="the second change")
    silent, last = "1" * 32, "2" * 32
    assert asked(gatehouse, "01", silent).status_code == 200
    reload(gatehouse, changed)
    until(lambda: gatehouse.metric("gatehouse_config_version") >= 4, what="the third change")
    assert asked(gatehouse, "01", last).status_code == 200
    until(lambda: last in traces(receiver), what="a later trace")
    assert silent not in traces(receiver)


def test_a_receiver_that_is_away_costs_traces_alone(gatehouse: Gatehouse, receiver: HttpReceiver) -> None:
    receiver.answers = [(400, b"")]
    assert asked(gatehouse, "01").status_code == 200
    until(lambda: gatehouse.metric("gatehouse_traces_total", result="dropped") == 1, what="the drop")
    until(lambda: any("do not arrive" in line for line in gatehouse.lines), what="the line")
    assert asked(gatehouse, "01").status_code == 200
    until(lambda: gatehouse.metric("gatehouse_traces_total", result="sent") == 1, what="the next one")


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_sidecar_does_is_in_the_trace_and_nothing_of_it_reaches_the_client(
    sidecar: Gatehouse, receiver: HttpReceiver, stream: bool
) -> None:
    answer = asked(sidecar, "01", stream=stream, max_tokens=8)
    assert answer.status_code == 200 and "x-gatehouse-phases" not in answer.headers
    found = by_name(receiver, "call", "engine", "prepare", "prefill", "decode")
    engine = found["engine"]
    assert engine.parent_span_id == found["call"].span_id
    assert {found[name].parent_span_id for name in ("prepare", "prefill", "decode")} == {engine.span_id}
    times = [getattr(found[name], f"{end}_time_unix_nano") for name in ("prepare", "prefill", "decode") for end in ("start", "end")]
    assert times == sorted(times) and engine.start_time_unix_nano == times[0] and engine.end_time_unix_nano == times[-1]


@pytest.fixture
def sidecar(tmp_path: Path, receiver: HttpReceiver) -> Iterator[Gatehouse]:
    config = configuration(
        tmp_path / "state",
        engines=[{"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 1, "context": 512}],
        models=[{"name": "m", "pool": ["chat"]}],
        telemetry={"traces": {"endpoint": receiver.url, "ratio": 0}},
    )
    with Gatehouse(tmp_path, config) as running:
        yield running
