"""Writers that no process has any more: their chains are repaired and closed, and what their journals hold is chained.

A worker that replaces a dead one does this for the writer that it takes over. The control process looks for all others: after fewer
workers were started than before, after a change of the replica's id, after an upgrade. It holds up no other writer. Everything here
blocks: call it in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from gateway.audit.crypto import Signer
from gateway.audit.journal import journal_name
from gateway.audit.neighbours import holder, writers_in
from gateway.audit.repair import last_checkpoint
from gateway.audit.segments import open_segment
from gateway.audit.signing_keys import trusted
from gateway.audit.sinks.file import FileSink, list_segments
from gateway.audit.writer import ChainWriter
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError

log = logging.getLogger("gatehouse.audit")

_TAIL = 256 * 1024


class Recovery:
    """Looks after the other writers of one directory. writer: this process's own. make: the sink of another one. renew: gives the signing
    key when it was replaced, else None. prepare: has a chain encrypt as this process's own does.

    A writer is recovered when two looks in a row found that no process has it, so that a worker's successor comes first.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        make: Callable[[str], FileSink],
        signer: Signer,
        clock: Clock,
        renew: Callable[[], Signer | None] = lambda: None,
        prepare: Callable[[ChainWriter], None] = lambda chain: None,
    ) -> None:
        self._directory, self._writer, self._make, self._signer, self._clock = directory, writer, make, signer, clock
        self._renew, self._prepare = renew, prepare
        self._left: set[str] = set()
        self._failed: set[str] = set()
        self._settled: dict[str, tuple[int, int]] = {}
        """The newest segment (inode, size) of those that need nothing."""

    def look(self) -> list[str]:
        """One look; the writers that it recovered. Never raises: what cannot be recovered now is tried again with the next look."""
        recovered: list[str] = []
        self._signer = self._renew() or self._signer
        try:
            left = {writer for writer in writers_in(self._directory) - {self._writer} if self._needs(writer)}
            for writer in sorted(left & self._left):
                if self._recover(writer):
                    recovered.append(writer)
            self._left = left.difference(recovered)
        except OSError as error:
            log.warning("the audit log's other writers cannot be looked at: %s", error.strerror or error)
        return recovered

    def _needs(self, writer: str) -> bool:
        if holder(self._directory, writer) is not None:
            return False
        segments = list_segments(self._directory).get(writer, [])
        if not segments:
            return (self._directory / journal_name(writer)).exists()
        if (self._directory / journal_name(writer)).exists():
            return True
        status = segments[-1][1].stat()
        mark = status.st_ino, status.st_size
        if self._settled.get(writer) != mark:
            if not _closed(segments[-1][1]):
                return True
            self._settled[writer] = mark
        return False

    def _recover(self, writer: str) -> bool:
        """Whether it was done. Another process may have taken the writer meanwhile: then it is that process's."""
        previous, _ = last_checkpoint(self._directory, writer)
        if previous is not None and not trusted(self._signer.verifier, self._directory).genuine(previous):
            return False  # signed with another key: its own gateway recovers it
        chain = ChainWriter(self._make(writer), self._signer, self._clock)
        self._prepare(chain)
        try:
            if not chain.sink.take():
                return False
            chain.open(recovered_by=self._writer)
            chain.close()
        except (OSError, GatehouseError) as error:
            if writer not in self._failed:
                log.error("the audit log of the writer %s, which no process has, could not be recovered: %s", writer, error)
            self._failed.add(writer)
            return False
        finally:
            chain.abandon()
        self._failed.discard(writer)
        log.warning("the audit log of the writer %s was closed for a process that had ended", writer)
        return True


def _closed(path: Path) -> bool:
    """Whether a segment ends as a writer leaves it that is stopped: the farewell, then checkpoints."""
    with open_segment(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().split(b"\n")
    if lines.pop() != b"":
        return False
    while lines and b'"kind":"checkpoint"' in lines[-1][:64]:
        lines.pop()
    return bool(lines) and b'"event":"audit.closed"' in lines[-1][:128]
