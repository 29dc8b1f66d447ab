"""Feeds a sink beside the chain with what was written to the local log: the same lines, in the same order.

The local log is the truth: a sink that is slow or down holds up no request. Its lines wait in memory, up to ROOM bytes. Lines that find no
room are counted as lost to this sink; they are still in the local log.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.audit.sinks.contract import Sink
from gateway.core.clock import Clock, SystemClock

log = logging.getLogger("gatehouse.audit")

ROOM: Final = 16 * 1024 * 1024
PAUSE: Final = 1.0
"""Seconds between two tries to write the same batch."""
TIMEOUT: Final = 5.0
"""Seconds after which a call of the sink counts as hanging. A thread cannot be interrupted: the call goes on, and is reported."""
CLOSE_SECONDS: Final = 5.0


class Shipper:
    """One sink and its thread. Life: `start` (which probes the sink), `aclose`.

    lost: records that found no room. waiting: bytes that the sink has not taken yet. fault: why it takes nothing now, or None.
    """

    def __init__(
        self, name: str, sink: Sink, *, room: int = ROOM, pause: float = PAUSE, timeout: float = TIMEOUT, clock: Clock | None = None
    ) -> None:
        self.name, self.sink = name, sink
        self.lost = self.waiting = 0
        self.fault: str | None = None
        self._room, self._pause, self._timeout, self._clock = room, pause, timeout, clock or SystemClock()
        self._batches: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"audit-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, batch: bytes) -> None:
        """Called by the log's writer, in its thread; never blocks."""
        with self._changed:
            self._watch()
            if self.waiting + len(batch) > self._room:
                if not self.lost:
                    log.error("the audit sink %s is %d bytes behind; records are lost to it", self.name, self.waiting)
                self.lost += batch.count(b"\n")
                return
            self._batches.append(batch)
            self.waiting += len(batch)
            self._changed.notify()

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """Gives the sink this long to take what waits. The sink itself is closed by its owner."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, seconds)
        if self.waiting:
            log.error("the audit sink %s did not take the last %d bytes", self.name, self.waiting)

    def _watch(self) -> None:
        """Reports a call that hangs."""
        if self._since is not None and self._clock.monotonic() - self._since >= self._timeout:
            self._failed(f"it has not answered for {self._timeout:g} s")

    def _failed(self, reason: str) -> None:
        if self.fault is None:
            log.error("the audit sink %s takes no records: %s", self.name, reason)
        self.fault = reason

    def _run(self) -> None:
        self._call(self.sink.probe)
        while True:
            with self._changed:
                while not self._batches and not self._closing:
                    self._changed.wait()
                if not self._batches:
                    return
                batch = self._batches[0]
            written = self._call(partial(self.sink.write, batch))
            with self._changed:
                if written:
                    self._batches.popleft()
                    self.waiting -= len(batch)
                elif self._closing:
                    return
                else:
                    self._changed.wait(self._pause)

    def _call(self, call: Callable[[], None]) -> bool:
        """Calls the sink; whether it succeeded."""
        with self._changed:
            self._since = self._clock.monotonic()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - boundary: a sink that fails is tried again
            failure: Exception | None = error
        else:
            failure = None
        with self._changed:
            self._since = None
            if failure is not None:
                self._failed(f"{type(failure).__name__}: {failure}")
            elif self.fault is not None:
                log.warning("the audit sink %s takes records again", self.name)
                self.fault = None
        return failure is None
