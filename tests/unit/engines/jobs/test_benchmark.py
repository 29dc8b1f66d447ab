"""What is made of the requests that were measured."""

from __future__ import annotations

from engines.jobs.benchmark import Shot, figures


def test_figures_of_several_streams() -> None:
    shots = [Shot(0.1, 1.0, 10), Shot(0.2, 2.0, 10), Shot(0.4, 1.0, 20)]
    found = figures(shots, 4.0, 2)
    assert found["tokens"] == 40 and found["tokens_per_second"] == 10.0 and found["stream_tokens_per_second"] == 10.0
    assert found["first_token_ms"] == {"p50": 200.0, "p95": 400.0, "max": 400.0}


def test_no_request_is_no_division_by_nothing() -> None:
    found = figures([], 0.0, 1)
    assert found["tokens_per_second"] == 0.0 and found["first_token_ms"]["max"] == 0.0
