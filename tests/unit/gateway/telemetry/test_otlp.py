"""A receiver reads what is sent; one that is away loses traces alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.telemetry import TracesSpec
from gateway.telemetry import otlp
from gateway.telemetry.otlp import ANSWER_BYTES, OtlpTraces, url_of
from tests.fakes.http_receiver import HttpReceiver
from tests.unit.gateway.telemetry.test_spans import traced


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    made = HttpReceiver()
    yield made
    made.close()


def test_a_receiver_reads_them_and_what_it_refuses_is_counted(receiver: HttpReceiver) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url, token=Secret("t0ken")), True, {"service.instance.id": "r1"})
    assert traces.send([traced(), traced(parent="")]) == 0
    [(headers, body)] = receiver.requests
    assert (headers["authorization"], headers["content-type"]) == ("Bearer t0ken", "application/x-protobuf")
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    told = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert told == {"service.name": "gatehouse", "service.instance.id": "r1"}
    spans = resource.scope_spans[0].spans
    assert len(spans) == 12
    assert spans[0].parent_span_id.hex() == "b" * 16
    assert spans[6].parent_span_id == b""
    receiver.answers = [(400, b"")]
    assert traces.send([traced()]) == 1
    assert len(receiver.requests) == 2, "what is refused for good is not sent again"
    traces.close()
    assert traces.send([traced()]) == 1


@pytest.mark.parametrize("endpoint", ["otel:4318", "grpc://otel:4317", "http://", "http://user:word@otel:4318", "http://otel/?x=1", ""])
def test_an_endpoint_that_cannot_be_posted_to_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="write http"):
        url_of(endpoint)


def test_a_path_of_the_endpoint_is_kept() -> None:
    assert url_of("https://cloud.example/api/public/otel/v1/traces") == "https://cloud.example/api/public/otel/v1/traces"
    assert url_of("http://otel:4318/") == url_of("http://otel:4318") == "http://otel:4318/v1/traces"


def paused(traces: OtlpTraces, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that it wants to make from now on; it makes none."""
    pauses: list[float] = []
    monkeypatch.setattr(traces._ending, "wait", lambda seconds: pauses.append(round(seconds, 1)))
    return pauses


def test_what_may_pass_is_tried_again_within_the_timeout(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url), True, {})
    pauses = paused(traces, monkeypatch)
    receiver.answers = [(503, b""), (429, b"")]
    assert traces.send([traced()]) == 0
    assert (len(receiver.requests), len(pauses)) == (3, 2)
    traces.hurry()
    receiver.answers = [(503, b"")]
    assert traces.send([traced()]) == 1, "at the end there is no further try"
    traces.close()


def test_a_receiver_that_asks_to_wait_is_left_alone_for_so_long(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url, timeout=29.0), True, {})
    pauses = paused(traces, monkeypatch)
    receiver.answers, receiver.retry_after = [(429, b"")], "7"
    assert traces.send([traced()]) == 0
    assert (len(receiver.requests), pauses) == (2, [7.0])
    traces._not_before = 0.0
    receiver.answers, receiver.retry_after = [(503, b"")], "30"
    assert traces.send([traced()]) == 1, "longer than the timeout"
    assert traces.send([traced()]) == 1
    assert (len(receiver.requests), pauses) == (3, [7.0])
    traces._not_before = 0.0
    receiver.answers, receiver.retry_after = [(503, b"")], "Wed, 21 Oct 2015 07:28:00 GMT"
    assert traces.send([traced()]) == 0
    traces.close()


def test_a_long_answer_is_not_read_to_its_end(receiver: HttpReceiver) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url), True, {})
    receiver.answers = [(200, b"x" * (4 * ANSWER_BYTES))]
    assert traces.send([traced()]) == 0
    assert traces.send([traced()]) == 0
    traces.close()


def partial(refused: int, message: str = "") -> bytes:
    told = ExportTracePartialSuccess(rejected_spans=refused, error_message=message)
    return bytes(ExportTraceServiceResponse(partial_success=told).SerializeToString())


@pytest.mark.parametrize(
    ("kind", "answer", "lost", "told"),
    [
        ("application/x-protobuf", partial(1, "too\nold" + "x" * 999), 1, "it refused 1 spans: 'too\\nold"),
        ("application/x-protobuf", partial(9000), 2, "it refused 9000 spans"),
        ("application/x-protobuf", partial(0, "a hint"), 0, ""),
        ("application/x-protobuf", b"", 0, ""),
        ("application/x-protobuf", b"\xff\xffgarbage", 0, "cannot be read"),
        ("application/json", b'{"partialSuccess":{}}', 0, ""),
        ("text/html; charset=utf-8", b"<html>Log in, please", 2, "no receiver of traces"),
        (None, b"garbage", 0, ""),
    ],
)
def test_an_answer_of_success_may_say_that_spans_are_refused(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, kind: str | None, answer: bytes, lost: int, told: str
) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url), True, {})
    receiver.answers, receiver.content_type = [(200, answer)], kind
    with caplog.at_level(logging.WARNING, "gatehouse.telemetry"):
        assert traces.send([traced(), traced()]) == lost
    assert len(receiver.requests) == 1, "it is not sent again"
    assert told in caplog.text and bool(told) == bool(caplog.records) and len(caplog.text) < 600
    traces.close()


def test_a_receiver_that_refuses_every_other_body_does_not_fill_the_log(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url), True, {})
    receiver.answers = [(400, b""), (200, b"")] * 20
    with caplog.at_level(logging.WARNING, "gatehouse.telemetry"):
        assert sum(traces.send([traced()]) for _ in range(40)) == 20
        assert [record.getMessage().split(" at ")[0] for record in caplog.records] == ["traces do not arrive", "traces arrive"]
        monkeypatch.setattr(otlp, "QUIET", 0.0)
        traces._quiet_until = 0.0
        receiver.answers = [(400, b"")]
        traces.send([traced()])
    assert len(caplog.records) == 3
    traces.close()
