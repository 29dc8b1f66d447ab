"""The interpreter, tuned for a process that serves: garbage collection and how long a thread may keep the event loop waiting."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

from gateway.core.tasks import TaskOwner
from gateway.server.allocator import Allocator, tuned

GC_THRESHOLDS: Final = (20_000, 20, 20)
"""An exchange leaves no cycle behind, however it ends, but those under way are enough young objects for a collection every few requests."""
COLLECT_SECONDS = 5.0
"""How often the youngest objects are collected all the same, in some 100 microseconds: the store (SQLAlchemy) and the admin API leave
forty objects a second in cycles, which would pile up for minutes."""
OLDER_EVERY: Final = 12
"""Every 12th round (once a minute) also collects older objects. The interpreter does that by itself only after 20,000 new objects, which do
not come together between two rounds of a quiet gateway: a cycle that was in use during one round would never be collected."""
SHARE: Final = 2e-4
"""Most of the time that collections of all objects that are not frozen take; in between, only the middle generation is collected with the
young one. They take 3 to 5 ms, so that there is one a minute, and longer after a reload with many endpoints. They also give back the tuples
that Python keeps for later (up to 2,000 of each length), whose pools otherwise fill up with each peak a little more."""
FULL_SECONDS: Final = 3600.0
"""Longest time between two of them."""
SWITCH_SECONDS: Final = 0.0005
"""For how long a thread (the store's, the audit log's, one that reads a file) may keep the interpreter from the event loop. Python's
default of 5 ms is longer than a whole request."""


def tune(owner: TaskOwner) -> None:
    """To be called once everything that lasts has been built: the collector never looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    owner.every(COLLECT_SECONDS, Collector(tuned()).collect, name="collect")
    sys.setswitchinterval(SWITCH_SECONDS)


class Collector:
    """Collects garbage in rounds, and once a minute gives free memory back. `rounds`: how many there were."""

    def __init__(self, allocator: Allocator, clock: Callable[[], float] = time.perf_counter) -> None:
        self.allocator = allocator
        self.rounds = 0
        self._clock = clock
        self._full_due = clock()

    async def collect(self) -> None:
        """One round. Does nothing, and counts no round, while the collector is suspended (gateway.core.collecting): looking at the many
        objects that are being made would take 50 ms."""
        if not gc.isenabled():
            return
        self.rounds += 1
        if self.rounds % OLDER_EVERY:
            gc.collect(0)
            return
        began = self._clock()
        if began < self._full_due:
            gc.collect(1)
        else:
            gc.collect()
            took = self._clock() - began
            self._full_due = began + min(took / SHARE, FULL_SECONDS)
        self.allocator.trim()
