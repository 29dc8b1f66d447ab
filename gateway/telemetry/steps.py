"""Metrics of pipelines' steps: how each one ended, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakValueDictionary

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gateway.telemetry.metrics import DURATION_BOUNDS, Histogram

OK, REFUSED, FAILED, CANCELLED = "ok", "refused", "failed", "cancelled"
RESULTS: Final = (OK, REFUSED, FAILED, CANCELLED)
"""refused: with a status below 500, so by policy or for what the request says. cancelled: the client left, or a step beside it failed."""


class StepMeters:
    """The figures of one pipeline; they outlive the configuration."""

    __slots__ = ("__weakref__", "durations", "results")

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Histogram] = {}

    def count(self, step: str, result: str, seconds: float) -> None:
        """A step is over."""
        self.results[step, result] = self.results.get((step, result), 0) + 1
        durations = self.durations.get(step)
        if durations is None:
            durations = self.durations[step] = Histogram(DURATION_BOUNDS)
        durations.observe(seconds)


class PipelineMeters:
    """All of a process."""

    def __init__(self) -> None:
        self._meters: WeakValueDictionary[str, StepMeters] = WeakValueDictionary()

    def of(self, pipeline: str) -> StepMeters:
        """The meter of a pipeline, with its figures so far if somebody still holds it."""
        found = self._meters.get(pipeline)
        if found is None:
            found = self._meters[pipeline] = StepMeters()
        return found

    def collect(self) -> Iterable[Metric]:
        results = CounterMetricFamily(
            "gatehouse_pipeline_steps", "Steps of pipelines that asked a model", labels=["model", "step", "result"]
        )
        seconds = HistogramMetricFamily("gatehouse_pipeline_step_seconds", "Time that steps of pipelines took", labels=["model", "step"])
        for name, meters in sorted(self._meters.items()):
            for (step, result), count in meters.results.items():
                results.add_metric([name, step, result], count)
            for step, durations in meters.durations.items():
                seconds.add_metric([name, step], buckets=durations.buckets(), sum_value=durations.sum)
        yield from (results, seconds)
