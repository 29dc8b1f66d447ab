"""The fast path of the audit log: the journal, on which requests are forwarded without waiting for the chain."""

from __future__ import annotations

from typing import Final

from gateway.audit.chain import Chain, Draft, Entry, payload
from gateway.audit.journal import Journal
from gateway.core.types import AuditRecord

AHEAD: Final = 8
"""How many records are linked ahead at one time: one request must not link all that gathered during a slow write."""


class FastPath:
    """Copies records into the journal, and links them to the chain before their batch is handed over.

    open: whether requests use it now (gateway.audit.reliance decides). draft: the first records of the gathering batch, linked ahead.
    """

    def __init__(self) -> None:
        self.open = False
        self.draft: Draft | None = None
        self._journal: Journal | None = None
        self._mark = 0

    @property
    def usable(self) -> bool:
        """Whether there is a journal at all."""
        return self._journal is not None

    def attach(self, journal: Journal | None) -> None:
        self._journal = journal

    def take(self, record: AuditRecord) -> bytes | None:
        """Copies a record into the journal; its payload, or None when there is no room."""
        journal = self._journal
        if journal is None:
            return None
        entry = payload(record)
        return entry if journal.append(entry) else None

    def link_ahead(self, entries: list[Entry], chain: Chain) -> None:
        """Links the next journaled entries of the gathering batch to the chain, while the writer is free (so that the chain stands still).
        The writer's thread, linking a whole batch, would keep the interpreter from the loop meanwhile."""
        draft = self.draft
        if draft is None:
            draft = self.draft = Draft(chain)
        draft.follow(entries, AHEAD)

    def hand_over(self) -> Draft | None:
        """The gathering batch goes to the writer: what was linked of it. Once it is written, the journal is settled up to here."""
        draft, self.draft = self.draft, None
        if self._journal is not None:
            self._mark = self._journal.position
        return draft

    def keep(self) -> None:
        """Some records of the journal stay behind: the batch that was handed over settles nothing."""
        if self._journal is not None:
            self._mark = self._journal.done

    def settle(self) -> None:
        """The batch that was handed over is written."""
        if self._journal is not None:
            self._journal.settle(self._mark)

    def shut(self) -> None:
        """From now on every request waits for its record."""
        self.open = False
        self.draft = None

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
