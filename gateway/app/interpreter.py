"""The interpreter, tuned for a process that serves: garbage collection and how long a thread may keep the event loop waiting."""

from __future__ import annotations

import gc
import sys
from typing import Final

from gateway.core.tasks import TaskOwner

GC_THRESHOLDS: Final = (20_000, 20, 20)
"""An exchange leaves no cycle behind, however it ends, but those under way are enough young objects for a collection every few requests."""
COLLECT_SECONDS = 5.0
"""How often the youngest objects are collected all the same, in some 100 microseconds: the store (SQLAlchemy) and the admin API leave
forty objects a second in cycles, which would pile up for minutes."""
MIDDLE_EVERY: Final = 12
FULL_EVERY: Final = 720
"""Each so many of these rounds, once a minute and once an hour, older objects are collected too. The interpreter looks at these only when
so many young ones have piled up as never do between two rounds: cycles that were in use during a round would stay for ever."""
SWITCH_SECONDS: Final = 0.0005
"""For how long a thread (the store's, the audit log's, one that reads a file) may keep the interpreter from the event loop. Python's
default of 5 ms is longer than a whole request."""


def tune(owner: TaskOwner) -> None:
    """To be called once everything that lasts has been built: it is never looked at by the collector again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    owner.every(COLLECT_SECONDS, Collector().collect, name="collect")
    sys.setswitchinterval(SWITCH_SECONDS)


class Collector:
    """Collects in rounds. `rounds`: that were due so far."""

    def __init__(self) -> None:
        self.rounds = 0

    async def collect(self) -> None:
        """One round. None while somebody makes many objects (gateway.core.collecting): to look at them takes 50 ms; what else was due then
        is in the next round."""
        if not gc.isenabled():
            return
        self.rounds += 1
        gc.collect(0 if self.rounds % MIDDLE_EVERY else 1 if self.rounds % FULL_EVERY else 2)
