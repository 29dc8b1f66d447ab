"""What the verification of an audit log found."""

from __future__ import annotations

import msgspec

from gateway.audit.record import Sighting


class Problem(msgspec.Struct, frozen=True):
    """A place that is not as it was written: file name, line (1-based; 0: the file as a whole), what is wrong, and whose chain it is in."""

    file: str
    line: int
    reason: str
    writer: str


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
    unreadable: entries that are not records."""

    records: int
    unchained: int
    unreadable: int


class WriterReport(msgspec.Struct):
    """What was found of one writer's chain. `signed`: the last line that a checkpoint covers; `unsigned`: how many came after it.

    expired: segments of which only signed tombstones are left. unfinished: the newest segment ends inside a line: a write under way, or a
    crash after which no writer started yet. skipped: what was not verified because the verification began at a later segment. journal:
    None where there is no journal. live: whether a process has the writer (known only where its lock is: not from a copy). archived:
    nothing of the writer is here, as the caller said; the newest of its checkpoints that the others signed, with which its archive must
    agree.
    """

    writer: str
    segments: int = 0
    expired: int = 0
    lines: int = 0
    last: int = 0
    checkpoints: int = 0
    signed: int = 0
    unfinished: bool = False
    skipped: Skipped | None = None
    journal: JournalReport | None = None
    live: bool = False
    archived: Sighting | None = None
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
