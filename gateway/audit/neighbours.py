"""The other writers of an audit log's directory: who they are, whether a process has one, what this writer has seen of them.

Every writer has a chain of its own, so a chain says nothing about the others. Therefore each writer names in its signed checkpoints the
newest checkpoints of the others, where they are new to it. Whoever deletes all files of one writer, or puts older ones in their place,
leaves the others' statements behind (gateway.audit.crosscheck). Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.record import Sighting
from gateway.audit.repair import last_checkpoint
from gateway.audit.sinks.file import checkpoints_name, lock_name
from gateway.core.errors import ConfigError

FIRST_VERSION: Final = "0"
"""The one writer of installations before writers had ids of their own."""
MOST: Final = 200
"""Writers in one checkpoint, so that it stays a line of less than 64 KiB; the rest come with the next one."""
_FILE: Final = re.compile(r"(?:audit-([A-Za-z0-9_-]+?)(?:-[0-9]{8,}\.jsonl(?:\.zst)?|\.journal)|checkpoints-([A-Za-z0-9_-]+)\.jsonl)")


def writers_in(directory: Path) -> set[str]:
    """The writers that have a segment, a checkpoints file or a journal there. Raises OSError."""
    with os.scandir(directory) as entries:
        return {match[1] or match[2] for entry in entries if (match := _FILE.fullmatch(entry.name))}


def holder(directory: Path, writer: str) -> str | None:
    """What the process that has a writer now left in its lock: the id of its signing key, "" in the first moment. None when no process
    has it, or when that cannot be found out."""
    try:
        descriptor = os.open(directory / lock_name(writer), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 64, 0).decode("ascii", "replace")
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def refuse_strangers(directory: Path, writer: str, known: Container[str]) -> None:
    """Raises ConfigError when a process with a signing key that is not known, or one of a version without writer ids, writes there now. The
    lock of the own writer must be marked before: of two that begin together, one sees the other."""
    for other in sorted(writers_in(directory) - {writer}):
        mark = holder(directory, other)
        if mark and mark not in known:
            reason = f"the writer {other!r} in {directory} signs with another key: give each state directory an audit directory of its own"
            raise ConfigError(reason, path="audit.sinks")
        if mark == "" and other == FIRST_VERSION:
            raise ConfigError(f"another gateway, of an older version, writes the audit log in {directory}", path="audit.sinks")


class Missing(msgspec.Struct, frozen=True):
    """A writer that has less than it had: the checkpoint that was seen, and what is wrong now."""

    writer: str
    seen: Sighting
    reason: str


class Witness:
    """What one writer has seen of the others. `look`, write a checkpoint that names the news, then `noted`.

    alone: whether the last look found no other writer. due: whether it found so much that a checkpoint is worth it although nothing of
    this writer's own is new: a writer that is new, or whose chain grew by more than a checkpoint. So checkpoints that only tell of
    checkpoints come to an end.
    """

    def __init__(self, directory: Path, writer: str, verifier: CheckpointVerifier) -> None:
        self._directory, self._writer, self._verifier = directory, writer, verifier
        self._known: dict[str, Sighting] = {}
        self._sizes: dict[str, int] = {}
        self._reported: set[str] = set()
        self.missing: list[Missing] = []
        """Found by the last look, each told once."""
        self.alone = True
        self.due = False

    def trust(self, verifier: CheckpointVerifier) -> None:
        """From now on, checkpoints are genuine by this one."""
        self._verifier = verifier
        self._sizes.clear()

    def look(self) -> dict[str, Sighting]:
        """The newest genuine checkpoints of the others, where they are new. A directory that cannot be read has no news."""
        news: dict[str, Sighting] = {}
        self.missing, self.due = [], False
        try:
            others = writers_in(self._directory) - {self._writer}
        except OSError:
            return news
        self.alone = not others
        for writer in sorted(others | self._known.keys()):
            found = self._newest(writer)
            if found is None or len(news) >= MOST:
                continue
            known = self._known.get(writer)
            if known is not None and (found.number < known.number or (found.number == known.number and found.head != known.head)):
                self._miss(writer, known, "its checkpoints are not those that were seen before")
            elif found != known:
                self._reported.discard(writer)
                news[writer] = found
                self.due = self.due or known is None or found.covers > known.covers + 1
        return news

    def noted(self, seen: dict[str, Sighting]) -> None:
        """A checkpoint names these."""
        self._known.update(seen)

    def _newest(self, writer: str) -> Sighting | None:
        """The newest checkpoint of a writer; None when there is none, or the file has not changed."""
        try:
            size = (self._directory / checkpoints_name(writer)).stat().st_size
            if self._sizes.get(writer) == size and writer in self._known:
                return None
            checkpoint, _ = last_checkpoint(self._directory, writer)
        except FileNotFoundError:
            if known := self._known.get(writer):
                self._miss(writer, known, "its checkpoints are gone")
            return None
        except OSError:
            return None
        if checkpoint is None or checkpoint.writer != writer or not self._verifier.genuine(checkpoint):
            return None
        self._sizes[writer] = size
        return Sighting(checkpoint.number, checkpoint.covers, checkpoint.head)

    def _miss(self, writer: str, known: Sighting, reason: str) -> None:
        if writer not in self._reported:
            self._reported.add(writer)
            self.missing.append(Missing(writer, known, reason))
