"""The two batches of the audit log: the one that gathers, and the one that is being written."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.audit.chain import Entry
from gateway.core.types import EventRecord, OutcomeRecord
from gateway.core.waiting import Signal

TRIAL: Final = "audit.recovered"
"""The event with which a broken log is tried; it is made anew for each try."""


class Gathering:
    """The batch that gathers while the writer is busy.

    signal: completes when the batch is written; made when somebody first waits for it. room: how many entries the batch may hold for one
    more intent or event to be taken; none while the log takes no records. outcome_room: the same for outcomes. timer, scheduled: the batch
    will be handed over after a delay, or in the loop's next turn. unawaited: nobody waits for the write of a record.
    """

    def __init__(self, queue: int, unawaited: bool = False) -> None:
        self._queue, self._unawaited = queue, unawaited
        self.entries: list[Entry] = []
        self.signal: Signal[None] | None = None
        self.room = self.outcome_room = 0
        self.timer: asyncio.TimerHandle | None = None
        self.scheduled = False

    def resize(self, writing: int, accepting: bool) -> None:
        """The queue holds `writing` entries besides this batch."""
        self.outcome_room = self._queue - writing
        self.room = self.outcome_room if accepting else 0

    def take(self) -> tuple[list[Entry], Signal[None] | None]:
        """The batch and its signal; the next batch begins empty."""
        entries, signal = self.entries, self.signal
        self.entries, self.signal = [], None
        return entries, signal

    def put_back(self, batch: list[Entry]) -> int:
        """Keeps what must be recorded of a batch that was not written: outcomes, and requests that were forwarded on their journal
        entries; where nobody waits for a record, all of it but the event that tried the log. The number of records for which there was no
        room."""
        kept: list[Entry]
        if self._unawaited:
            kept = [record for record in batch if not (isinstance(record, EventRecord) and record.event == TRIAL)]
        else:
            kept = [record for record in batch if isinstance(record, OutcomeRecord | bytes)]
        kept += self.entries
        self.entries = kept[: self._queue]
        return max(0, len(kept) - self._queue)


class Writing:
    """What the writer's thread is doing. batch: None while it is free; empty while it does something else than write a batch."""

    def __init__(self) -> None:
        self.batch: list[Entry] | None = None
        self.signal: Signal[None] | None = None
        self.since = 0.0

    def begin(self, batch: list[Entry], signal: Signal[None] | None, now: float) -> None:
        self.batch, self.signal, self.since = batch, signal, now

    def end(self) -> tuple[list[Entry], Signal[None] | None]:
        batch, signal = self.batch, self.signal
        self.batch = self.signal = None
        return batch or [], signal
