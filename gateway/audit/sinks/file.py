"""The local audit log: one writer's numbered segments in one directory, only ever appended to.

`audit-<writer>-<number>.jsonl` are the segments, `checkpoints-<writer>.jsonl` has the signed checkpoints, `audit-<writer>.lock` keeps a
second process out of this writer's files. Directories have mode 0700, files 0600. A write is all or nothing: what a failed write left
behind is cut off before anything else is written. A symbolic link in a file's place is not followed: whoever can put one here must not
choose what a gateway with more rights cuts and writes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Final, Protocol

from gateway.core.errors import ConfigError

_NAME: Final = re.compile(r"audit-([A-Za-z0-9_-]{1,40})-([0-9]{8,})\.jsonl(\.zst)?")
_WRITER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")
PATIENCE: Final = 0.25
"""Seconds for which a lock may be held by somebody who only looks whether it is free."""


class Files(Protocol):
    """The system calls that can fail or hang under load; replaced in tests."""

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int: ...

    def fdatasync(self, descriptor: int) -> None: ...

    def ftruncate(self, descriptor: int, length: int) -> None: ...

    def free(self, descriptor: int) -> int:
        """Bytes that the file system has left for us."""
        ...


class SystemFiles:
    pwrite = staticmethod(os.pwrite)
    fdatasync = staticmethod(os.fdatasync)
    ftruncate = staticmethod(os.ftruncate)

    @staticmethod
    def free(descriptor: int) -> int:
        found = os.fstatvfs(descriptor)
        return found.f_bavail * found.f_frsize


SYSTEM: Final = SystemFiles()


def segment_name(writer: str, number: int) -> str:
    return f"audit-{writer}-{number:08d}.jsonl"


def checkpoints_name(writer: str) -> str:
    return f"checkpoints-{writer}.jsonl"


def list_segments(directory: Path) -> dict[str, list[tuple[int, Path]]]:
    """The segments in a directory, by writer and in the order of their numbers: their lines, or where only those are there, the compressed
    ones (gateway.audit.segments)."""
    found: dict[str, dict[int, Path]] = {}
    for entry in os.scandir(directory):
        if (match := _NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
            path = directory / entry.name
            numbers = found.setdefault(match[1], {})
            if match[3] is None or int(match[2]) not in numbers:
                numbers[int(match[2])] = path
    return {writer: sorted(found[writer].items()) for writer in sorted(found)}


def lock_name(writer: str) -> str:
    return f"audit-{writer}.lock"


def open_own(path: Path, flags: int) -> int:
    """The descriptor of a file of the log's own, never of what a symbolic link leads to. Raises OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{path.name} is a symbolic link; it must be a file") from None
        raise


class AppendFile:
    """One file to which whole batches are appended. `size`: bytes that are known to be good."""

    def __init__(self, path: Path, *, create: bool, files: Files = SYSTEM) -> None:
        self.path, self._files = path, files
        self._descriptor = open_own(path, os.O_RDWR | ((os.O_CREAT | os.O_EXCL) if create else 0))
        self._dirty = False
        try:
            self.size = os.fstat(self._descriptor).st_size
            if create:
                sync_directory(path.parent)
        except OSError:
            self.close()
            if create:
                path.unlink(missing_ok=True)  # the next try must not find a file that it may not take over
            raise

    def append(self, data: bytes, *, sync: bool) -> None:
        """Writes all of `data`, with fdatasync when `sync` is set; or raises OSError and restores the file, at the latest before the next
        append."""
        if self._dirty:
            self.cut()
        self._dirty = True
        try:
            self._write(data)
            if sync:
                self._files.fdatasync(self._descriptor)
        except OSError:
            try:
                self.cut()
            except OSError:  # still dirty: cut before the next append
                pass
            raise
        self.size += len(data)
        self._dirty = False

    def _write(self, data: bytes) -> None:
        written = self._files.pwrite(self._descriptor, memoryview(data), self.size)
        while written < len(data):
            more = self._files.pwrite(self._descriptor, memoryview(data)[written:], self.size + written)
            if more <= 0:
                raise OSError(5, "nothing could be written")
            written += more

    def cut(self, size: int | None = None) -> None:
        """Cuts the file back to its good bytes, or to `size`."""
        if size is not None:
            self.size = size
        self._files.ftruncate(self._descriptor, self.size)
        self._dirty = False

    def sync(self) -> None:
        self._files.fdatasync(self._descriptor)

    def free(self) -> int:
        """Bytes that the file system has left. Raises OSError."""
        return self._files.free(self._descriptor)

    @property
    def deleted(self) -> bool:
        """Whether the file has no name any more: what is written to it is lost. Raises OSError."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FileSink:
    """The segments of one writer. `open` makes the directory and takes the lock (or `take`, before it); `begin` or `resume` choose the
    segment; then `write`."""

    def __init__(self, directory: Path, writer: str, *, segment_bytes: int, sync: bool, files: Files = SYSTEM) -> None:
        if not _WRITER.fullmatch(writer):
            raise ConfigError(f"the writer id {writer!r} is not valid: use at most 40 letters, digits, underscores and dashes")
        self.directory, self.writer, self.sync, self.files = directory, writer, sync, files
        self._segment_bytes = segment_bytes
        self._file: AppendFile | None = None
        self._lock = -1
        self.segment = 0

    def open(self) -> None:
        """Makes the directory and takes the lock. Raises ConfigError when it cannot."""
        deadline = time.monotonic() + PATIENCE
        while self._lock < 0 and not self.take():
            if time.monotonic() >= deadline:
                raise ConfigError(f"another process writes the audit log in {self.directory} as writer {self.writer!r}", path="audit.sinks")
            time.sleep(PATIENCE / 10)

    def take(self) -> bool:
        """Takes the lock, which lasts until `close` or the end of the process; False when another process has it. Raises ConfigError."""
        try:
            self._lock = self._acquire()
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConfigError(f"cannot write the audit log in {self.directory}: {error.strerror}", path="audit.sinks") from error
        return True

    def _acquire(self) -> int:
        """The descriptor of the lock. Raises BlockingIOError when another process has it, OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_own(self.directory / lock_name(self.writer), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def keep_lock(self, text: str) -> bool:
        """Takes the lock anew if somebody has deleted its file; whether that was so. text: as for `mark`. Raises OSError, also when another
        process has the writer now."""
        if self._lock < 0 or os.fstat(self._lock).st_nlink:
            return False
        held, self._lock = self._lock, self._acquire()
        os.close(held)
        self.mark(text)
        return True

    def mark(self, text: str) -> None:
        """Leaves a text in the lock's file for those who find it locked. Raises OSError."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text.encode("ascii"), 0)

    def segments(self) -> list[tuple[int, Path]]:
        """This writer's segments in order."""
        return list_segments(self.directory).get(self.writer, [])

    @property
    def fresh(self) -> bool:
        """Whether the segment is empty, so that its header must come first."""
        return self._current.size == 0

    @property
    def deleted(self) -> bool:
        """Whether somebody has deleted the segment. Raises OSError."""
        return self._current.deleted

    @property
    def full(self) -> bool:
        return self._current.size >= self._segment_bytes

    @property
    def size(self) -> int:
        return self._current.size

    @property
    def path(self) -> Path:
        return self._current.path

    def resume(self, number: int) -> None:
        """Goes on in an existing segment."""
        self._switch(number, create=False)

    def begin(self, number: int) -> None:
        """Starts a new segment, whose first batch must begin with its header. Raises OSError and keeps the current segment."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._switch(number, create=True)

    def _switch(self, number: int, *, create: bool) -> None:
        file = AppendFile(self.directory / segment_name(self.writer, number), create=create, files=self.files)
        if self._file is not None:
            self._file.close()
        self._file, self.segment = file, number

    @property
    def _current(self) -> AppendFile:
        if self._file is None:
            raise OSError(9, "the audit log is not open")
        return self._file

    def write(self, batch: bytes) -> None:
        self._current.append(batch, sync=self.sync)

    def free(self) -> int:
        """Bytes that the file system has left for the log. Raises OSError."""
        return self._current.free()

    def cut(self, size: int) -> None:
        """Cuts the segment (to repair a torn tail) and brings that to the disk."""
        self._current.cut(size)
        self._current.sync()

    def settle(self) -> None:
        """Brings everything that was written to the disk, whatever the durability."""
        self._current.sync()

    def probe(self) -> None:
        self._current.cut()
        self._current.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def aclose(self) -> None:
        self.close()


def sync_directory(directory: Path) -> None:
    """Brings the directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
