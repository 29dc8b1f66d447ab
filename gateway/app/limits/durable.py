"""Limits that last: budgets, and rates over more than a minute, counted in the store for all replicas.

Counters are changed by gateway.limits.counter within a transaction of the store; gateway.limits.refills takes blocks for those who wait.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.errors import GatehouseError
from gateway.core.storage import ControlStore, CounterName
from gateway.core.tasks import TaskOwner
from gateway.limits.counter import Ask, Given, State, counted, expires
from gateway.limits.refills import Refills

log = logging.getLogger("gatehouse.limits")
Record = Callable[[str, str, dict[str, Any]], None]
"""Records an event: its name, what it is about, details."""
SWEEP_SECONDS: Final = 600.0


class DurableLimits:
    """holder: this process, by a name that no other one has. record: where budgets that are nearly spent are told. live: how many
    replicas share the store. Life: `start`, `aclose`."""

    def __init__(self, store: ControlStore, holder: str, live: Callable[[], int], tasks: TaskOwner, record: Record | None = None) -> None:
        self._store, self._tasks, self._record = store, tasks, record
        self.lost: Callable[[], bool] = lambda: False
        """Whether more may be charged than was used, because a worker was killed."""
        self.refills = Refills(self.count, holder, tasks, replicas=live, alert=self._alert)

    def start(self) -> None:
        self.refills.start()
        self._tasks.every(SWEEP_SECONDS, self._sweep, name="expired counters")

    def settled(self) -> None:
        """No earlier process of this replica has anything left to be settled."""
        self.refills.first = True

    async def aclose(self, *, give_back: bool = True) -> bool:
        """Gives back what is in hand, unless the next program goes on with it. Requests must have ended before.
        Returns whether nothing is left in hand, so that all counters say exactly what was used."""
        if give_back:
            await self.refills.aclose()
        return give_back and self.refills.empty and not self.lost()

    async def count(self, asks: Sequence[Ask]) -> Sequence[Given]:
        """Asks the store. Raises StoreUnavailable."""
        names = list(dict.fromkeys((ask.limit, ask.meter.name, ask.key) for ask in asks))
        answers: list[Given] = []

        def change(now: float, bodies: Sequence[str | None]) -> list[tuple[str, float]]:
            states: dict[CounterName, State] = {name: json.loads(body or "{}") for name, body in zip(names, bodies, strict=True)}
            ends = dict.fromkeys(names, now)
            answers.clear()
            for ask in asks:
                name = (ask.limit, ask.meter.name, ask.key)
                states[name], given = counted(states[name], ask, now)
                ends[name] = max(ends[name], expires(states[name], ask.meter, now))
                answers.append(given)
            return [(json.dumps(states[name], separators=(",", ":")), ends[name]) for name in names]

        await self._store.change_counters(names, change)
        return answers

    def _alert(self, limit: str, key: tuple[str, ...], percent: int) -> None:
        if self._record is not None:
            self._record("budget_used", limit, {"scope": "/".join(key), "percent": percent})

    async def _sweep(self) -> None:
        try:
            await self._store.sweep_counters()
        except GatehouseError as error:
            log.debug("expired counters stay: %s", error.message)
