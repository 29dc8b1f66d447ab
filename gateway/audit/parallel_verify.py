"""Verifies segments in parallel, in processes of their own, ahead of the walk along the chain, and sums each up in a few values. That is
possible because a line's hash depends only on the segment's header and the lines before it. A segment with a fault has no summary: the walk
reads it again and names the fault."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.audit.chain import ChainError, check_line, read_line, read_lines
from gateway.audit.repair import read_header
from gateway.audit.segments import file_size, open_segment
from gateway.audit.sinks.file import checkpoints_name

_HEAD: Final = 48
_CHECKPOINT: Final = b'"kind":"checkpoint"'


class _Covers(msgspec.Struct):
    covers: int


_covers = msgspec.json.Decoder(_Covers).decode


class Stop(NamedTuple):
    """A line that a verification looks at: its place in the segment (from 1 on), its number in the chain, its hash, and the line itself
    where it is a checkpoint."""

    at: int
    seq: int
    head: bytes
    line: bytes


class Summary(NamedTuple):
    """A segment whose lines are chained correctly: its header, the lines that the verification looks at (in order), the number of lines,
    and the number and hash of the last one."""

    header: bytes
    stops: list[Stop]
    lines: int
    seq: int
    head: bytes


def covered(path: Path) -> bytes:
    """The numbers of the lines that the checkpoints of a file cover, sorted, as an array of 8-byte numbers. Raises OSError."""
    found = array("Q")
    if path.exists():
        with path.open("rb") as file:
            for line in read_lines(file):
                try:
                    found.append(_covers(line).covers)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
                    continue
    return array("Q", sorted(found)).tobytes()


def summary(path: Path, covers: bytes) -> Summary | None:
    """None if something is wrong. covers: the numbers of lines to look at besides the checkpoints, as `covered` returns them."""
    wanted = array("Q")
    wanted.frombytes(covers)
    stops: list[Stop] = []
    header, at, seq, head, place = b"", 0, 0, b"", 0
    try:
        with open_segment(path) as file:
            for line in read_lines(file):
                at += 1
                if at == 1:
                    claims, found = read_line(line), read_header(line)
                    if claims is None or found is None:
                        return None
                    header, seq, head = line, claims.seq - 1, found.previous.encode()
                    place = bisect_left(wanted, claims.seq)
                seq += 1
                head = check_line(line, seq, head)
                is_checkpoint = _CHECKPOINT in line[:_HEAD]
                if is_checkpoint or (place < len(wanted) and wanted[place] == seq):
                    stops.append(Stop(at, seq, head, line if is_checkpoint else b""))
                    while place < len(wanted) and wanted[place] <= seq:
                        place += 1
    except (ChainError, OSError):
        return None
    return Summary(header, stops, at, seq, head) if at else None


class ParallelSummaries:
    """Summaries of segments, made by several processes. on_read: called with the bytes of each file that was read. Use as a context."""

    def __init__(
        self, source: Path, segments: Mapping[str, Sequence[tuple[int, Path]]], processes: int, on_read: Callable[[int], None]
    ) -> None:
        self._pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
        self._on_read = on_read
        self._sizes: dict[Path, int] = {}
        self._found = {}
        for writer, found in segments.items():
            covers = covered(source / checkpoints_name(writer))
            for _, path in found:
                self._sizes[path] = file_size(path)
                self._found[path] = self._pool.submit(summary, path, covers)

    def __enter__(self) -> ParallelSummaries:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[Path]:
        return iter(self._found)

    def __call__(self, path: Path) -> Summary | None:
        """The summary of a segment that was read ahead; None for other segments, and for one with a fault."""
        future = self._found.pop(path, None)
        if future is None:
            return None
        made = future.result()
        if made is not None:
            self._on_read(self._sizes[path])
        return made
