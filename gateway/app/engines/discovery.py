"""Follows the host names of engines with `dns`: asks, keeps what is in use, and has the configuration built again when that changes.

Runs in the process that has the store; workers are told the addresses with the settings. A build waits for the first answer about a name
that is new, for as long as one question may take; after that nothing waits for a name server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.engines.upstreams import permitted
from gateway.config.expand import HostPorts
from gateway.config.merge import Merged
from gateway.core.clock import Clock
from gateway.core.specs.fleet import DnsSpec
from gateway.core.tasks import TaskOwner
from gateway.routing.discovery import Addresses
from gateway.transport.names import Names, Resolved, Unresolved

log = logging.getLogger("gatehouse.dns")

FIRST_QUESTIONS: Final = 2.5
"""Times the timeout of a name that a build waits for it at most: two kinds of addresses are asked for."""
AT_ONCE: Final = 8
"""Questions under way at a time."""
PORTS: Final = {"http": 80, "https": 443}
Question = tuple[str, DnsSpec, tuple[str, ...] | None]
"""(url, settings, store.upstreams of an engine of the store)."""


class Watch:
    """One name that is followed."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.addresses = Addresses(question[1])
        self.first: asyncio.Event = asyncio.Event()
        """Set once it has been answered or has failed."""
        self.late = False
        """Whether a build went on without the first answer."""
        self.fault = ""
        """Why the last question failed, or what of its answer was left out."""
        self.task: asyncio.Task[None] | None = None


class Discovery:
    """changed: called when the addresses of a name in force have changed. record: (event, engine, detail) for the audit log.
    ask: (settings, host, port) -> what is answered; blocks. Life: `aclose`."""

    def __init__(
        self,
        clock: Clock,
        changed: Callable[[], None],
        record: Callable[[str, str, dict[str, Any]], None],
        ask: Callable[[DnsSpec, str, int], Resolved] | None = None,
    ) -> None:
        self._now, self._changed, self._record = clock.monotonic, changed, record
        self._ask = ask or _resolve
        self._owner = TaskOwner("dns")
        self._room = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dns")
        """Its own: a name server that hangs must not hold up whatever else the process does in threads."""
        self._watches: dict[tuple[str, Question], Watch] = {}
        self._failures: dict[str, int] = {}
        self._asked: tuple[Merged, dict[str, Question]] | None = None

    async def places(self, merged: Merged) -> HostPorts:
        """Where the names of these engines lead now. Begins to follow those that are new, and waits for their first answers."""
        wanted = self._wanted(merged)
        if not wanted:
            return {}
        watches = {name: self._follow(name, question) for name, question in wanted.items()}
        new = [watch for watch in watches.values() if not watch.first.is_set()]
        if new:
            longest = max(watch.question[1].timeout for watch in new) * FIRST_QUESTIONS
            await asyncio.wait([self._owner.wait(watch.first.wait(), name="first answer") for watch in new], timeout=longest)
            for watch in new:
                watch.late = not watch.first.is_set()
        return {name: watch.addresses.places for name, watch in watches.items()}

    def keep(self, merged: Merged) -> None:
        """Called at a swap: follows only the names in force."""
        known = set(self._wanted(merged).items())
        for key in [key for key in self._watches if key not in known]:
            watch = self._watches.pop(key)
            if watch.task is not None:
                watch.task.cancel()

    def _wanted(self, merged: Merged) -> dict[str, Question]:
        """Found once: to look at every engine takes a millisecond for ten thousand."""
        if self._asked is None or self._asked[0] is not merged:
            self._asked = (merged, _questions(merged))
        return self._asked[1]

    async def aclose(self) -> None:
        await self._owner.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def faults(self) -> dict[str, str]:
        """By engine: why its name could not be resolved the last time, or what was left out of the answer."""
        return {name: watch.fault for (name, _), watch in self._watches.items() if watch.fault}

    def collect(self) -> Iterable[Metric]:
        found = GaugeMetricFamily("gatehouse_dns_addresses", "Addresses of an engine's name that are in use", labels=["engine"])
        failed = CounterMetricFamily("gatehouse_dns_failures", "Questions for an engine's name without a usable answer", labels=["engine"])
        used: dict[str, int] = {}
        for (name, _), watch in self._watches.items():  # two of a name while its settings change, or after a change that was refused
            used[name] = max(used.get(name, 0), len(watch.addresses.places))
        for name, count in used.items():
            found.add_metric([name], float(count))
            failed.add_metric([name], float(self._failures.get(name, 0)))
        yield from (found, failed)

    # --- one name

    def _follow(self, name: str, question: Question) -> Watch:
        watch = self._watches.get((name, question))
        if watch is None:
            watch = Watch(question)
            url, dns, upstreams = question
            for (known, (former_url, former, _)), other in self._watches.items():
                if (known, former_url, former.records, former.servers) == (name, url, dns.records, dns.servers):
                    watch.addresses.take_over(other.addresses, lambda place: permitted(place.host, dns.networks, url, upstreams))
            self._watches[name, question] = watch
            watch.task = self._owner.spawn(self._run(name, watch), name=name)
        return watch

    async def _run(self, name: str, watch: Watch) -> None:
        while True:
            before = watch.addresses.places
            wait = await self._look(name, watch)
            after, begun = watch.addresses.places, watch.first.is_set()
            watch.first.set()
            if after != before:
                added, removed = ([place.text for place in one if place not in other] for one, other in ((after, before), (before, after)))
                log.info("engine %s: addresses added: %s, removed: %s", name, added or "none", removed or "none")
                self._record("addresses_changed", name, {"added": added, "removed": removed})
                if begun or watch.late:
                    self._changed()
            await asyncio.sleep(wait)

    async def _look(self, name: str, watch: Watch) -> float:
        """Asks once. Returns the seconds until the next question."""
        url, dns, upstreams = watch.question
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 80)
        fault = ""
        try:
            async with self._room:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._threads, self._ask, dns, parts.hostname or "", port)
        except Unresolved as error:
            wait, fault = watch.addresses.failed(), error.message
        else:
            allowed = tuple(place for place in answer.places if permitted(place.host, dns.networks, url, upstreams))
            refused = len(answer.places) - len(allowed)
            if refused:
                fault = f"{refused} of {len(answer.places)} addresses are where engines may not be (dns.networks, store.upstreams)"
            elif answer.left_out:
                fault = f"{answer.left_out} addresses are more than max_addresses ({dns.max_addresses}) and left out"
            elif not answer.places:
                fault = "the name has no address"
            else:
                fault = answer.why
            if refused and not allowed:
                wait = watch.addresses.failed()
            else:
                wait = watch.addresses.heard(self._now(), allowed, answer.ttl, answer.unknown)
        if fault:
            self._failures[name] = self._failures.get(name, 0) + 1
        if fault != watch.fault:
            watch.fault = fault
            if fault:
                log.warning("engine %s: %s", name, fault)
                self._record("addresses_unresolved", name, {"reason": fault})
        return wait


def _resolve(dns: DnsSpec, host: str, port: int) -> Resolved:
    return Names(dns).resolve(host, port)


def _questions(merged: Merged) -> dict[str, Question]:
    upstreams = merged.spec.store.upstreams
    return {
        engine.name: (engine.url or "", engine.dns, upstreams if ("engines", engine.name) in merged.revisions else None)
        for engine in merged.spec.engines
        if engine.dns is not None and engine.runtime == "external"
    }
