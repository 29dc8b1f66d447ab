"""The work on batches in one process: takes some under a lease, and runs each (gateway.app.batches.run). A process that dies is followed by
another one, on this machine or not, when its lease is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gateway.app.batches.book import BatchBook
from gateway.app.batches.run import BatchRun, Shared
from gateway.app.clients.files import ClientFiles
from gateway.app.rounds import Rounds
from gateway.core.batches import BatchRecord, Lines
from gateway.core.clock import Clock, Entropy
from gateway.core.errors import GatehouseError, LeaseLost
from gateway.core.specs.batches import BatchesSpec
from gateway.core.tasks import TaskOwner
from gateway.store.batches import StoredBatches

log = logging.getLogger("gatehouse.batches")
MOST_HELD: Final = 8
"""Batches that a process works on at once; they share its `parallel` lines."""
PAUSE_SECONDS: Final = 30.0
"""How long a batch that failed here is left alone, so that others may take it."""
FORGET_SECONDS: Final = 90 * 86400.0


class BatchWork:
    """holder: this process, unlike every other; replica: its prefix, of which no other process is alive. lines: where they run.
    Life: `start` once the store has been started, `aclose` once requests have drained."""

    def __init__(
        self,
        settings: BatchesSpec,
        kept: StoredBatches,
        book: BatchBook,
        files: ClientFiles,
        lines: Lines,
        leaving: Callable[[], bool],
        replica: str,
        holder: str,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._settings, self._kept, self._book = settings, kept, book
        self._replica, self._holder, self._clock = replica, holder, clock
        self.shared = Shared(settings, kept, book, files, lines, leaving, clock, entropy)
        self._held: dict[str, BatchRun] = {}
        self._paused: dict[str, float] = {}
        self._tasks = TaskOwner("batches")
        self._freed = False
        forget = lambda: kept.forget(FORGET_SECONDS)  # noqa: E731 - one line says it
        self._rounds = Rounds("batches", log, look=self._look, count=book.count, forget=forget)
        book.made = self._woken
        book.running = lambda: self.shared.running

    def start(self) -> None:
        self._tasks.spawn(self._rounds.run(), name="take")

    def _woken(self) -> None:
        self._rounds.wake()
        for run in self._held.values():
            run.hurry()

    async def _look(self) -> None:
        if not self._freed:
            await self._kept.free(f"{self._replica}:")
            self._freed = True
        now = self._clock.monotonic()
        self._paused = {id: until for id, until in self._paused.items() if until > now}
        while len(self._held) < MOST_HELD and not self.shared.stopping:
            later = sorted({run.batch.creator.tenant for run in self._held.values()})
            found = await self._kept.take(self._holder, self._settings.lease, later, [*self._paused, *self._held])
            if found is None:
                return
            run = self._held[found.id] = BatchRun(self.shared, found)
            self._tasks.spawn(self._do(run, found), name=found.id)

    async def _do(self, run: BatchRun, batch: BatchRecord) -> None:
        try:
            await run.run()
        except LeaseLost as error:
            log.warning("%s", error.message)
        except GatehouseError as error:
            log.warning("%s rests for %.0f s: %s", batch.id, PAUSE_SECONDS, error.message)
            await self._rest(batch)
        except Exception:  # boundary: one batch that fails does not stop the others
            log.exception("%s failed", batch.id)
            await self._rest(batch)
        finally:
            self._held.pop(batch.id, None)
            self._rounds.wake()

    async def _rest(self, batch: BatchRecord) -> None:
        self._paused[batch.id] = self._clock.monotonic() + PAUSE_SECONDS
        try:
            await self._kept.release(batch)
        except GatehouseError as error:
            log.debug("%s could not be released: %s", batch.id, error.message)

    async def aclose(self) -> None:
        """Begins no more lines, waits for those that run and notes what came of them; whoever follows goes on."""
        self.shared.closing = True
        self._rounds.close()
        await self._tasks.finish(10.0)
