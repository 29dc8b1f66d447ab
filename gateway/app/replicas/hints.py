"""Hints to and from the other replicas: what arrives is handed on by kind, what leaves goes out on every carrier, never waiting.

gateway.store.hints says what a hint is and what it may cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.core.errors import GatehouseError
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.hints import Carrier, Hint

log = logging.getLogger("gatehouse.store")
MOST_LEAVING: Final = 32
"""Hints that may be on their way out; more are dropped."""


class Hints:
    """origin: this process, whose own hints are not heard. Life: `add` carriers, `start`, `aclose`.

    The callbacks run on the event loop and must not raise. on_sure: whether hints are sure to arrive from now on.
    """

    def __init__(
        self,
        origin: str,
        on_change: Callable[[int], None],
        on_roll: Callable[[], None],
        on_endpoints: Callable[[Sequence[str]], None],
        on_sure: Callable[[bool], None],
    ) -> None:
        self._origin = origin
        self._on_change, self._on_roll, self._on_endpoints, self._on_sure = on_change, on_roll, on_endpoints, on_sure
        self._carriers: list[Carrier] = []
        self._tasks = TaskOwner("hints")
        self._closed, self._committed = False, 0
        self._counts = {"received": 0, "sent": 0, "dropped": 0}

    def add(self, carrier: Carrier) -> None:
        self._carriers.append(carrier)

    def start(self) -> None:
        for carrier in self._carriers:
            carrier.start()

    @property
    def sure(self) -> bool:
        """Whether hints of all changes arrive here. Over a carrier that is not transactional they may be lost where they were sent."""
        return any(carrier.sure and carrier.transactional for carrier in self._carriers)

    def changed(self) -> None:
        """A carrier has become sure, or unsure: something may have been missed."""
        self._on_sure(self.sure)

    def verify(self) -> None:
        """A hint did not come that should have."""
        for carrier in self._carriers:
            carrier.verify()

    def heard(self, hint: Hint) -> None:
        if hint.origin == self._origin:
            return
        self._counts["received"] += 1
        if hint.seq:
            self._on_change(hint.seq)
        if hint.roll:
            self._on_roll()
        if hint.endpoints:
            self._on_endpoints(hint.endpoints)

    def written(self, change: StoreChange) -> None:
        """A write of this process was committed: for the carriers over which the store does not send."""
        if all(carrier.transactional for carrier in self._carriers):
            return
        if not self._committed:
            asyncio.get_running_loop().call_soon(self._announce)
        self._committed = max(self._committed, change.seq)

    def _announce(self) -> None:
        """One hint for all changes of a turn of the loop."""
        seq, self._committed = self._committed, 0
        self._send(Hint(origin=self._origin, seq=seq), [carrier for carrier in self._carriers if not carrier.transactional])

    def send(self, *, roll: bool = False, endpoints: Sequence[str] = ()) -> None:
        """Sends it in the background; drops it when too many are on their way, as when the carriers do not answer."""
        self._send(Hint(origin=self._origin, roll=roll, endpoints=tuple(endpoints)), self._carriers)

    def _send(self, hint: Hint, carriers: Iterable[Carrier]) -> None:
        for carrier in carriers:
            if self._closed or len(self._tasks) >= MOST_LEAVING:
                self._counts["dropped"] += 1
            else:
                self._tasks.spawn(self._leave(carrier, hint), name="send")

    async def _leave(self, carrier: Carrier, hint: Hint) -> None:
        try:
            await carrier.send(hint)
            self._counts["sent"] += 1
        except GatehouseError as error:
            self._counts["dropped"] += 1
            log.debug("a hint could not be sent over %s: %s", carrier.name, error.message)

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        sure = GaugeMetricFamily("gatehouse_hints_sure", "Whether hints of other replicas arrive", labels=["carrier"])
        for carrier in self._carriers:
            sure.add_metric([carrier.name], 1.0 if carrier.sure else 0.0)
        counted = CounterMetricFamily("gatehouse_hints", "Hints between replicas", labels=["what"])
        for what, count in self._counts.items():
            counted.add_metric([what], count)
        yield from (sure, counted)

    async def aclose(self) -> None:
        self._closed = True
        for carrier in self._carriers:
            await carrier.aclose()
        await self._tasks.aclose()
