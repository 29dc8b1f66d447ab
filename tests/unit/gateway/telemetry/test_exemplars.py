"""The way from a bucket of a histogram to a trace."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.core.types import OutcomeRecord
from gateway.telemetry.exemplars import Exemplars
from gateway.telemetry.metrics import Metrics

TRACES = ("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736")
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def settled(model: str, milliseconds: float, first: float = 0.0) -> OutcomeRecord:
    return OutcomeRecord(1000.5, "req", "ok", 200, model=model, duration_ms=milliseconds, first_ms=first)


def test_the_last_traced_request_of_a_bucket_is_shown_in_open_metrics() -> None:
    metrics = Metrics()
    metrics.exemplars = exemplars = Exemplars()
    meter = metrics.meter("m")
    for _ in range(3):
        meter.record("chat", 200, "ok", 80.0, 0.3, None)
        meter.first_chunk(0.02)
    exemplars.note(settled("m", 300.0), TRACES[0])
    exemplars.note(settled("m", 310.0, first=20.0), TRACES[1])
    text, media_type = metrics.exposed(OPEN_METRICS)
    assert media_type.startswith("application/openmetrics-text; version=1.0.0")
    found = {
        (sample.name, sample.labels["le"]): (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert found == {
        ("gatehouse_request_seconds_bucket", "0.5"): (TRACES[1], 0.31),
        ("gatehouse_ttft_seconds_bucket", "0.025"): (TRACES[1], 0.02),
    }


@pytest.mark.parametrize(
    ("accept", "opened"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5", True),
        ("text/plain;q=0.5, Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("application/openmetrics-text;version=1.0.0;q=0.000", False),
        ("application/openmetrics-text;version=1.0.0;q=0.001", True),
        ("application/openmetrics-text;version=nonsense", False),
        ("application/openmetrics-text;version=1.0.0;q=nan", False),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.7", False),
        ("text/plain;version=0.0.4;q=0.3,application/openmetrics-text;version=1.0.0;q=0.3", True),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.2,application/openmetrics-text;q=0.95", True),
        ("application/openmetrics-text;version=7.0.0", False),
        (";;,=,application/openmetrics-text;version=", False),
    ],
)
def test_the_format_is_what_the_scraper_asks_for(accept: str, opened: bool) -> None:
    metrics = Metrics()
    metrics.exemplars = Exemplars()
    metrics.meter("m").record("chat", 200, "ok", 80.0, 0.3, None)
    metrics.exemplars.note(settled("m", 300.0), TRACES[0])
    text, media_type = metrics.exposed(accept)
    assert (text.endswith(b"# EOF\n"), TRACES[0].encode() in text, media_type.startswith("application/")) == (opened, opened, opened)


def test_a_request_without_a_model_has_no_bucket() -> None:
    exemplars = Exemplars()
    exemplars.note(settled("", 300.0), TRACES[0])
    assert exemplars.shown("duration", "", [("+Inf", 1.0)]) == [("+Inf", 1.0)]
