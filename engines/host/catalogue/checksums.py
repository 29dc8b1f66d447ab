"""SHA-256 of model files, computed once and remembered by path, size, time and inode, across restarts too."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from engines.host.catalogue.scan import File

MAX_ENTRIES = 10_000
BLOCK = 4 * 1024 * 1024


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

    def put(self, found: Iterable[tuple[File, str]]) -> None:
        """Remembers checksums, writes all of them."""
        with self._lock:
            known = self._read()
            for file, sha256 in found:
                known.pop(str(file.path), None)
                known[str(file.path)] = _Entry(file.stamp, sha256)
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
