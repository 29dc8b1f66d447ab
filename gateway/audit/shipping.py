"""Feeds a sink beside the chain. What is written to the local log is handed on as the same lines, in the same order.

The local log is the truth: a sink that is slow or down holds up no request. Its lines wait in memory, up to ROOM bytes; what finds no room
is counted as lost to this sink, and is still in the local log.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from gateway.audit.sinks.contract import Sink

log = logging.getLogger("gatehouse.audit")

ROOM: Final = 16 * 1024 * 1024
PAUSE: Final = 1.0
"""Seconds between two tries to write the same batch."""
CLOSE_SECONDS: Final = 5.0


class Shipper:
    """One sink and its thread. Life: `start`, `aclose`.

    `lost`: records that found no room. `waiting`: bytes that the sink has not taken yet.
    """

    def __init__(self, name: str, sink: Sink, *, room: int = ROOM, pause: float = PAUSE) -> None:
        self.name, self.sink = name, sink
        self.lost = self.waiting = 0
        self._room, self._pause = room, pause
        self._batches: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"audit-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, batch: bytes) -> None:
        """Called by the log's writer, in its thread; never blocks."""
        with self._changed:
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

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._batches and not self._closing:
                    self._changed.wait()
                if not self._batches:
                    return
                batch = self._batches[0]
            written = self._write(batch)
            with self._changed:
                if written:
                    self._batches.popleft()
                    self.waiting -= len(batch)
                elif self._closing:
                    return
                else:
                    self._changed.wait(self._pause)

    def _write(self, batch: bytes) -> bool:
        try:
            self.sink.write(batch)
        except Exception as error:  # noqa: BLE001 - boundary: a sink that fails is tried again
            if not self._failing:
                log.error("the audit sink %s takes no records: %s: %s", self.name, type(error).__name__, error)
            self._failing = True
            return False
        if self._failing:
            log.warning("the audit sink %s takes records again", self.name)
        self._failing = False
        return True
