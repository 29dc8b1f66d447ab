"""A log file that several processes write and rotate together, for machines where nothing else does it (systemd's journal and container
runtimes do).

Each process has the file open for appending, so that lines of different processes never mix. Before each line it looks whether the name
still leads to what it has open; the one that finds the file too large renames it, under a lock, and the others follow.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import Handler as LogHandler
from pathlib import Path


class LogFile(LogHandler):
    """path: where lines go; rotated ones beside it are called PATH.1 (the newest) to PATH.keep. most: bytes of a file. Raises OSError where
    the file cannot be made. Lines that cannot be written go to standard error."""

    def __init__(self, path: Path, most: int, keep: int) -> None:
        super().__init__()
        self._path, self._most, self._keep = path, most, keep
        self._descriptor = self._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - boundary: a line that cannot be made must not end what it tells of
            self.handleError(record)
            return
        try:
            self._write(line)
        except OSError:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
        super().close()

    def _write(self, line: bytes) -> None:
        if not self._is_mine():
            self._reopen()
        size = os.fstat(self._descriptor).st_size
        if size and size + len(line) > self._most:
            self._rotate()
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _reopen(self) -> None:
        fresh = self._open()
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = fresh

    def _is_mine(self) -> bool:
        """Whether the name leads to what is open; somebody else may have rotated or deleted it."""
        try:
            there, mine = os.stat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        with self._locked():
            if self._is_mine():  # else another process was faster
                for number in range(self._keep, 1, -1):
                    with suppress(FileNotFoundError):
                        os.replace(self._numbered(number - 1), self._numbered(number))
                if self._keep:
                    os.replace(self._path, self._numbered(1))
                else:
                    self._path.unlink()
                self._forget()
            self._reopen()

    def _forget(self) -> None:
        """Deletes the files beyond `keep`, which are there after it was lowered."""
        number = self._keep + 1
        with suppress(FileNotFoundError):
            while True:
                self._numbered(number).unlink()
                number += 1

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for a few renames, so nobody waits long."""
        descriptor = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
