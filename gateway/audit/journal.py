"""The journal: a request may be forwarded once its record is here, before the record is in the chain.

A small file beside the segments, its blocks reserved and its pages mapped into memory. Copying an entry there takes a microsecond and no
system call. From then on the operating system has it, as after a `write`: it survives the end of the process at any moment, but not a
loss of power. A moment later the same record is in the chain; the next start chains the records that were not when the process ended.

The file: 8 bytes of name, 8 bytes `done`, then a ring of entries. A position counts bytes since the beginning and never falls. The entry
at position p begins at p modulo the ring's size, and never wraps around its end. `done` is the position before which everything is in
the chain. An entry is its length, the CRC-32 of its position and payload, its position, and the payload: so the remains of an earlier
lap, or an entry that a crash cut short, are not taken for entries.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

CAPACITY: Final = 256 * 1024
"""Bytes of the ring: some hundreds of requests. A record that finds no room waits for the chain."""
_NAME: Final = b"GHAJRNL1"
_START: Final = 16
_HEAD: Final = struct.Struct("<IIQ")
_HEAD_SIZE: Final = 16
_POSITION: Final = struct.Struct("<Q")
_SKIP: Final = 0xFFFFFFFF
"""An entry with this length means: go on at the ring's beginning."""


def journal_name(writer: str) -> str:
    return f"audit-{writer}.journal"


class Journal:
    """One process's journal, used by one thread. `position`: where the next entry goes. `done`: everything before it is in the chain."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        """Makes the file, which must not exist, with mode 0600. Raises OSError and leaves no file behind when that fails."""
        self.path = path
        self.position = self.done = 0
        self._capacity = capacity
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, _START + capacity)
            os.pwrite(descriptor, _NAME + bytes(_START + capacity - len(_NAME)), 0)
            self._map: mmap.mmap | None = mmap.mmap(descriptor, _START + capacity)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def append(self, payload: bytes) -> bool:
        """Adds one entry. Returns False and changes nothing when there is no room or the journal is closed."""
        memory, position, capacity = self._map, self.position, self._capacity
        if memory is None:
            return False
        size = _HEAD_SIZE + len(payload)
        offset = position % capacity
        left = capacity - offset
        skipped = left if size > left else 0
        if position + skipped + size - self.done > capacity:
            return False
        if skipped:
            if left >= _HEAD_SIZE:
                memory[_START + offset : _START + offset + _HEAD_SIZE] = _head(_SKIP, position, b"")
            position += skipped
            offset = 0
        begin = _START + offset
        memory[begin : begin + size] = _head(len(payload), position, payload) + payload
        self.position = position + size
        return True

    def settle(self, position: int) -> None:
        """Notes that everything before this position is in the chain."""
        self.done = position
        if self._map is not None:
            self._map[8:_START] = _POSITION.pack(position)

    def close(self) -> None:
        """Lets go of the file, and removes it when everything is in the chain. May be called twice."""
        if self._map is None:
            return
        self._map.close()
        self._map = None
        if self.done == self.position:
            self.path.unlink(missing_ok=True)


def _head(length: int, position: int, payload: bytes) -> bytes:
    return _HEAD.pack(length, crc32(payload, position & 0xFFFFFFFF), position)


def left_over(path: Path) -> list[bytes]:
    """The payloads in a journal that its process did not settle, in order; none when there is no such file. Raises OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(data) <= _START + _HEAD_SIZE or not data.startswith(_NAME):
        return []  # its process ended while making it
    return list(_entries(data, len(data) - _START, int.from_bytes(data[8:_START], "little")))


def is_foreign(path: Path) -> bool:
    """Whether a file in a journal's place is none, and not one whose process ended while making it. Raises OSError."""
    try:
        with path.open("rb") as file:
            name = file.read(len(_NAME))
    except FileNotFoundError:
        return False
    return any(name) and name != _NAME


def _entries(data: bytes, capacity: int, done: int) -> Iterator[bytes]:
    position = done
    while position - done < capacity:
        offset = position % capacity
        left = capacity - offset
        if left < _HEAD_SIZE:
            position += left
            continue
        begin = _START + offset
        length, checksum, claimed = _HEAD.unpack_from(data, begin)
        payload = data[begin + _HEAD_SIZE : begin + _HEAD_SIZE + length] if length != _SKIP else b""
        if claimed != position or checksum != crc32(payload, position & 0xFFFFFFFF):
            return
        if length == _SKIP:
            position += left
            continue
        if not length or length > left - _HEAD_SIZE:
            return
        yield payload
        position += _HEAD_SIZE + length
