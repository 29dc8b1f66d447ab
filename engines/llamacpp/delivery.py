"""Hands events to their readers when they are due: the loop's side of `pacing`. Runs on the loop alone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from engines.chat.events import Event
from engines.llamacpp.jobs import SequenceJob

SOON = 0.001
"""Seconds that an event may be early: a timer is not more exact."""
Made = tuple[SequenceJob, Event, float]
"""What the decode thread made, and when (`time.monotonic`) it is due."""


class Delivery:
    """Events in the order of their making, each job's for itself; held at most as long as the decode thread says."""

    def __init__(self) -> None:
        self._held: dict[SequenceJob, deque[tuple[Event, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def deliver(self, made: Sequence[Made]) -> None:
        """New events. One that is due, or ends its job, brings all that its job has been waiting for."""
        now = time.monotonic()
        for job, event, due in made:
            if due - now > SOON and event.finish is None and event.error is None:
                self._held.setdefault(job, deque()).append((event, due))
                continue
            for held, _due in self._held.pop(job, ()):
                job.mailbox.put(job, held)
            job.mailbox.put(job, event)
        self._set_timer(now)

    def drop(self, job: SequenceJob) -> None:
        """Nobody reads the job any more."""
        self._held.pop(job, None)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            soonest = min(events[0][1] for events in self._held.values())
            self._timer = asyncio.get_running_loop().call_later(max(0.0, soonest - now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        for job, events in list(self._held.items()):
            while events and events[0][1] - now <= SOON:
                job.mailbox.put(job, events.popleft()[0])
            if not events:
                del self._held[job]
        self._set_timer(now)
