"""Families with many samples read like any other, in both formats."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import CollectorRegistry

from gateway.telemetry.lazy_families import LazyGaugeMetricFamily
from gateway.telemetry.metrics import exposed
from gateway.telemetry.scraping import exposed_aside


class Families:
    """The same gauge, in the usual way or as many samples."""

    def __init__(self, many: bool) -> None:
        self._many = many
        self.threads: set[int] = set()

    def read(self, thing: int):
        self.threads.add(threading.get_ident())
        return [({"endpoint": f"e{thing}"}, float(thing))]

    def collect(self):
        if self._many:
            yield LazyGaugeMetricFamily("gatehouse_endpoint_up", "Up", range(3), self.read)
        else:
            usual = GaugeMetricFamily("gatehouse_endpoint_up", "Up", labels=["endpoint"])
            for thing in range(3):
                usual.add_metric([f"e{thing}"], float(thing))
            yield usual


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_many_samples_are_written_as_others_are_and_in_a_thread(accept: str):
    registries = []
    families = Families(True)
    for one in (families, Families(False)):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(one)  # type: ignore[arg-type]
        registries.append(registry)
    assert await exposed_aside(registries[0], accept) == exposed(registries[1], accept)
    assert threading.get_ident() not in families.threads
