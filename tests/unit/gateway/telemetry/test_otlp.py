"""A receiver reads what is sent; one that is away loses traces alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.telemetry import TracesSpec
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
    traces = OtlpTraces(TracesSpec(endpoint=receiver.url), True, {})
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
