"""Offline verification of an audit log. It needs the log, the checkpoints and the public key, and no running Gatehouse.

Every line is proven to follow the one before it (which finds an edit, a deletion, an insertion, a reordering, a swapped segment), and the
line that each signed checkpoint covers is proven to have the hash that was signed (which finds a chain that was computed anew and a tail
that was cut off). Lines after the last checkpoint are chained but not signed yet; `unsigned` counts them. A copy of the checkpoints kept
elsewhere also shows that log and checkpoints were deleted together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gateway.audit.chain import FORMAT, GENESIS, Chain, ChainError, check_line, read_line, read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.journal import journal_name
from gateway.audit.leftover import missing_from, records_in
from gateway.audit.record import MAX_LINE, CheckpointRecord, SegmentRecord
from gateway.audit.repair import read_checkpoint, read_header
from gateway.audit.sinks.file import checkpoints_name, list_segments, segment_name

PATIENCE: Final = 0.5
"""Seconds in which a writer at work chains what its journal held when the verification began."""


class Problem(msgspec.Struct, frozen=True):
    """A place that is not as it was written: file name, line (1-based; 0: the file as a whole) and what is wrong."""

    file: str
    line: int
    reason: str


class Skipped(msgspec.Struct, frozen=True):
    """What lies before the first verified segment: its last segment, its last line and that line's hash, with which the header of the first
    verified segment says that it goes on.

    checkpoint: the number of the signed checkpoint that proves this hash; None where none does. Then the next checkpoint proves it: a
    signed hash covers all hashes before it.
    """

    segment: int
    line: int
    hash: str
    checkpoint: int | None = None


class JournalReport(msgspec.Struct, frozen=True):
    """What a journal holds. records: those that its writer has not settled. unchained: how many of them are not in the log.
    unreadable: entries that are no records."""

    records: int
    unchained: int
    unreadable: int


class WriterReport(msgspec.Struct):
    """What was found of one writer's chain. `signed`: the last line that a checkpoint covers; `unsigned`: how many came after it.

    unfinished: the newest segment ends inside a line: a write under way, or a crash after which no writer started yet. skipped: what was
    not verified because the verification began at a later segment. journal: None where there is no journal.
    """

    writer: str
    segments: int = 0
    lines: int = 0
    last: int = 0
    checkpoints: int = 0
    signed: int = 0
    unfinished: bool = False
    skipped: Skipped | None = None
    journal: JournalReport | None = None
    problems: list[Problem] = []

    @property
    def unsigned(self) -> int:
        return max(0, min(self.lines, self.last - self.signed))


class Report(msgspec.Struct):
    """The whole directory, writer by writer."""

    writers: list[WriterReport]

    @property
    def problems(self) -> list[Problem]:
        return [problem for writer in self.writers for problem in writer.problems]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """The report as JSON-able values; `ok` and the first problem on top."""
        first = self.problems[0] if self.problems else None
        writers = [{**msgspec.to_builtins(w), "unsigned": w.unsigned} for w in self.writers]
        return {"ok": self.ok, "first_problem": msgspec.to_builtins(first), "writers": writers}


def verify_log(
    directory: Path,
    verifier: CheckpointVerifier,
    *,
    checkpoints: Path | None = None,
    first_segment: int = 1,
    patience: float = PATIENCE,
) -> Report:
    """Reads everything in `directory`, in constant memory.

    checkpoints: the directory with the checkpoints, where that is another one. first_segment: the oldest segment that must be there
    (older ones were archived, and are not looked at). patience: seconds to wait for a writer that may be at work to chain what its journal
    holds. Raises OSError.
    """
    source = checkpoints or directory
    names = sorted(path.name.removeprefix("audit-").removesuffix(".journal") for path in directory.glob(journal_name("*")))
    journals = {writer: _look_into_journal(directory, writer, patience) for writer in names}
    signed = {path.name: path.stat().st_size for path in source.iterdir() if path.match("checkpoints-*.jsonl")}
    found = list_segments(directory)  # after the sizes: a writer at work has written every line that those checkpoints cover
    for writer in (*journals, *(name.removeprefix("checkpoints-").removesuffix(".jsonl") for name in signed)):
        found.setdefault(writer, [])
    reports = []
    for writer in sorted(found):
        name = checkpoints_name(writer)
        report = _Walk(writer, verifier, source / name, signed.get(name, 0), first_segment).run(directory, found[writer])
        if (journal := journals.get(writer)) is not None:
            report.journal = journal
            report.problems += _journal_problems(writer, journal)
        reports.append(report)
    return Report(reports)


def _look_into_journal(directory: Path, writer: str, patience: float) -> JournalReport:
    """Compares what a journal holds now with the end of the log now, before the log is read: a busy one would grow past its records."""
    records, unreadable = records_in(directory / journal_name(writer))
    deadline = time.monotonic() + patience
    while True:
        unchained = missing_from([path for _, path in list_segments(directory).get(writer, [])], records)
        if not unchained or time.monotonic() >= deadline:
            return JournalReport(len(records), len(unchained), unreadable)
        time.sleep(patience / 10)


def _journal_problems(writer: str, journal: JournalReport) -> Iterator[Problem]:
    if journal.unchained:
        reason = f"{_count(journal.unchained)} in the journal and not in the log; the next start of the gateway chains them"
        yield Problem(journal_name(writer), 0, reason)
    if journal.unreadable:
        yield Problem(journal_name(writer), 0, f"entries that are no records: {journal.unreadable}")


def _count(records: int) -> str:
    return "1 record is" if records == 1 else f"{records} records are"


class _Walk:
    """One writer's segments in order, with the checkpoints beside them."""

    def __init__(self, writer: str, verifier: CheckpointVerifier, checkpoints: Path, size: int, first_segment: int) -> None:
        self.report = WriterReport(writer, problems=[])
        self._verifier, self._checkpoints, self._size, self._first = verifier, checkpoints, size, first_segment
        self._seq, self._head = 0, GENESIS.encode()
        self._adopt = first_segment > 1
        self._signed = self._read_checkpoints()
        self._next = next(self._signed, None)
        self._file, self._line = "", 0

    def run(self, directory: Path, segments: list[tuple[int, Path]]) -> WriterReport:
        expected = self._first
        waiting = [entry for entry in segments if entry[0] >= self._first]
        while waiting:
            number, path = waiting.pop(0)
            overlooked = directory / segment_name(self.report.writer, expected)
            if number > expected and overlooked.exists():  # a listing taken while segments are made can miss one
                waiting.insert(0, (number, path))
                number, path = expected, overlooked
            self._file, self._line = path.name, 0
            if number != expected:
                self._missing(expected, number)
            expected = number + 1
            self.report.segments += 1
            with path.open("rb") as file:
                self._segment(file, number, newest=not waiting)
        self._end()
        return self.report

    def _missing(self, expected: int, number: int) -> None:
        """Segments are missing before this one."""
        gone = f"segment {expected} is" if number == expected + 1 else f"segments {expected} to {number - 1} are"
        archived = "" if self.report.segments else f"; where older segments were archived, verify from segment {number} on"
        self._problem(f"{gone} missing before this one{archived}")
        self._adopt = True

    def _problem(self, reason: str) -> None:
        self.report.problems.append(Problem(self._file, self._line, reason))

    def _segment(self, file: BinaryIO, number: int, *, newest: bool) -> None:
        for line in read_lines(file):
            self._line += 1
            if newest and line[-1:] != b"\n" and len(line) < MAX_LINE:
                line += file.readline(MAX_LINE)  # the rest, where a write is under way
                if line[-1:] != b"\n":
                    self.report.unfinished = True
                    return
            try:
                if self._line == 1:
                    self._header(line, number)
                self._head = check_line(line, self._seq + 1, self._head)
                self._seq += 1
                self._count(line)
            except ChainError as error:
                self._problem(str(error))
                self._adopt = True
                return
        if self._line == 0 and not newest:
            self._problem("the segment is empty")
            self._adopt = True

    def _header(self, line: bytes, number: int) -> None:
        claims, header = read_line(line), read_header(line)
        if claims is None or header is None:
            raise ChainError("the segment has no header")
        self._check_header(header, number)
        if header.broken is not None or self._adopt:
            if header.broken is not None and not self.report.problems:
                self._problem(f"the writer found the log damaged when it started: {header.broken.get('reason', '')}")
            self._seq, self._head, self._adopt = claims.seq - 1, header.previous.encode(), False
            proof = self._skip_checkpoints()
            if self.report.segments == 1 and number == self._first > 1:
                self.report.skipped = Skipped(number - 1, self._seq, header.previous, proof)
        elif header.previous.encode() != self._head:
            raise ChainError("the segment does not follow on the one before it")

    def _check_header(self, header: SegmentRecord, number: int) -> None:
        if header.format != FORMAT:
            raise ChainError(f"format {header.format} is unknown; this is version {FORMAT}")
        if (header.writer, header.segment) != (self.report.writer, number):
            raise ChainError(f"this is segment {header.segment} of writer {header.writer}")

    def _skip_checkpoints(self) -> int | None:
        """After a jump: what checkpoints cover before it cannot be looked at any more. The number of the one that proves the hash that the
        jump adopted, if one does."""
        proof = None
        while self._next is not None and self._next.covers <= self._seq:
            if (self._next.covers, self._next.head.encode()) == (self._seq, self._head) or self._closed_with(self._next):
                self.report.signed = self._next.covers
                proof = self._next.number
            self._next = next(self._signed, None)
        return proof

    def _closed_with(self, checkpoint: CheckpointRecord) -> bool:
        """Whether the last line before the jump is the one that carries this checkpoint, as at the end of every full segment."""
        chain = Chain(checkpoint.covers, checkpoint.head)
        chain.seal([checkpoint])
        chain.commit()
        return (chain.seq, chain.head.encode()) == (self._seq, self._head)

    def _count(self, line: bytes) -> None:
        report = self.report
        report.lines += 1
        report.last = self._seq
        if b'"kind":"checkpoint"' in line[:48]:
            self._chained_checkpoint(line)
        while self._next is not None and self._next.covers <= self._seq:
            if self._next.covers == self._seq:
                if self._next.head.encode() != self._head:
                    raise ChainError(f"this is not the line that checkpoint {self._next.number} signed")
                report.signed = self._seq
            self._next = next(self._signed, None)

    def _chained_checkpoint(self, line: bytes) -> None:
        checkpoint = read_checkpoint(line)
        if checkpoint is None or not self._verifier.genuine(checkpoint):
            raise ChainError("the checkpoint in this line is not genuine")
        if checkpoint.covers != self._seq - 1 or checkpoint.writer != self.report.writer:
            raise ChainError("the checkpoint in this line belongs elsewhere")
        if checkpoint.number > self.report.checkpoints and self._next is None:
            # chained, but not (or no longer) in the checkpoints file: its own signature counts
            self.report.signed = max(self.report.signed, checkpoint.covers)

    def _read_checkpoints(self) -> Iterator[CheckpointRecord]:
        """The genuine checkpoints of the file, in order; problems on the way are recorded with the file's lines."""
        if not self._checkpoints.exists():
            return
        covers, number, line_number, position = 0, None, 0, 0
        with self._checkpoints.open("rb") as file:
            for line in read_lines(file):
                line_number += 1
                position += len(line)
                if line[-1:] != b"\n" or position > self._size:  # being written, or written since this verification began
                    return
                checkpoint = read_checkpoint(line)
                reason = self._check_checkpoint(checkpoint, covers, number)
                if reason or checkpoint is None:
                    self.report.problems.append(Problem(self._checkpoints.name, line_number, reason))
                    continue
                covers, number = checkpoint.covers, checkpoint.number
                self.report.checkpoints += 1
                yield checkpoint

    def _check_checkpoint(self, checkpoint: CheckpointRecord | None, covers: int, number: int | None) -> str:
        if checkpoint is None:
            return "this is no checkpoint"
        if not self._verifier.genuine(checkpoint):
            return "the signature is not genuine"
        if checkpoint.writer != self.report.writer:
            return f"this checkpoint belongs to writer {checkpoint.writer}"
        if number is not None and (checkpoint.number != number + 1 or checkpoint.covers <= covers):
            return f"checkpoint {number + 1} expected"
        if number is None and checkpoint.number != 1 and self._first == 1:
            return "checkpoint 1 expected"
        return ""

    def _end(self) -> None:
        if self._first > 1 and not self.report.segments:
            self._file, self._line = segment_name(self.report.writer, self._first), 0
            self._problem("the first segment to verify is missing, and so is every later one")
        elif self._next is not None and not self._adopt:
            self._line += 1
            self._problem(
                f"the log ends at {self._seq}, but checkpoint {self._next.number} covers {self._next.covers}: the end was cut off"
            )
        for _ in self._signed:
            pass
