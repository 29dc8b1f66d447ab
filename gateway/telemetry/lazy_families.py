"""Families of metrics whose samples are made only when they are read. Ten thousand endpoints make seventy thousand lines, which a thread
writes (gateway.telemetry.scraping) while the event loop goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Sample

Labels = dict[str, str]


class LazyGaugeMetricFamily(GaugeMetricFamily):
    """read: (labels, value) of each sample of one thing; may be called in a thread."""

    def __init__(self, name: str, documentation: str, things: Sequence[Any], read: Callable[[Any], Iterable[tuple[Labels, float]]]) -> None:
        super().__init__(name, documentation)
        self.samples = _Samples(name, things, read)  # type: ignore[assignment]


class LazyHistogramMetricFamily(HistogramMetricFamily):
    """read: labels, buckets (as HistogramMetricFamily.add_metric takes them) and sum of one thing; may be called in a thread."""

    def __init__(
        self, name: str, documentation: str, things: Iterable[Any], read: Callable[[Any], tuple[Labels, Sequence[tuple[Any, ...]], float]]
    ) -> None:
        super().__init__(name, documentation)
        self.samples = _Buckets(name, things, read)  # type: ignore[assignment]


class _Samples:
    def __init__(self, name: str, things: Sequence[Any], read: Callable[[Any], Iterable[tuple[Labels, float]]]) -> None:
        self._name, self._things, self._read = name, things, read

    def __iter__(self) -> Iterator[Sample]:
        for thing in self._things:
            for labels, value in self._read(thing):
                yield Sample(self._name, labels, value)


class _Buckets:
    def __init__(self, name: str, things: Iterable[Any], read: Callable[[Any], tuple[Labels, Sequence[tuple[Any, ...]], float]]) -> None:
        self._name, self._things, self._read = name, things, read

    def __iter__(self) -> Iterator[Sample]:
        for thing in self._things:
            labels, buckets, total = self._read(thing)
            for bound, count, *exemplar in buckets:
                yield Sample(f"{self._name}_bucket", {**labels, "le": bound}, count, None, exemplar[0] if exemplar else None)
            yield Sample(f"{self._name}_count", labels, buckets[-1][1])
            yield Sample(f"{self._name}_sum", labels, total)
