"""Offline verification of an audit log. It needs the log, the checkpoints and the public key, and no running Gatehouse.

Every line is proven to follow the one before it (which finds an edit, a deletion, an insertion, a reordering, a swapped segment), and the
line that each signed checkpoint covers is proven to have the hash that was signed (which finds a chain that was computed anew and a tail
that was cut off). Lines after the last checkpoint are chained but not signed yet; `unsigned` counts them. If there are several writers,
each is compared with what the others signed about it (which finds a writer whose files are missing or were replaced by older ones). A copy
of the checkpoints kept elsewhere also shows that log and checkpoints were deleted together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.audit.chain_walk import Walk, Walked
from gateway.audit.crosscheck import crosscheck
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.journal import journal_name
from gateway.audit.leftover import missing_from, records_in
from gateway.audit.neighbours import holder, writers_in
from gateway.audit.parallel_verify import ParallelSummaries, Summary
from gateway.audit.report import JournalReport, Problem, Report, WriterReport
from gateway.audit.segments import file_size
from gateway.audit.signing_keys import trusted
from gateway.audit.sinks.file import checkpoints_name, list_segments, segment_name
from gateway.core.audit_questions import AuditScope

PATIENCE: Final = 0.5
"""Seconds in which a writer at work chains what its journal held when the verification began."""
WORTH_A_PROCESS: Final = 32 * 1024 * 1024
"""Bytes of a log from which on its closed segments are read by several processes, which take a while to start."""

__all__ = ["JournalReport", "Report", "verify_log"]


def verify_log(
    directory: Path,
    verifier: CheckpointVerifier,
    *,
    checkpoints: Path | None = None,
    scope: AuditScope = AuditScope(),  # noqa: B008 - immutable
    patience: float = PATIENCE,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda read, total: None,
) -> Report:
    """Reads everything in `directory`; what it keeps of it is a few bytes for each checkpoint.

    checkpoints: the directory with the checkpoints, where that is another one. scope: what must be there. patience: seconds to wait for a
    writer that may be at work to chain what its journal holds. processes: how many may read segments side by side. progress: called
    with the bytes that were read, and with all that there are. Raises OSError.
    """
    source = checkpoints or directory
    verifier = trusted(trusted(verifier, directory), source)
    signed = {path.name.removeprefix("checkpoints-").removesuffix(".jsonl") for path in source.glob(checkpoints_name("*"))}
    writers = sorted(writers_in(directory) | signed)
    walks = dict(zip(writers, _read(directory, source, verifier, scope, patience, writers, processes, progress), strict=True))
    gone = list(crosscheck(walks, directory, source, verifier, scope.archived))
    gone += _unheard_of(scope, {*writers, *(report.writer for report in gone)})
    return Report(sorted([*(walk.report for walk in walks.values()), *gone], key=lambda report: report.writer))


def _read(
    directory: Path,
    source: Path,
    verifier: CheckpointVerifier,
    scope: AuditScope,
    patience: float,
    writers: Sequence[str],
    processes: int,
    progress: Callable[[int, int], None],
) -> list[Walked]:
    found = list_segments(directory)
    total, read = sum(file_size(path) for segments in found.values() for _, path in segments), 0

    def on_read(size: int) -> None:
        nonlocal read
        read += size
        progress(read, total)

    def walk(ahead: Callable[[Path], Summary | None]) -> list[Walked]:
        return [_read_one(directory, source, verifier, writer, scope.start(writer), patience, ahead, on_read) for writer in writers]

    closed = {writer: [entry for entry in segments[:-1] if entry[0] >= scope.start(writer)] for writer, segments in found.items()}
    if processes < 2 or total < WORTH_A_PROCESS or not any(closed.values()):
        return walk(lambda path: None)
    with ParallelSummaries(source, closed, processes, on_read) as ahead:
        return walk(ahead)


def _unheard_of(scope: AuditScope, known: Collection[str]) -> Iterator[WriterReport]:
    """Writers that must be there, of which there is neither a file nor a word of the others'."""
    for writer, number in scope.starts.items():
        if writer not in known and writer not in scope.archived:
            reason = "the first segment to verify is missing, and so is every other file of this writer"
            yield WriterReport(writer, problems=[Problem(segment_name(writer, number), 0, reason, writer)])


def _read_one(
    directory: Path,
    source: Path,
    verifier: CheckpointVerifier,
    writer: str,
    first_segment: int,
    patience: float,
    ahead: Callable[[Path], Summary | None],
    on_read: Callable[[int], None],
) -> Walked:
    """Verifies one writer's chain."""
    live = holder(directory, writer) is not None
    journal = _look_into_journal(directory, writer, patience)
    checkpoints = source / checkpoints_name(writer)
    size = checkpoints.stat().st_size if checkpoints.exists() else 0
    # after the size: a writer at work has written every line that those checkpoints cover
    segments = list_segments(directory).get(writer, [])
    walk = Walk(writer, verifier, checkpoints, size, first_segment)
    report = walk.run(directory, segments, ahead, lambda path: on_read(file_size(path)))
    report.live = live
    if journal is not None:
        report.journal = journal
        report.problems += _journal_problems(writer, journal, live)
    return Walked(report, walk.own, walk.others)


def _look_into_journal(directory: Path, writer: str, patience: float) -> JournalReport | None:
    """Compares what a journal holds now with the end of the log now, before the log is read: a busy one would grow past its records."""
    path = directory / journal_name(writer)
    if not path.exists():
        return None
    records, unreadable = records_in(path)
    deadline = time.monotonic() + patience
    while True:
        unchained = missing_from([path for _, path in list_segments(directory).get(writer, [])], records)
        if not unchained or time.monotonic() >= deadline:
            return JournalReport(len(records), len(unchained), unreadable)
        time.sleep(patience / 10)


def _journal_problems(writer: str, journal: JournalReport, live: bool) -> Iterator[Problem]:
    if journal.unchained:
        then = "its process, which runs, does not chain them" if live else "the gateway chains them when it runs again"
        reason = f"{_count(journal.unchained)} in the journal and not in the log; {then}"
        yield Problem(journal_name(writer), 0, reason, writer)
    if journal.unreadable:
        yield Problem(journal_name(writer), 0, f"entries that are not records: {journal.unreadable}", writer)


def _count(records: int) -> str:
    return "1 record is" if records == 1 else f"{records} records are"


def cores() -> int:
    """How many processes a verification may use on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
