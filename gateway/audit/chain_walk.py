"""One writer's chain, line by line, with the checkpoints beside it (gateway.audit.verify)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gateway.audit.chain import FORMAT, GENESIS, Chain, ChainError, check_line, read_line, read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.merkle import Frontier, leaf_hash
from gateway.audit.parallel_verify import Summary
from gateway.audit.record import MAX_LINE, CheckpointRecord, SegmentRecord, Sighting
from gateway.audit.repair import read_checkpoint, read_header
from gateway.audit.report import Problem, Skipped, WriterReport
from gateway.audit.segments import SegmentDamaged, open_segment
from gateway.audit.sinks.file import segment_name
from gateway.audit.statements import Seal, Tombstone, seals, seals_name, tombstones, tombstones_name

Covered = tuple[int, int]
"""The line that a checkpoint covers, and the first 8 bytes of its hash as a number; (0, 0) where there is no checkpoint."""


def covered(covers: int, head: str) -> Covered:
    return covers, int(head[:16], 16)


class Numbers:
    """What the checkpoints of a writer cover, by number: 16 bytes each, so that a log of years fits into memory. first: the lowest
    number."""

    __slots__ = ("_heads", "_lines", "first")

    def __init__(self) -> None:
        self._lines, self._heads = array("Q"), array("Q")
        self.first = 0

    def add(self, number: int, covers: int, head: str) -> None:
        """The first word about a number counts."""
        more = number - len(self._lines)
        if more > 0:
            self._lines.extend([0] * more)
            self._heads.extend([0] * more)
        if not self._lines[number - 1]:
            self._lines[number - 1], self._heads[number - 1] = covered(covers, head)
        self.first = min(self.first or number, number)

    @property
    def last(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Covered:
        if not 0 < number <= len(self._lines):
            return 0, 0
        return self._lines[number - 1], self._heads[number - 1]

    def __iter__(self) -> Iterator[int]:
        """The numbers, in order."""
        return (number for number, line in enumerate(self._lines, start=1) if line)


class Signed:
    """What one writer signed about another: all that it saw, and the newest of it with its place (file and line)."""

    __slots__ = ("file", "line", "newest", "numbers")

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.newest = Sighting(0, 0, "")
        self.file, self.line = "", 0

    def add(self, sighting: Sighting, file: str, line: int) -> None:
        self.numbers.add(sighting.number, sighting.covers, sighting.head)
        if sighting.number > self.newest.number:
            self.newest, self.file, self.line = sighting, file, line


class Walked(NamedTuple):
    """What was found of one writer: the report, its own checkpoints, what it signed about the others."""

    report: WriterReport
    own: Numbers
    others: dict[str, Signed]


class Walk:
    """One writer's segments in order, with the checkpoints beside them."""

    def __init__(self, writer: str, verifier: CheckpointVerifier, checkpoints: Path, size: int, first_segment: int) -> None:
        self.report = WriterReport(writer, problems=[])
        self._verifier, self._checkpoints, self._size, self._first = verifier, checkpoints, size, first_segment
        self._seq, self._head = 0, GENESIS.encode()
        self._adopt = first_segment > 1
        self._seals: dict[int, Seal] = {}
        self._graves: dict[int, Tombstone] = {}
        self.own = Numbers()
        self.others: dict[str, Signed] = {}
        self._signed = self._read_checkpoints()
        self._next = next(self._signed, None)
        self._file, self._line = "", 0

    def run(
        self,
        directory: Path,
        segments: list[tuple[int, Path]],
        ahead: Callable[[Path], Summary | None] = lambda path: None,
        on_read: Callable[[Path], None] = lambda path: None,
    ) -> WriterReport:
        """ahead: what is known of a segment already. on_read: called with each that was read here."""
        self._read_statements(directory)
        expected = self._first
        waiting = [entry for entry in segments if entry[0] >= self._first]
        while waiting:
            number, path = waiting.pop(0)
            overlooked = directory / segment_name(self.report.writer, expected)
            if number > expected and overlooked.exists():  # a listing taken while segments are made can miss one
                waiting.insert(0, (number, path))
                number, path = expected, overlooked
            self._file, self._line = path.name, 0
            if number != expected and not self._buried(expected, number):
                self._missing(expected, number)
            expected = number + 1
            self.report.segments += 1
            problems = len(self.report.problems)
            try:
                if (made := ahead(path)) is not None:
                    self._summarised(made, number)
                else:
                    with open_segment(path) as file:
                        self._segment(file, number, newest=not waiting)
                    on_read(path)
            except SegmentDamaged as error:
                self._problem(str(error))
                self._adopt = True
            if len(self.report.problems) == problems:
                self._check_seal(number)
        self._end()
        return self.report

    def _read_statements(self, directory: Path) -> None:
        """Seals and tombstones; those that are not genuine are problems and say nothing."""
        for name, found in (
            (seals_name(self.report.writer), self._seals),
            (tombstones_name(self.report.writer), self._graves),
        ):
            statements = (seals if found is self._seals else tombstones)(directory, self.report.writer, self._verifier)
            found.update(statements.found)
            self.report.problems += [Problem(name, line, reason, self.report.writer) for line, reason in statements.bad]

    def _buried(self, expected: int, number: int) -> bool:
        """Whether the segments before this one were taken away as configured: a tombstone of each goes on from the one before it."""
        graves = [self._graves.get(missing) for missing in range(expected, number)]
        seq, head, adopt = self._seq, self._head, self._adopt
        for grave in graves:
            if grave is None or not (adopt or (grave.first, grave.previous.encode()) == (seq + 1, head)):
                return False
            seq, head, adopt = grave.last, grave.head.encode(), False
        self._seq, self._head, self._adopt = seq, head, False
        self.report.expired += len(graves)
        self._skip_checkpoints()
        return True

    def _check_seal(self, number: int) -> None:
        seal = self._seals.get(number)
        if seal is not None and (seal.last, seal.head.encode()) != (self._seq, self._head):
            self._line += self._seq < seal.last  # the first one that is missing
            self._problem(f"the segment is not the one that was sealed: that ends with line {seal.last}")

    def _missing(self, expected: int, number: int) -> None:
        """Segments are missing before this one."""
        gone = f"segment {expected} is" if number == expected + 1 else f"segments {expected} to {number - 1} are"
        archived = "" if self.report.segments else f"; where older segments were archived, verify from segment {number} on"
        self._problem(f"{gone} missing before this one{archived}")
        self._adopt = True

    def _problem(self, reason: str) -> None:
        self.report.problems.append(Problem(self._file, self._line, reason, self.report.writer))

    def _segment(self, file: BinaryIO, number: int, *, newest: bool) -> None:
        lines = read_lines(file)
        while True:
            try:
                line = next(lines, b"")
            except SegmentDamaged as error:
                self._line += 1
                self._problem(str(error))
                self._adopt = True
                return
            if not line:
                break
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

    def _summarised(self, made: Summary, number: int) -> None:
        """As `_segment`, of one whose lines were found to follow from its header."""
        lines = self.report.lines
        try:
            self._line = 1
            self._header(made.header, number)
            for stop in made.stops:
                self._line, self._seq, self._head = stop.at, stop.seq, stop.head
                self._count(stop.line)
        except ChainError as error:
            self._problem(str(error))
            self._adopt = True
            self.report.lines = lines + self._line - 1
            return
        self._line, self._seq, self._head = made.lines, made.seq, made.head
        self.report.lines, self.report.last = lines + made.lines, made.seq

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
        self._note(checkpoint, self._file, self._line)
        if checkpoint.number > self.report.checkpoints and self._next is None:
            # chained, but not (or no longer) in the checkpoints file: its own signature counts
            self.report.signed = max(self.report.signed, checkpoint.covers)

    def _note(self, checkpoint: CheckpointRecord, file: str, line: int) -> None:
        """Keeps what a genuine checkpoint says, of this writer and of the others."""
        self.own.add(checkpoint.number, checkpoint.covers, checkpoint.head)
        for writer, sighting in checkpoint.others.items():
            self.others.setdefault(writer, Signed()).add(sighting, file, line)

    def _read_checkpoints(self) -> Iterator[CheckpointRecord]:
        """The genuine checkpoints of the file, in order; problems on the way are recorded with the file's lines."""
        if not self._checkpoints.exists():
            return
        covers, number, line_number, position = 0, None, 0, 0
        tree: Frontier | None = Frontier()
        generation = 0
        with self._checkpoints.open("rb") as file:
            for line in read_lines(file):
                line_number += 1
                position += len(line)
                if line[-1:] != b"\n" or position > self._size:  # being written, or written since this verification began
                    return
                checkpoint = read_checkpoint(line)
                reason = self._check_checkpoint(checkpoint, covers, number) or _check_root(checkpoint, tree)
                if checkpoint is not None and not reason and self._verifier.generation(checkpoint.key) < generation:
                    reason = "it is signed with a key that had been replaced before"
                if reason or checkpoint is None:
                    self.report.problems.append(Problem(self._checkpoints.name, line_number, reason, self.report.writer))
                    continue
                covers, number = checkpoint.covers, checkpoint.number
                tree, generation = _grow(tree, checkpoint, line), self._verifier.generation(checkpoint.key)
                self.report.checkpoints += 1
                self._note(checkpoint, self._checkpoints.name, line_number)
                yield checkpoint

    def _check_checkpoint(self, checkpoint: CheckpointRecord | None, covers: int, number: int | None) -> str:
        if checkpoint is None:
            return "this is not a checkpoint"
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
            if self._file:
                self._line += 1
            else:  # no segment is left
                self._file = segment_name(self.report.writer, 1)
            self._problem(
                f"the log ends at {self._seq}, but checkpoint {self._next.number} covers {self._next.covers}: the end was cut off"
            )
        for _ in self._signed:
            pass


def _check_root(checkpoint: CheckpointRecord | None, tree: Frontier | None) -> str:
    """What a checkpoint says of those before it."""
    if checkpoint is None or tree is None or not checkpoint.root or tree.size != checkpoint.number - 1:
        return ""
    return "" if checkpoint.root == tree.root.hex() else "the checkpoints before this one are not those that it signed"


def _grow(tree: Frontier | None, checkpoint: CheckpointRecord, line: bytes) -> Frontier | None:
    if tree is None or tree.size != checkpoint.number - 1:
        return None
    tree.add(leaf_hash(line[:-1]))
    return tree
