"""SHA-256 of model files, computed once and remembered by path, size, time and inode, across restarts too."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from engines.host.catalogue.scan import File

MAX_ENTRIES = 10_000
BLOCK = 4 * 1024 * 1024
SETTLED = 50_000_000
"""Nanoseconds after which a further change of a file has another change time, on every file system."""


class Stopped(Exception):
    """The process is ending: long work in a thread gives up."""


def digest(path: Path, go_on: Callable[[], bool]) -> str:
    """SHA-256 in hex. Raises OSError, and Stopped when `go_on` returns False."""
    state = hashlib.sha256()
    block = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            state.update(block[:size])
            if not go_on():
                raise Stopped
    return state.hexdigest()


class _Entry(msgspec.Struct, array_like=True):
    stamp: tuple[int, int, int]
    sha256: str
    changed: int = 0
    """As in File; 0: not known, or so short before that another change may have the same."""


class Checksums:
    """The known checksums, kept in one file. If it cannot be read or written, they are just computed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, _Entry] | None = None

    def get(self, file: File) -> str | None:
        """The checksum, if it was computed for the file in its present state."""
        with self._lock:
            entry = self._read().get(str(file.path))
            return entry.sha256 if entry is not None and entry.stamp == file.stamp else None

    def certain(self, file: File) -> str | None:
        """As `get`, if nobody can have written to the file since: unlike its modification time, its change time cannot be set."""
        with self._lock:
            entry = self._read().get(str(file.path))
            same = entry is not None and (entry.stamp, entry.changed) == (file.stamp, file.changed) and entry.changed != 0
            return entry.sha256 if entry is not None and same else None

    def put(self, found: Iterable[tuple[File, str]]) -> None:
        """Remembers checksums, writes all of them."""
        with self._lock:
            known = self._read()
            for file, sha256 in found:
                known.pop(str(file.path), None)
                settled = time.time_ns() - file.changed > SETTLED
                known[str(file.path)] = _Entry(file.stamp, sha256, file.changed if settled else 0)
            while len(known) > MAX_ENTRIES:
                known.pop(next(iter(known)))
            beside = self._path.with_suffix(".new")
            try:
                beside.write_bytes(msgspec.json.encode(known))
                os.replace(beside, self._path)
            except (OSError, UnicodeEncodeError):
                pass

    def _read(self) -> dict[str, _Entry]:
        if self._known is None:
            try:
                self._known = msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Entry])
            except (OSError, msgspec.MsgspecError):
                self._known = {}
        return self._known
