"""The data that `models add` sends: a file unchanged, or a folder as a tar archive that is never written to disk.

The archive (POSIX ustar) has fixed times and owners and is laid out once, so that any part of it can be made again from any offset.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from admin.cli.errors import CommandError
from gateway.core.modelfiles import FOLDER_FILES, member_problem

BLOCK: Final = 512
READ: Final = 4 * 1024 * 1024


class Piece(NamedTuple):
    """Bytes of the whole: given, or those of a file."""

    start: int
    size: int
    given: bytes
    path: Path | None


class Parcel:
    """A sequence of bytes of known length that can be read at any offset. left_out: files of a folder that are not sent, and why."""

    def __init__(self, pieces: list[tuple[bytes, Path | None, int]], left_out: tuple[str, ...] = ()) -> None:
        self.left_out = left_out
        self._pieces: list[Piece] = []
        at = 0
        for given, path, size in pieces:
            self._pieces.append(Piece(at, size, given, path))
            at += size
        self.size = at

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes. Raises CommandError when a file has changed."""
        parts = []
        for piece in self._pieces:
            begin, end = max(offset, piece.start), min(offset + count, piece.start + piece.size)
            if begin < end:
                parts.append(_cut(piece, begin - piece.start, end - begin))
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        """All of it."""
        for offset in range(0, self.size, READ):
            yield self.read(offset, READ)

    def sha256(self, advance: Callable[[int], None]) -> str:
        """The SHA-256 of all bytes; reports how many were read."""
        state = hashlib.sha256()
        for block in self.blocks():
            state.update(block)
            advance(len(block))
        return state.hexdigest()


def _cut(piece: Piece, at: int, count: int) -> bytes:
    if piece.path is None:
        return piece.given[at : at + count]
    try:
        with piece.path.open("rb") as file:
            file.seek(at)
            data = file.read(count)
            changed = len(data) != count or os.fstat(file.fileno()).st_size != piece.size
    except OSError as error:
        raise CommandError(f"{piece.path}: {error.strerror}") from None
    if changed:
        raise CommandError(f"{piece.path} changed while it was read")
    return data


def of_file(path: Path) -> Parcel:
    """A file. Raises CommandError."""
    size = _size(path)
    if not size:
        raise CommandError(f"{path} is empty")
    return Parcel([(b"", path, size)])


def of_folder(folder: Path) -> Parcel:
    """A folder, without dot files and files that no model needs. Raises CommandError."""
    pieces: list[tuple[bytes, Path | None, int]] = []
    left_out: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or any(part.startswith(".") for part in name.split("/")):
            continue
        problem = member_problem(name)
        if problem is not None:
            left_out.append(f"{name} {problem}")
            continue
        size = _size(path)
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        try:
            header = member.tobuf(tarfile.USTAR_FORMAT)
        except ValueError as error:
            raise CommandError(f"{path}: {error}") from None
        padding = bytes(-size % BLOCK)
        pieces += [(header, None, len(header)), (b"", path, size), (padding, None, len(padding))]
    if not pieces:
        raise CommandError(f"{folder} has no model files")
    if len(pieces) > 3 * FOLDER_FILES:
        raise CommandError(f"{folder} holds more than {FOLDER_FILES} files")
    end = bytes(2 * BLOCK)
    return Parcel([*pieces, (end, None, len(end))], tuple(left_out))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
