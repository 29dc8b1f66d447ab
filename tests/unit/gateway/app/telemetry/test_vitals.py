"""The figures of the health report."""

from __future__ import annotations

from gateway.app.telemetry.vitals import Vitals
from gateway.app.workers.figures import Figures, families
from gateway.core.types import Usage
from gateway.telemetry.metrics import Metrics


def served(requests: int) -> Metrics:
    metrics = Metrics()
    for _ in range(requests):
        metrics.meter("m").record("chat", 200, "ok", 80.0, 0.3, Usage(8, 1, 2))
    metrics.denied(401, "invalid_api_key")
    return metrics


def test_one_process_counts_its_own() -> None:
    now = iter((100.0, 161.9))
    found = Vitals(served(3), None, clock=lambda: next(now)).beside(lambda: (True, {"status": "ready"}))()
    resident = found[1].pop("resident_bytes")
    assert found == (True, {"status": "ready", "uptime_seconds": 61, "requests": 4, "cache_hit_rate": 0.25})
    assert resident > 1e6


def test_workers_count_even_after_they_have_ended() -> None:
    control = Metrics()
    figures = Figures(control.collect)
    figures.note("1", families(served(3).collect()))
    figures.note("2", families(served(1).collect()))
    figures.gone("1")
    report = Vitals(control, figures).report()
    assert (report["requests"], report["cache_hit_rate"]) == (6, 0.25)


def test_without_a_prompt_there_is_no_rate() -> None:
    assert Vitals(Metrics(), None).report()["cache_hit_rate"] is None
