"""Segments as they lie on the disk: lines, or lines compressed with zstd (`.jsonl.zst`).

A compressed segment is in the Zstandard Seekable Format: frames of 1 MiB of lines, each with a checksum, and at the end a table of them in
a skippable frame. `zstd -d` reads it like any other file; here, it is read from any place on at the cost of one frame. Offsets and sizes
are those of the lines.
"""

from __future__ import annotations

import io
import os
import struct
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import zstandard

SUFFIX: Final = ".zst"
FRAME: Final = 1024 * 1024
_FOOTER: Final = struct.Struct("<IBI")
_ENTRY: Final = struct.Struct("<II")
_SKIPPABLE: Final = struct.Struct("<II")
_SKIPPABLE_MAGIC: Final = 0x184D2A5E
_SEEKABLE_MAGIC: Final = 0x8F92EAB1
_BUFFER: Final = 256 * 1024


class SegmentDamaged(OSError):
    """A compressed segment that cannot be read. The message says why."""


class _Compressed(io.RawIOBase):
    """The lines of a compressed segment. Raises SegmentDamaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        try:
            self._starts, self._ends = _table(self._file)
        except (struct.error, ValueError) as error:
            self._file.close()
            raise SegmentDamaged(f"{path.name} is no compressed segment: {error}") from error
        self._at = 0
        self._frame, self._lines = -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._ends[-1] if self._ends else 0}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        number = bisect_right(self._ends, self._at)
        if number >= len(self._ends):
            return 0
        if number != self._frame:
            self._lines, self._frame = self._read(number), number
        begin = self._at - (self._ends[number - 1] if number else 0)
        data = self._lines[begin : begin + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, number: int) -> bytes:
        begin, end = self._starts[number], self._starts[number + 1]
        size = self._ends[number] - (self._ends[number - 1] if number else 0)
        self._file.seek(begin)
        try:
            found = zstandard.ZstdDecompressor().decompress(self._file.read(end - begin), max_output_size=max(1, size))
        except zstandard.ZstdError as error:
            raise SegmentDamaged(f"frame {number + 1} of {self._path.name} cannot be read: {error}") from error
        if len(found) != size:
            raise SegmentDamaged(f"frame {number + 1} of {self._path.name} has another size than the table says")
        return found

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _table(file: BinaryIO) -> tuple[list[int], list[int]]:
    """Where the frames begin (and the last one ends), and where the lines in each end. Raises ValueError, struct.error."""
    size = file.seek(0, os.SEEK_END)
    if size < _FOOTER.size:
        raise ValueError("it is cut off")
    file.seek(size - _FOOTER.size)
    count, flags, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    length = count * _ENTRY.size + _FOOTER.size
    if magic != _SEEKABLE_MAGIC or flags or length + _SKIPPABLE.size > size:
        raise ValueError("its table is missing")
    file.seek(size - length - _SKIPPABLE.size)
    data = file.read(length + _SKIPPABLE.size)
    if _SKIPPABLE.unpack_from(data) != (_SKIPPABLE_MAGIC, length):
        raise ValueError("its table is damaged")
    entries = list(_ENTRY.iter_unpack(data[_SKIPPABLE.size : _SKIPPABLE.size + count * _ENTRY.size]))
    starts = [0, *accumulate(packed for packed, _ in entries)]
    if starts[-1] != size - length - _SKIPPABLE.size or any(not 0 < plain <= FRAME for _, plain in entries):
        raise ValueError("its table does not fit")
    return starts, list(accumulate(plain for _, plain in entries))


def is_compressed(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def plain_name(name: str) -> str:
    """The name of a segment's file before it was compressed."""
    return name.removesuffix(SUFFIX)


def _other(path: Path) -> Path:
    return path.with_name(plain_name(path.name) if is_compressed(path) else path.name + SUFFIX)


def open_segment(path: Path) -> BinaryIO:
    """A segment's lines, from its beginning; also where it was compressed since its name was read. Raises OSError."""
    try:
        return _open(path)
    except FileNotFoundError:
        return _open(_other(path))


def _open(path: Path) -> BinaryIO:
    if not is_compressed(path):
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(_Compressed(path), _BUFFER))


def segment_size(path: Path) -> int:
    """Bytes of a segment's lines. Raises OSError."""
    try:
        if not is_compressed(path):
            return path.stat().st_size
    except FileNotFoundError:
        pass
    with open_segment(path) as file:
        return file.seek(0, os.SEEK_END)


def file_size(path: Path) -> int:
    """Bytes that a segment takes on the disk. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return _other(path).stat().st_size


def segment_time(path: Path) -> float:
    """When a segment's lines were written last, in seconds since the epoch. Raises OSError."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return _other(path).stat().st_mtime


def compress(source: BinaryIO, target: BinaryIO, level: int = 6) -> None:
    """Writes the compressed form of what `source` has."""
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    entries = []
    while block := source.read(FRAME):
        packed = compressor.compress(block)
        target.write(packed)
        entries.append(_ENTRY.pack(len(packed), len(block)))
    table = b"".join(entries) + _FOOTER.pack(len(entries), 0, _SEEKABLE_MAGIC)
    target.write(_SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(table)) + table)
