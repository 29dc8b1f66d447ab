"""The writer: encodes, numbers, chains, rotates, signs. Everything here blocks and belongs to the writer's thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.audit.chain import FORMAT, Chain, Draft, Entry
from gateway.audit.checkpoint_tree import rooted, tree_over
from gateway.audit.crypto import Signer
from gateway.audit.encode import encode_json
from gateway.audit.journal import Journal, journal_name
from gateway.audit.leftover import missing_from, records_in
from gateway.audit.merkle import Frontier, leaf_hash
from gateway.audit.neighbours import Missing, Witness, refuse_strangers
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.record import CheckpointRecord, SegmentRecord, Sighting
from gateway.audit.repair import Found, examine, last_checkpoint, set_aside
from gateway.audit.signing_keys import trusted
from gateway.audit.sinks.file import AppendFile, FileSink, checkpoints_name
from gateway.audit.unfinished import unfinished
from gateway.core.clock import Clock
from gateway.core.types import EventRecord

log = logging.getLogger("gatehouse.audit")

RESERVE: Final = 64 * 1024 * 1024
"""Bytes that must be free on the log's file system before requests may rely on the journal."""


class ChainWriter:
    """Writes batches of records to the local log. A method that raises OSError has written nothing and may be called again.

    `roomy`: whether there were RESERVE bytes left after the last batch, and the journal is where it was. `look`: set now and then: before
    the next batch, or with `mind`, the files are looked after. `spools`: says why a required sink forbids more records, or None; `behind`:
    what it said at the last look. `damaged`: when the log, or files of another writer, were last found damaged or deleted; 0: never. renew:
    gives the signing key when it was replaced, else None. age: seconds after which a new segment begins. process: see SegmentRecord.
    `seal`: encrypts the texts in a batch, in their places. `cover`: encrypts the records of a batch, which follow the line of this number
    in this writer's log; raises OSError. `opener`: opens what it encrypted.
    """

    def __init__(self, sink: FileSink, signer: Signer, clock: Clock, config: int = 0) -> None:
        self.sink, self.signer, self.clock, self.config = sink, signer, clock, config
        self.chain = Chain()
        self.written = self.batches = 0
        self.roomy = self.look = False
        self.damaged = 0.0
        self.spools: Callable[[], str | None] | None = None
        self.behind: str | None = None
        self.renew: Callable[[], Signer | None] | None = None
        self.age: float | None = None
        self.process = ""
        self._begun = 0.0
        self._tree: Frontier | None = None
        self.seal: Callable[[Sequence[Entry]], None] | None = None
        self.cover: Callable[[Sequence[Entry], str, int], list[Entry]] | None = None
        self.opener: Opener = CLOSED
        self._checkpoints: AppendFile | None = None
        self._number = 0
        self._covered = 0
        self._newest: CheckpointRecord | None = None
        self._broken: dict[str, Any] | None = None
        self._journal: Path | None = None
        self._journaled = True
        self._witness = Witness(sink.directory, sink.writer, signer.verifier)

    def open(self, recovered_by: str = "") -> None:
        """Repairs what a crash left, resumes the chain and records the start; a checkpoint follows where there are other writers, so that
        each knows of the others. recovered_by: the writer whose process does this for one that has ended. Raises ConfigError, OSError."""
        self.sink.open()
        self.sink.mark(self.signer.key_id)
        verifier = trusted(self.signer.verifier, self.sink.directory)
        self._witness.trust(verifier)
        refuse_strangers(self.sink.directory, self.sink.writer, verifier.known)
        previous = self._open_checkpoints()
        if previous is not None and verifier.genuine(previous):
            self._newest = previous  # the chain may have been stopped just before this line
        found = examine(self.sink, verifier, previous)
        self._begun = self.clock.wall() if found.begun is None else found.begun
        self.chain = Chain(found.seq, found.head)
        entries = self._enter(found)
        journal = self.sink.directory / journal_name(self.sink.writer)
        detail: dict[str, Any] = {"segment": self.sink.segment, "clean": found.closed}
        if recovered_by:
            detail["recovered_by"] = recovered_by
        if self.process:
            detail["process"] = self.process
        records, unreadable = records_in(journal)
        paths = [path for _, path in self.sink.segments()]
        if waiting := missing_from(paths, records, self.sink.writer, self.opener):
            log.warning("%d audit records came from the journal of a process that ended before it had chained them", len(waiting))
            detail["from_journal"] = len(waiting)
        if unreadable:
            aside = journal.with_name(f"{journal.name}.unreadable-{os.urandom(4).hex()}")
            log.error("the journal of the audit log has entries that are not records; it is kept as %s", aside.name)
            detail["unreadable_journal"] = aside.name
        if not found.closed or waiting:
            ended = unfinished(paths, waiting, self.clock.wall(), self.sink.writer, self.opener)
            if ended:
                log.warning("%d requests had no outcome when their process ended: each is charged what it had reserved", len(ended))
                detail["outcomes_unknown"] = len(ended)
        else:
            ended = []
        entries += waiting
        entries += ended
        entries.append(self._event("audit.opened", detail))
        self.write(entries)
        if unreadable:
            journal.rename(aside)
        journal.unlink(missing_ok=True)
        self._witness.look()
        if not self._witness.alone:
            self.checkpoint()
        self._look_at_spools()

    def make_journal(self) -> Journal | None:
        """A journal for the loop, once the log is open. None, with a warning, when there is no room for one or it cannot be made."""
        if not self.roomy:
            return None
        try:
            journal = Journal(self.sink.directory / journal_name(self.sink.writer))
        except OSError as error:
            log.warning("the audit log has no journal (%s): every request waits for the write of its record", error.strerror or error)
            return None
        self._journal = journal.path
        return journal

    def _open_checkpoints(self) -> CheckpointRecord | None:
        path = self.sink.directory / checkpoints_name(self.sink.writer)
        previous, size = last_checkpoint(self.sink.directory, self.sink.writer)
        self._checkpoints = AppendFile(path, create=not path.exists(), files=self.sink.files)
        self._checkpoints.cut(size)
        self._number = previous.number if previous else 0
        self._tree = tree_over(path)
        return previous

    def _enter(self, found: Found) -> list[Entry]:
        """Chooses the segment to go on in; returns the events that tell what was wrong with the log."""
        self._covered = found.seq if found.closed else 0
        if found.broken:
            log.error("the audit log is damaged: %s; it goes on in segment %d", found.broken, found.segment + 1)
            self._broken = found.broken
            self.sink.begin(found.segment + 1)
            return [self._event("audit.broken", found.broken, outcome="failed")]
        if not found.segment:
            self.sink.begin(1)
            return []
        self.sink.resume(found.segment)
        if not found.torn:
            return []
        size = self.sink.size - found.torn.offset
        side = set_aside(self.sink, found.torn)
        detail = {"segment": found.segment, "offset": found.torn.offset, "bytes": size, "moved_to": side.name, "reason": found.torn.reason}
        log.warning("the audit log had a torn tail: %s", detail)
        return [self._event("audit.repaired", detail)]

    def write(self, records: Sequence[Entry], draft: Draft | None = None) -> None:
        """Writes the records as one batch, all or nothing. `draft`: the first of them, already linked."""
        if self.look and (lost := self._look_after_files()):
            records, draft = [*lost, *records], None
        if self.seal is not None:
            self.seal(records)
        if self.sink.full or self._old:
            self._rotate()
        if self.sink.fresh:
            records, draft = [self._header(), *records], None
        if self.cover is not None:
            records, draft = self.cover(records, self.sink.writer, self.chain.seq), None
        self._put(self.chain.seal(records, draft))
        self.written += len(records)
        self.batches += 1
        self.roomy = self._roomy()

    def mind(self) -> None:
        """Looks after the files while there is nothing to write; nothing once they are closed."""
        if self.look and self._checkpoints is not None and (lost := self._look_after_files()):
            self.write(lost)

    def _look_after_files(self) -> list[EventRecord]:
        """Goes on in new files where somebody has deleted those in use; what is to be told. The lock is the first: without it, the writer
        would pass for one that no process has."""
        gone = ["lock"] if self.sink.keep_lock(self.signer.key_id) else []
        if self.sink.deleted:
            broken = {"segment": self.sink.segment, "line": 0, "reason": "the segment was deleted while it was written"}
            self.sink.begin(self.sink.segment + 1)
            self._broken = broken
            gone.append("segment")
        if self._checkpoints is not None and self._checkpoints.deleted:
            path = self._checkpoints.path
            fresh = AppendFile(path, create=not path.exists(), files=self.sink.files)
            self._checkpoints.close()
            self._checkpoints = fresh
            gone.append("checkpoints")
        if self._journal is not None and not self._journal.exists():
            self._journal, self._journaled = None, False
            gone.append("journal")
        self.look = False
        self._look_at_spools()
        news = self._renewed()
        if not gone:
            return news
        log.error("somebody has deleted files of the audit log that are in use: %s; it goes on in segment %d", gone, self.sink.segment)
        return [self._event("audit.broken", {"deleted": gone, "segment": self.sink.segment}, outcome="failed"), *news]

    def _renewed(self) -> list[EventRecord]:
        """Takes a signing key that has replaced the present one; what is to be told."""
        fresh = None if self.renew is None else self.renew()
        if fresh is None or fresh.key_id == self.signer.key_id:
            return []
        before, self.signer = self.signer, fresh
        verifier = trusted(fresh.verifier, self.sink.directory)
        self._witness.trust(verifier)
        self.sink.mark(fresh.key_id)
        endorsed = verifier.generation(before.key_id) >= 0
        log.warning("the audit log is signed with the key %s from now on, in place of %s", fresh.key_id, before.key_id)
        detail = {"key": fresh.key_id, "public": fresh.verifier.raw.hex(), "previous": before.key_id, "endorsed": endorsed}
        return [self._event("audit.key_rotated", detail)]

    @property
    def _old(self) -> bool:
        return self.age is not None and not self.sink.fresh and self.clock.wall() - self._begun >= self.age

    def _look_at_spools(self) -> None:
        if self.spools is not None:
            self.behind = self.spools()

    def _put(self, lines: bytes) -> None:
        self.sink.write(lines)
        self.chain.commit()

    def _roomy(self) -> bool:
        try:
            return self._journaled and self.sink.free() >= RESERVE
        except OSError:
            return False

    def _header(self) -> SegmentRecord:
        sink = self.sink
        return SegmentRecord(
            time=self.clock.wall(),
            format=FORMAT,
            segment=sink.segment,
            writer=sink.writer,
            previous=self.chain.head,
            config=self.config,
            broken=self._broken,
            process=self.process,
        )

    def _rotate(self) -> None:
        self.checkpoint()
        self.sink.begin(self.sink.segment + 1)
        self._broken = None
        self._begun = self.clock.wall()

    def checkpoint(self) -> None:
        """Signs the head of the chain, in the checkpoints file and as a record, and names the other writers' news. Nothing when no record
        came since the last one and nobody else has written much."""
        if self._checkpoints is None or self.sink.fresh:
            return
        others = self._witness.look()
        for missing in self._witness.missing:
            self._tell_missing(missing)
        if self.chain.seq == self._covered and not self._witness.due:
            return
        checkpoint = self._newest
        if checkpoint is None or (checkpoint.covers, checkpoint.head) != (self.chain.seq, self.chain.head):
            checkpoint = self._sign(others)
            line = encode_json(checkpoint)
            self._checkpoints.append(line + b"\n", sync=self.sink.sync)
            self._number += 1
            if self._tree is not None:
                self._tree.add(leaf_hash(line))
            self._newest = checkpoint  # not signed again when only the next line fails
            self._witness.noted(others)
        self._put(self.chain.seal([checkpoint]))
        self._covered = self.chain.seq

    def _tell_missing(self, missing: Missing) -> None:
        seen = missing.seen
        log.error("the audit log of the writer %s lacks checkpoint %d: %s", missing.writer, seen.number, missing.reason)
        detail = {"checkpoint": seen.number, "line": seen.covers, "hash": seen.head, "reason": missing.reason}
        self._put(self.chain.seal([self._event("audit.missing", detail, outcome="failed", writer=missing.writer)]))

    def _sign(self, others: dict[str, Sighting]) -> CheckpointRecord:
        sink, chain = self.sink, self.chain
        checkpoint = CheckpointRecord(
            time=self.clock.wall(),
            writer=sink.writer,
            number=self._number + 1,
            segment=sink.segment,
            covers=chain.seq,
            head=chain.head,
            key=self.signer.key_id,
            others=others,
        )
        return self.signer.sign(rooted(checkpoint, self._tree))

    def close(self, lost: int = 0) -> None:
        """Writes the last event and checkpoint and brings everything to the disk. Lets go of the files even when that fails (OSError,
        GatehouseError). lost: outcomes that found no room since the log was opened; their requests, which have all ended, get others."""
        try:
            detail: dict[str, Any] = {"segment": self.sink.segment}
            paths = [path for _, path in self.sink.segments()] if lost else []
            ended = unfinished(paths, (), self.clock.wall(), self.sink.writer, self.opener)
            if ended:
                log.warning("%d requests have no outcome, because the log had no room: each is charged what it had reserved", len(ended))
                detail["outcomes_unknown"] = len(ended)
            self.write([*ended, self._event("audit.closed", detail)])
            self.checkpoint()
            self.sink.settle()
            if self._checkpoints is not None:
                self._checkpoints.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the files and writes nothing more."""
        self.sink.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None

    def _event(self, name: str, detail: dict[str, Any], outcome: str = "ok", writer: str = "") -> EventRecord:
        target, now = f"audit-{writer or self.sink.writer}", self.clock.wall()
        if outcome == "failed":
            self.damaged = now
        return EventRecord(time=now, event=name, actor="gatehouse", target=target, outcome=outcome, detail=detail)
