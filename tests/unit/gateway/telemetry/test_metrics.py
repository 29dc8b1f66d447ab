"""What is counted, and that a scrape is what Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.types import Usage
from gateway.telemetry.metrics import DURATION_BOUNDS, MANY_MODELS, OVERHEAD_BOUNDS, PHASE_BOUNDS, PHASES, Histogram, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(metrics.scrape().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


@pytest.mark.parametrize("bounds", [OVERHEAD_BOUNDS, DURATION_BOUNDS, PHASE_BOUNDS])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


@given(st.lists(st.floats(0, 100, allow_nan=False), max_size=30))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    histogram = Histogram((1, 5, 10))
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in (1, 5, 10, float("inf"))]
    assert histogram.buckets() == list(zip(["1.0", "5.0", "10.0", "+Inf"], map(float, expected), strict=True))
    assert histogram.sum == pytest.approx(sum(values))


def test_buckets_are_scaled_to_seconds() -> None:
    histogram = Histogram((25, 1000, 250_000))
    histogram.observe(25)
    assert histogram.buckets(1e-6) == [("2.5e-05", 1.0), ("0.001", 1.0), ("0.25", 1.0), ("+Inf", 1.0)]


def test_a_scrape_of_nothing_parses() -> None:
    found = samples(Metrics())
    assert found["gatehouse_in_flight", ()] == 0
    assert found["gatehouse_config_reloads_total", (("result", "refused"),)] == 0


def test_a_settled_exchange_is_in_the_scrape() -> None:
    metrics = Metrics()
    meter = metrics.meter("m")
    meter.record("chat", 200, "ok", 80.0, 0.3, Usage(7, 3, 2))
    meter.record("chat", 200, "ok", 30.0, 0.2, None)
    meter.record("chat", 502, "failed", 1e9, 1e9, None)
    meter.first_chunk(0.02)
    meter.retries = 4
    metrics.denied(401, "invalid_api_key")
    metrics.denied(401, "invalid_api_key")
    metrics.config_version = 9
    metrics.reloads["applied"] = 2
    metrics.in_flight = lambda: 3
    metrics.connections = lambda: 5
    metrics.phases["parse"].observe(4)
    found = samples(metrics)

    def value(name: str, **labels: str) -> float:
        return found[f"gatehouse_{name}", tuple(sorted(labels.items()))]

    assert value("requests_total", model="m", operation="chat", status="200", outcome="ok") == 2
    assert value("requests_total", model="m", operation="chat", status="502", outcome="failed") == 1
    assert value("tokens_total", model="m", kind="prompt") == 7
    assert value("tokens_total", model="m", kind="completion") == 3
    assert value("tokens_total", model="m", kind="cached") == 2
    assert value("retries_total", model="m") == 4
    assert value("denials_total", status="401", code="invalid_api_key") == 2
    assert value("overhead_seconds_bucket", model="m", le="5e-05") == 1
    assert value("overhead_seconds_bucket", model="m", le="0.0001") == 2
    assert value("overhead_seconds_bucket", model="m", le="+Inf") == 3
    assert value("overhead_seconds_count", model="m") == 3
    assert value("request_seconds_bucket", model="m", le="0.25") == 1
    assert value("request_seconds_sum", model="m") == pytest.approx(1e9 + 0.5)
    assert value("ttft_seconds_bucket", model="m", le="0.025") == 1
    assert value("phase_seconds_bucket", phase="parse", le="5e-06") == 1
    assert value("config_version") == 9
    assert value("config_reloads_total", result="applied") == 2
    assert (value("in_flight"), value("connections")) == (3, 5)


def test_every_phase_is_in_the_scrape() -> None:
    found = samples(Metrics())
    assert {dict(labels)["phase"] for name, labels in found if name == "gatehouse_phase_seconds_count"} == set(PHASES)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "na\u00efve"])
def test_a_label_of_any_form_is_escaped(name: str) -> None:
    metrics = Metrics()
    metrics.meter(name).record("chat", 200, "ok", 1, 1, None)
    assert ("gatehouse_retries_total", (("model", name),)) in samples(metrics)


def test_gauges_of_others_are_asked_when_scraped() -> None:
    metrics, asked = Metrics(), []

    def gauge() -> list[GaugeMetricFamily]:
        asked.append(1)
        return [GaugeMetricFamily("gatehouse_extra", "x", value=len(asked))]

    metrics.gauges.append(gauge)
    assert asked == []
    assert samples(metrics)["gatehouse_extra", ()] == 1
    assert samples(metrics)["gatehouse_extra", ()] == 2


def test_a_meter_is_kept_by_name() -> None:
    metrics = Metrics()
    assert metrics.meter("m") is metrics.meter("m")
    assert metrics.meter("m") is not metrics.meter("n")


def test_two_registries_do_not_meet() -> None:
    one, two = Metrics(), Metrics()
    one.denied(400, "x")
    assert b'code="x"' not in two.scrape()


@given(st.floats(0, 1e6))
def test_the_meter_and_the_histogram_agree(value: float) -> None:
    meter, histogram = Metrics().meter("m"), Histogram(OVERHEAD_BOUNDS)
    meter.record("chat", 200, "ok", value, 0.0, None)
    histogram.observe(value)
    assert meter.overhead.counts == histogram.counts
    assert histogram.counts[bisect_left(OVERHEAD_BOUNDS, value)] == 1


def test_of_very_many_models_those_have_series_that_have_answered() -> None:
    metrics = Metrics()
    for number in range(MANY_MODELS + 1):
        metrics.meter(f"m{number}")
    metrics.meter("m7").record("chat", 200, "ok", 80.0, 0.3, Usage(7, 3, 2))
    models = {dict(labels)["model"] for _, labels in samples(metrics) if "model" in dict(labels)}
    assert models == {"m7"} and metrics.totals() == (1, 7, 2)
    few = Metrics()
    few.meter("m")
    assert samples(few)["gatehouse_request_seconds_count", (("model", "m"),)] == 0
