"""A scrape beside the event loop: what counts is collected on it at one moment, the text is written in a thread.

Families whose samples are many (`ManyGaugeMetricFamily`) are read there, too: ten thousand endpoints make seventy thousand lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from gateway.telemetry.metrics import exposed


class ManyGaugeMetricFamily(GaugeMetricFamily):
    """A gauge of many things, with samples that are made as they are read. read: (labels, value) of each sample of one thing; may be called
    in a thread."""

    def __init__(
        self, name: str, documentation: str, things: Sequence[Any], read: Callable[[Any], Iterable[tuple[dict[str, str], float]]]
    ) -> None:
        super().__init__(name, documentation)
        self.samples = _Samples(name, things, read)  # type: ignore[assignment]


class _Samples:
    def __init__(self, name: str, things: Sequence[Any], read: Callable[[Any], Iterable[tuple[dict[str, str], float]]]) -> None:
        self._name, self._things, self._read = name, things, read

    def __iter__(self) -> Iterator[Sample]:
        for thing in self._things:
            for labels, value in self._read(thing):
                yield Sample(self._name, labels, value)


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def exposed_aside(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """As gateway.telemetry.metrics.exposed. Call it on the event loop."""
    return await asyncio.to_thread(exposed, _Collected(list(registry.collect())), accept)
