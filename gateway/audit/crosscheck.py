"""Holds what the writers signed about one another against what is there.

What another writer has seen of a chain must be there still: the line that the checkpoint covered, with the same hash. One that is not there
was deleted, with the files of the writer or by putting older ones in their place; another one in its place means that the writer's history
was begun anew from an older state. And a writer that stands beside others signs something in its first moment: one of which nothing is
signed, beside one that has signed, was put there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gateway.audit.chain import read_line, read_lines
from gateway.audit.chain_walk import Covered, Numbers, Signed, Walked, covered
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.neighbours import holder
from gateway.audit.repair import last_checkpoint, read_checkpoint
from gateway.audit.report import Problem, WriterReport
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import checkpoints_name, list_segments, segment_name


def crosscheck(
    walks: Mapping[str, Walked], directory: Path, source: Path, verifier: CheckpointVerifier, archived: Collection[str]
) -> Iterator[WriterReport]:
    """Adds problems to the reports of the walks; yields reports of writers of which only the others' statements are left.

    source: the directory with the checkpoints. archived: writers that may be gone as a whole. Raises OSError.
    """
    signed: dict[str, dict[str, Signed]] = {}
    someone = any(walk.own.last for walk in walks.values())
    for witness, walk in walks.items():
        report = walk.report
        if someone and report.lines and not walk.own.last and not report.live and not report.problems:
            reason = "nothing of this writer is signed: it was killed in its first moments and not recovered yet, or somebody put it there"
            report.problems.append(Problem(segment_name(witness, 1), 0, reason, witness))
        if directory == source and (checkpoints := directory / checkpoints_name(witness)).exists():
            report.problems += _cut_off(walk, checkpoints)
        for writer, found in walk.others.items():
            signed.setdefault(writer, {})[witness] = found
    for writer, witnesses in sorted(signed.items()):
        if writer in walks:
            walks[writer].report.problems += _compare(walks[writer], witnesses, directory, source / checkpoints_name(writer), verifier)
            continue
        newest = max(witnesses.values(), key=lambda found: found.newest.number)
        if writer in archived:
            yield WriterReport(writer, archived=newest.newest, problems=[])
        else:
            problem = _problem(writer, "all files of this writer are gone", witnesses)
            yield WriterReport(writer, live=holder(directory, writer) is not None, problems=[problem])


def _cut_off(walk: Walked, checkpoints: Path) -> Iterator[Problem]:
    """The checkpoints file beside its log has every checkpoint of the chain, and has each first."""
    newest, _ = last_checkpoint(checkpoints.parent, walk.report.writer)
    last = newest.number if newest is not None else 0
    if last < walk.own.last:
        reason = f"the end was cut off: it ends with checkpoint {last}, but the chain has checkpoint {walk.own.last}"
        yield Problem(checkpoints.name, 0, reason, walk.report.writer)


def _compare(
    walk: Walked, witnesses: Mapping[str, Signed], directory: Path, checkpoints: Path, verifier: CheckpointVerifier
) -> Iterator[Problem]:
    writer, own = walk.report.writer, walk.own
    if any(found.newest.number > own.last for found in witnesses.values()):
        _read_newer(checkpoints, own, verifier)
    newest = max((found.newest for found in witnesses.values()), key=lambda sighting: sighting.number)
    segments = [path for _, path in list_segments(directory).get(writer, [])]
    if newest.number > own.last and not _holds(segments, covered(newest.covers, newest.head)):
        yield _problem(writer, f"this writer's checkpoints end at {own.last}: its newest records, or all of them, are gone", witnesses)
    for witness, found in witnesses.items():
        for number in found.numbers:
            seen = found.numbers[number]
            if number > own.last or own[number] == seen or (walk.report.skipped is not None and number < own.first):
                continue
            if not _holds(segments, seen):
                reason = f"line {seen[0]} of this writer is not the one that writer {witness} saw: its files were replaced by others"
                yield Problem(checkpoints_name(writer), 0, reason, writer)
                return


def _holds(segments: list[Path], seen: Covered) -> bool:
    """Whether a line of the chain is the one that was seen. Only needed where the checkpoints disagree: the newest one may have been lost
    with the machine's power after another writer had seen it."""
    for path in reversed(segments):
        with open_segment(path) as file:
            for line in read_lines(file):
                claims = read_line(line)
                if claims is None or claims.seq > seen[0]:
                    break
                if claims.seq == seen[0]:
                    return covered(claims.seq, claims.hash) == seen
    return False


def _read_newer(path: Path, own: Numbers, verifier: CheckpointVerifier) -> None:
    """A writer at work signed on since its chain was read, and another one has seen it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in read_lines(file):
            checkpoint = read_checkpoint(line)
            if checkpoint is not None and checkpoint.number > own.last and verifier.genuine(checkpoint):
                own.add(checkpoint.number, checkpoint.covers, checkpoint.head)


def _problem(writer: str, reason: str, witnesses: Mapping[str, Signed]) -> Problem:
    witness, found = max(witnesses.items(), key=lambda item: item[1].newest.number)
    newest = found.newest
    place = f"{found.file}:{found.line}"
    text = f"{reason}; writer {witness} signed that it had seen checkpoint {newest.number}, up to line {newest.covers} ({place})"
    return Problem(checkpoints_name(writer), 0, text, writer)
