"""Holds what the writers signed about one another against what is there.

A checkpoint that another writer signed must be among the writer's own, and cover the same line with the same hash. One that is not there
was deleted, with the files of the writer or by putting older ones in their place; one that is another means that the writer's history was
begun anew from an older state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gateway.audit.chain import read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.repair import read_checkpoint
from gateway.audit.report import Problem, WriterReport
from gateway.audit.sinks.file import checkpoints_name
from gateway.audit.walk import Numbers, Signed, Walked


def crosscheck(
    walks: Mapping[str, Walked], source: Path, verifier: CheckpointVerifier, archived: Collection[str]
) -> Iterator[WriterReport]:
    """Adds problems to the reports of the walks; yields reports of writers of which only the others' statements are left.

    source: the directory with the checkpoints. archived: writers that may be gone as a whole. Raises OSError.
    """
    signed: dict[str, dict[str, Signed]] = {}
    for witness, walk in walks.items():
        for writer, found in walk.others.items():
            signed.setdefault(writer, {})[witness] = found
    for writer, witnesses in sorted(signed.items()):
        if writer in walks:
            walks[writer].report.problems += _compare(walks[writer], witnesses, source, verifier)
            continue
        newest = max(witnesses.values(), key=lambda found: found.newest.number)
        if writer in archived:
            yield WriterReport(writer, archived=newest.newest, problems=[])
        else:
            yield WriterReport(writer, problems=[_problem(writer, "all files of this writer are gone", witnesses)])


def _compare(walk: Walked, witnesses: Mapping[str, Signed], source: Path, verifier: CheckpointVerifier) -> Iterator[Problem]:
    writer, own = walk.report.writer, walk.own
    if any(found.newest.number > own.last for found in witnesses.values()):
        _read_newer(source / checkpoints_name(writer), own, verifier)
    if any(found.newest.number > own.last for found in witnesses.values()):
        yield _problem(writer, f"this writer's checkpoints end at {own.last}: its newest records, or all of them, are gone", witnesses)
    for witness, found in witnesses.items():
        for number in found.numbers.numbers():
            if number > own.last or (walk.report.skipped is not None and number < own.first):
                continue
            if own[number] != found.numbers[number]:
                what = "is not the one" if own[number] else "is missing, but was there"
                reason = f"checkpoint {number} of this writer {what} when writer {witness} saw it: its files were replaced by others"
                yield Problem(checkpoints_name(writer), 0, reason, writer)
                return


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
