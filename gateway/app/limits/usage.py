"""The process with the store counts usage from the audit log: what each caller used is in the store a few seconds after it is in the log.

The log is the truth. Sums and the position up to which they go are written in one transaction, so that a process that is killed at any
moment, and replicas that read the same files, count each request once. Nothing is counted in memory only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.audit.ledger import LedgerReader, Mark, bytes_behind, rows
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.outcome_figures import DAY, day_name
from gateway.audit.reconcile import compare
from gateway.core.errors import GatehouseError
from gateway.core.ledger import Position
from gateway.core.specs import SessionsSpec
from gateway.core.storage import ControlStore
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.usage")

COUNT_SECONDS: Final = 1.0
"""Between two looks at the log."""
FORGET_SECONDS: Final = 60.0
ALARM: Final = 64 * 1024 * 1024
"""Bytes that are not counted yet from which on a warning is logged."""


class UsageCounter:
    """Counts the logs of all writers in one directory. Life: `start`, `count(settled=True)` once the own writer is closed, `aclose`.

    sessions: what is kept of sessions, by the settings in force. began: when this process did, before it recorded anything. behind: bytes
    of the log that were not counted at the last look.
    """

    def __init__(
        self,
        store: ControlStore,
        directory: Path,
        sessions: Callable[[], SessionsSpec] = SessionsSpec,
        opener: Opener = CLOSED,
        began: float | None = None,
    ) -> None:
        self._store, self._directory, self._sessions, self._opener = store, directory, sessions, opener
        self._reader = LedgerReader(directory, began=time.time() if began is None else began, opener=opener)
        self._tasks = TaskOwner("usage")
        self._stored: dict[str, Position] | None = None
        self._at: dict[str, Position] = {}
        self._counting = asyncio.Lock()
        self._alarmed = self._refused = self.started = False
        self.behind = 0

    def start(self) -> None:
        self.started = True
        self._tasks.every(COUNT_SECONDS, self._count, name="count")
        self._tasks.every(FORGET_SECONDS, self._forget, name="forget sessions")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def segment(self, writer: str) -> int:
        """The segment that is counted next; 0 as long as that is not known."""
        return self._at[writer].segment if writer in self._at else 0

    async def _forget(self) -> None:
        """Deletes what is not kept of sessions."""
        kept = self._sessions()
        try:
            await self._store.forget_sessions(day_name(int((time.time() - kept.keep) // DAY)), kept.most)
        except GatehouseError as error:
            log.debug("sessions are forgotten later: %s", error.message)

    async def _count(self) -> None:
        try:
            await self.count()
        except (GatehouseError, OSError) as error:
            if not self._refused:
                log.warning("usage is not counted now; it will be counted from the audit log: %s", error)
            self._refused = True
        else:
            self._refused = False

    async def count(self, *, settled: bool = False) -> None:
        """Counts what is new. settled: the newest lines too, which no write can take back any more. Raises StoreUnavailable, OSError."""
        async with self._counting:
            if self._stored is None:
                self._reader.counted_from = await self._store.usage_counted_from()
                self._stored = await self._store.usage_positions()
            writers = await asyncio.to_thread(self._reader.writers)
            try:
                for writer, segments in writers.items():
                    mark = await asyncio.to_thread(self._reader.look, writer, segments, settled=settled)
                    if mark is not None:
                        await self._count_writer(writer, segments, mark)
            except (GatehouseError, OSError):
                await self._tell(writers)
                raise
            await self._tell(writers)

    async def _count_writer(self, writer: str, segments: list[tuple[int, Path]], mark: Mark) -> None:
        assert self._stored is not None
        while True:
            if writer not in self._at:
                stored = self._stored.get(writer, Position(writer))
                self._at[writer] = await asyncio.to_thread(self._reader.resume, stored, segments)
            at = self._at[writer]
            part = await asyncio.to_thread(self._reader.part, at, segments, mark)
            if part.after == at:
                return
            if part.sums:
                before = self._stored.get(writer, Position(writer))
                others = part.others.rows(sessions=self._sessions().most > 0)
                if not await self._store.add_usage(rows(writer, part.sums), before, part.after, others):
                    del self._at[writer]  # another process has counted these lines: go on after them
                    moved = await self._store.usage_positions()
                    self._stored[writer] = moved.get(writer, Position(writer))
                    segments = (await asyncio.to_thread(self._reader.writers)).get(writer, [])  # it may have read newer ones
                    continue
                self._stored[writer] = part.after
            self._at[writer] = part.after

    async def _tell(self, writers: Mapping[str, list[tuple[int, Path]]]) -> None:
        at = [(self._at[writer], segments) for writer, segments in writers.items() if writer in self._at]
        behind = self.behind = await asyncio.to_thread(lambda: sum(bytes_behind(*one) for one in at))
        if behind >= ALARM and not self._alarmed:
            log.warning("counting usage is %d bytes of the audit log behind", behind)
        self._alarmed = behind >= ALARM

    async def reconcile(self) -> dict[str, Any]:
        """Counts what is new, then compares what the store says with what the log of this machine says, up to the same lines. Raises
        StoreUnavailable, OSError."""
        await self.count()
        reader = LedgerReader(self._directory, self._reader.counted_from, opener=self._opener)
        segments = await asyncio.to_thread(reader.writers)
        positions, charged = await self._store.usage_of_writers(sorted(segments))
        lines, compared = await asyncio.to_thread(compare, reader, segments, positions, charged)
        return {
            "scopes": lines,
            "difference": sum(abs(line["difference"]) for line in lines),
            "unopened": reader.unopened,
            "writers": [{"writer": one.writer, "up_to": one.up_to, "complete_from": one.complete_from or None} for one in compared],
        }


async def counted(counter: UsageCounter) -> bool:
    """Counts what is left at the end. Whether it could be: otherwise the next start does, as it does for one that never began: then the
    store may have no tables yet."""
    if not counter.started:
        return False
    try:
        await counter.count(settled=True)
    except (GatehouseError, OSError) as error:  # no store, or no key that opens the records
        log.warning("the last usage is not counted yet; the next start does it: %s", error)
        return False
    return True
