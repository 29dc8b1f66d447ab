"""A scrape beside the event loop: what counts is collected on it at one moment, the text is written in a thread.

Families whose samples are many (gateway.telemetry.lazy_families) are read there, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.telemetry.metrics import exposed


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def exposed_aside(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """As gateway.telemetry.metrics.exposed. Call it on the event loop."""
    return await asyncio.to_thread(exposed, _Collected(list(registry.collect())), accept)
