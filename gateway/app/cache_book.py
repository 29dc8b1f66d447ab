"""The caches of this gateway's models, in all its processes that serve: statistics, and purges. Other replicas have caches of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.caches.registry import AnswerCaches
from gateway.core.caching import CachesAsked, CachesTold, Purge
from gateway.core.errors import GatehouseError

SECONDS: Final = 5.0
"""For which a worker is waited for."""
RESULTS: Final = ("hits", "joined", "misses", "bypassed")
LOST: Final = ("evicted", "expired", "purged", "refused")


class CacheBook:
    """Of the process with the admin listener. caches: its own; in use where it serves itself. asked: puts a question to every worker that
    serves, by its id; None where there are none."""

    def __init__(self, caches: AnswerCaches) -> None:
        self._caches = caches
        self.asked: Callable[[CachesAsked, float], Mapping[str, asyncio.Future[CachesTold]]] | None = None

    async def statistics(self) -> dict[str, dict[str, int]]:
        """By model, summed over the processes that answer within some seconds."""
        found, _, _ = await self._ask(CachesAsked())
        return found

    async def purge(self, purge: Purge) -> tuple[int, list[str]]:
        """How many answers were, or would be, forgotten, and the workers that have not said so."""
        _, forgotten, silent = await self._ask(CachesAsked(purge))
        return forgotten, silent

    async def _ask(self, question: CachesAsked) -> tuple[dict[str, dict[str, int]], int, list[str]]:
        told, silent = [], []
        if self.asked is None:
            told.append(self._caches.asked(question))
        else:
            for id, answer in self.asked(question, SECONDS).items():
                try:
                    told.append(await answer)
                except GatehouseError:
                    silent.append(id)
        return summed(told), sum(one.purged for one in told), silent


def summed(told: Iterable[CachesTold]) -> dict[str, dict[str, int]]:
    """The statistics of several processes as those of one."""
    found: dict[str, dict[str, int]] = {}
    for one in told:
        for model, counts in one.models.items():
            known = found.setdefault(model, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                known[name] = known.get(name, 0) + count
    return dict(sorted(found.items()))


class CacheGauges:
    """`Metrics.gauges` calls `collect`, in each process that serves."""

    def __init__(self, caches: AnswerCaches) -> None:
        self._caches = caches

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("gatehouse_cache_requests", "Requests of models with a cache", labels=["model", "result"])
        stored = CounterMetricFamily("gatehouse_cache_stored", "Answers that were kept", labels=["model"])
        lost = CounterMetricFamily("gatehouse_cache_lost", "Answers that were not kept, or no longer", labels=["model", "reason"])
        entries = GaugeMetricFamily("gatehouse_cache_entries", "Answers that are kept", labels=["model"])
        held = GaugeMetricFamily("gatehouse_cache_bytes", "Memory that they take", labels=["model"])
        for model, counts in self._caches.statistics().items():
            for result in RESULTS:
                requests.add_metric([model, result], counts[result])
            for reason in LOST:
                lost.add_metric([model, reason], counts[reason])
            stored.add_metric([model], counts["stored"])
            entries.add_metric([model], counts["entries"])
            held.add_metric([model], counts["bytes"])
        yield from (requests, stored, lost, entries, held)
