"""The interpreter, tuned for a process that serves: garbage collection and how long a thread may keep the event loop waiting."""

from __future__ import annotations

import gc
import sys
from typing import Final

from gateway.core.tasks import TaskOwner
from gateway.server.allocator import Allocator, tuned

GC_THRESHOLDS: Final = (20_000, 20, 20)
"""An exchange leaves no cycle behind, however it ends, but those under way are enough young objects for a collection every few requests."""
COLLECT_SECONDS = 5.0
"""How often the youngest objects are collected all the same, in some 100 microseconds: the store (SQLAlchemy) and the admin API leave
forty objects a second in cycles, which would pile up for minutes."""
MIDDLE_EVERY: Final = 12
FULL_EVERY: Final = 720
"""Every 12th round (once a minute) also collects the middle generation, every 720th (once an hour) all objects that are not frozen. The
interpreter does that by itself only after 20,000 new objects, which do not come together between two rounds of a quiet gateway: a cycle
that was in use during one round would never be collected."""
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

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.rounds = 0

    async def collect(self) -> None:
        """One round. Does nothing, and counts no round, while the collector is suspended (gateway.core.collecting): looking at the many
        objects that are being made would take 50 ms."""
        if not gc.isenabled():
            return
        self.rounds += 1
        if self.rounds % MIDDLE_EVERY:
            gc.collect(0)
            return
        gc.collect(1 if self.rounds % FULL_EVERY else 2)
        self.allocator.trim()
