"""The caches of this gateway's models, in all its processes that serve, on its disk and in Redis: statistics, and purges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.caches.behind import CacheUnavailable
from gateway.caches.registry import AnswerCaches
from gateway.core.caching import CachesAsked, CachesTold, Purge
from gateway.core.errors import GatehouseError

SECONDS: Final = 5.0
"""How long to wait for a worker's answer."""
RESULTS: Final = ("hits", "semantic", "joined", "misses", "bypassed")
LOST: Final = ("evicted", "expired", "purged", "refused")
LOOKS: Final = ("hits", "misses", "late", "skipped", "foreign")
UNKEPT: Final = ("refused", "dropped", "evicted")


class CacheBook:
    """Caches in all processes, for the admin listener. caches: those of this process; their memory is in use where it serves itself. asked:
    puts a question to every worker that serves, by its id; None where there are none. tell: notes a purge, and who made it, for other
    replicas; whether that worked. None where nobody is to be told."""

    def __init__(self, caches: AnswerCaches) -> None:
        self._caches = caches
        self.asked: Callable[[CachesAsked, float], Mapping[str, asyncio.Future[CachesTold]]] | None = None
        self.tell: Callable[[Purge, str], Awaitable[bool]] | None = None

    async def statistics(self) -> dict[str, dict[str, int]]:
        """Statistics by model, summed over the processes that answer within SECONDS."""
        found, _, _ = await self._ask(CachesAsked())
        return summed(one.models for one in found)

    async def behind(self) -> list[dict[str, Any]]:
        """What stands behind the memory: whether it is asked now, what all who share it hold, and what this gateway's processes counted."""
        told, _, _ = await self._ask(CachesAsked())
        counts = summed(one.behind for one in told)
        found = []
        for name, one in self._caches.behind.items():
            try:
                held = (await one.backend.held())._asdict()
            except CacheUnavailable:
                held = {"entries": None, "bytes": None}
            found.append({"name": name, "up": one.up, **held, **counts.get(name, {})})
        return found

    async def purge(self, purge: Purge, actor: str = "gatehouse") -> tuple[int, list[str]]:
        """How many answers were, or would be, forgotten, and who has not said so: workers by their ids, `disk`, `redis`, and `replicas`
        where others could not be told."""
        forgotten, silent = await self.forget(purge, "disk", "redis")
        if not (purge.dry_run or self.tell is None or await self.tell(purge, actor)):
            silent.append("replicas")
        return forgotten, silent

    async def made_up(self, purge: Purge) -> None:
        """Purges what is this replica's alone; another has purged what all share."""
        await self.forget(purge, "disk")

    async def forget(self, purge: Purge, *behind: str) -> tuple[int, list[str]]:
        """Purges the tiers behind the memory first, so that no memory is filled again with an answer from before the purge."""
        count, silent = 0, []
        key = None if purge.key is None else bytes.fromhex(purge.key)
        for name, one in self._caches.behind.items():
            if name in behind:
                try:
                    for tenant in purge.owners():
                        count += await one.backend.purge(purge.model, tenant, key, dry_run=purge.dry_run)
                except CacheUnavailable:
                    silent.append(name)
        _, forgotten, without = await self._ask(CachesAsked(purge))
        return count + forgotten, without + silent

    async def _ask(self, question: CachesAsked) -> tuple[list[CachesTold], int, list[str]]:
        told, silent = [], []
        if self.asked is None:
            told.append(self._caches.asked(question))
        else:
            for id, answer in self.asked(question, SECONDS).items():
                try:
                    told.append(await answer)
                except GatehouseError:
                    silent.append(id)
        return told, sum(one.purged for one in told), silent


def summed(told: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """The statistics of several processes as those of one."""
    found: dict[str, dict[str, int]] = {}
    for one in told:
        for name, counts in one.items():
            known = found.setdefault(name, dict.fromkeys(counts, 0))
            for each, count in counts.items():
                known[each] = known.get(each, 0) + count
    return dict(sorted(found.items()))


class CacheGauges:
    """`Metrics.gauges` calls `collect`, in each process that serves."""

    def __init__(self, caches: AnswerCaches) -> None:
        self._caches = caches

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("gatehouse_cache_requests", "Requests of models with a cache", labels=["model", "result"])
        stored = CounterMetricFamily("gatehouse_cache_stored", "Answers that were kept", labels=["model"])
        lost = CounterMetricFamily("gatehouse_cache_lost", "Answers that were not kept, or no longer", labels=["model", "reason"])
        unembedded = CounterMetricFamily("gatehouse_cache_unembedded", "Questions without a vector in time", labels=["model"])
        entries = GaugeMetricFamily("gatehouse_cache_entries", "Answers that are kept", labels=["model"])
        held = GaugeMetricFamily("gatehouse_cache_bytes", "Memory that they take", labels=["model"])
        for model, counts in self._caches.statistics().items():
            for result in RESULTS:
                requests.add_metric([model, result], counts[result])
            for reason in LOST:
                lost.add_metric([model, reason], counts[reason])
            stored.add_metric([model], counts["stored"])
            unembedded.add_metric([model], counts["unembedded"])
            entries.add_metric([model], counts["entries"])
            held.add_metric([model], counts["bytes"])
        yield from (requests, stored, lost, unembedded, entries, held)
        yield from self._behind()

    def _behind(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("gatehouse_cache_behind_up", "Whether what stands behind the memory is asked", labels=["tier"])
        looks = CounterMetricFamily("gatehouse_cache_behind_looks", "Look-ups behind the memory", labels=["tier", "result"])
        stored = CounterMetricFamily("gatehouse_cache_behind_stored", "Answers that were kept there", labels=["tier"])
        lost = CounterMetricFamily("gatehouse_cache_behind_lost", "Answers not kept there, or no longer", labels=["tier", "reason"])
        failed = CounterMetricFamily("gatehouse_cache_behind_failures", "Errors of what stands behind the memory", labels=["tier"])
        for name, one in self._caches.behind.items():
            counts = one.counted
            up.add_metric([name], float(one.up))
            for result in LOOKS:
                looks.add_metric([name, result], getattr(counts, result))
            for reason in UNKEPT:
                lost.add_metric([name, reason], getattr(counts, reason))
            stored.add_metric([name], counts.stored)
            failed.add_metric([name], counts.failed)
        if self._caches.behind:
            yield from (up, looks, stored, lost, failed)
