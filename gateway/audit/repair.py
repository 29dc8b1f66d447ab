"""What a writer finds when it opens its log: where the chain goes on, whether its end is torn, whether it is damaged.

A torn end is a bad end of the newest segment with no well-formed line after it: a write that a crash or a power loss interrupted. It is
moved to a side file and cut off. Everything else that is wrong (a bad line before good ones, a log that ends before a line that a
signed checkpoint covers) is damage: nothing is touched, and the chain goes on in a new segment whose header names the place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.chain import GENESIS, ChainError, check_line, read_line, read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.record import MAX_RECORD, CheckpointRecord, SegmentRecord
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import FileSink, checkpoints_name, sync_directory

_decode_header = msgspec.json.Decoder(SegmentRecord).decode
_decode_checkpoint = msgspec.json.Decoder(CheckpointRecord).decode


class Torn(msgspec.Struct):
    """The bad end of a file, from `offset` on."""

    offset: int
    reason: str


class Found(msgspec.Struct):
    """Where the chain goes on: after line `seq`, whose hash is `head`, in `segment` (0: there is none yet).

    begun: when that segment began, by its header. closed: whether the last writer closed the log. torn: what must be cut off first. broken:
    go on in a new segment, for this reason.
    """

    seq: int = 0
    head: str = GENESIS
    segment: int = 0
    begun: float | None = None
    closed: bool = True
    torn: Torn | None = None
    broken: dict[str, Any] | None = None


class _Scan:
    """Reads one segment line by line, up to its end or its first bad line."""

    def __init__(self, path: Path, covered: int) -> None:
        self.path, self.covered = path, covered
        self.lines = 0
        self.offset = 0
        self.seq = 0
        self.head = b""
        self.covered_head = ""
        self.last = self.last_but_one = b""
        self.problem = ""
        self.follows = False
        self.begun: float | None = None

    def run(self) -> None:
        with open_segment(self.path) as file:
            lines = read_lines(file)
            for line in lines:
                try:
                    self._line(line)
                except ChainError as error:
                    self.problem = str(error)
                    self._look_after(lines)
                    return

    def _line(self, line: bytes) -> None:
        if self.lines == 0:
            self._header(line)
        self.head = check_line(line, self.seq + 1, self.head)
        self.seq += 1
        self.lines += 1
        self.offset += len(line)
        self.last_but_one, self.last = self.last, line
        if self.seq == self.covered:
            self.covered_head = self.head.decode()

    def _header(self, line: bytes) -> None:
        claims, header = read_line(line), read_header(line)
        if claims is None or header is None:
            raise ChainError("the segment has no header")
        self.seq, self.head = claims.seq - 1, header.previous.encode()
        self.begun = header.time

    @property
    def closed(self) -> bool:
        """Whether the last two lines are those of a clean close."""
        return b'"kind":"checkpoint"' in self.last[:64] and b'"event":"audit.closed"' in self.last_but_one[:128]

    def _look_after(self, lines: Iterator[bytes]) -> None:
        """After a bad line: finds out whether a well-formed one follows, and what the last of them claims."""
        for line in lines:
            if (claims := read_line(line)) is not None:
                self.follows = True
                self.seq, self.head = max(self.seq, claims.seq), claims.hash.encode()


def read_header(line: bytes) -> SegmentRecord | None:
    """The segment header in a line, or None."""
    if b'"kind":"segment"' not in line[:64]:
        return None
    try:
        return _decode_header(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_checkpoint(line: bytes) -> CheckpointRecord | None:
    """The checkpoint in a line of the checkpoints file or of the chain, or None."""
    try:
        return _decode_checkpoint(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def examine(sink: FileSink, verifier: CheckpointVerifier, checkpoint: CheckpointRecord | None) -> Found:
    """Reads the newest segment and tells where and how to go on. Changes nothing. Raises OSError."""
    signed = checkpoint if checkpoint is not None and verifier.genuine(checkpoint) else None
    segments = sink.segments()
    if not segments:
        return _judge(Found(), signed, "") if signed else Found()
    number, path = segments[-1]
    scan = _Scan(path, signed.covers if signed else 0)
    scan.run()
    if scan.lines == 0 and not scan.follows:
        return _empty(sink, segments, scan, signed)
    found = Found(seq=scan.seq, head=scan.head.decode(), segment=number, begun=scan.begun, closed=scan.closed)
    if scan.problem and scan.follows:
        found.broken = {"segment": number, "line": scan.lines + 1, "reason": scan.problem}
    elif scan.problem:
        found.torn, found.closed = Torn(scan.offset, scan.problem), False
    return _judge(found, signed, scan.covered_head)


def _empty(sink: FileSink, segments: list[tuple[int, Path]], scan: _Scan, signed: CheckpointRecord | None) -> Found:
    """A segment without a good line: a crash came between its creation and its header. The one before tells where the chain ends."""
    number, _ = segments[-1]
    before = Found()
    if len(segments) > 1:
        scan_before = _Scan(segments[-2][1], signed.covers if signed else 0)
        scan_before.run()
        before = Found(seq=scan_before.seq, head=scan_before.head.decode() or GENESIS)
        if scan_before.problem:
            before.broken = {"segment": segments[-2][0], "line": scan_before.lines + 1, "reason": scan_before.problem}
        before = _judge(before, signed, scan_before.covered_head)
    elif signed:
        before = _judge(before, signed, "")
    before.segment, before.closed = number, False
    before.torn = Torn(0, scan.problem) if scan.problem else None
    return before


def _judge(found: Found, signed: CheckpointRecord | None, head: str) -> Found:
    """Compares what was found with the newest signed checkpoint."""
    if signed is None or found.broken:
        return found
    reason = ""
    if signed.covers > found.seq:
        reason = f"the log ends at {found.seq}, before the signed checkpoint at {signed.covers}"
    elif head and head != signed.head:
        reason = f"line {signed.covers} is not the one that was signed"
    if reason:
        found.broken = {"segment": signed.segment, "line": 0, "reason": reason}
        found.torn = None
        if signed.covers > found.seq:
            found.seq, found.head = signed.covers, signed.head
        found.segment = max(found.segment, signed.segment)
    return found


def set_aside(sink: FileSink, torn: Torn) -> Path:
    """Moves the torn end of the current segment to a side file, which is on the disk before the segment is cut. Raises OSError."""
    side = sink.path.with_name(f"{sink.path.stem}.torn-{torn.offset}-{os.urandom(4).hex()}")
    descriptor = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with sink.path.open("rb") as source:
            source.seek(torn.offset)
            for block in iter(lambda: source.read(1 << 20), b""):
                _write_all(descriptor, block)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(side.parent)
    sink.cut(torn.offset)
    return side


def _write_all(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def last_checkpoint(directory: Path, writer: str) -> tuple[CheckpointRecord | None, int]:
    """The last whole line of the checkpoints file, and the file's size up to its end; (None, 0) when there is none. Raises OSError."""
    path = directory / checkpoints_name(writer)
    if not path.exists():
        return None, 0
    with path.open("rb") as file:
        skipped = max(0, file.seek(0, os.SEEK_END) - 2 * MAX_RECORD)
        file.seek(skipped)
        data = file.read()
    end = data.rfind(b"\n") + 1
    if end == 0:
        return None, 0
    start = data.rfind(b"\n", 0, end - 1) + 1
    return read_checkpoint(data[start:end]), skipped + end
