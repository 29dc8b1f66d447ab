"""Writes GGUF, version 3 (ggml's docs/gguf.md): keys and values, where the tensors are, the tensors, one after the other."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

VERSION: Final = 3
ALIGNMENT: Final = 32
TYPES: Final = {"F32": (0, 4, 0), "F16": (1, 2, 1), "BF16": (30, 2, 32)}
"""Type of weights -> (number of a tensor's type, bytes of an element, number of a file of mostly this type)."""
QUANTIZATION_VERSION: Final = 2
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


class Written(NamedTuple):
    """A tensor. shape: the slowest dimension first, as numpy has it. blocks: its bytes, in pieces."""

    name: str
    shape: tuple[int, ...]
    type: str
    blocks: Callable[[], Iterable[Any]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * TYPES[self.type][1]


class Writer:
    """Raises struct.error for a number that does not fit its type."""

    def __init__(self) -> None:
        self._values: dict[str, bytes | bytearray] = {}
        self.tensors: list[Written] = []

    def whole(self, key: str, value: int) -> None:
        self._values[key] = struct.pack("<II", _U32, value)

    def signed(self, key: str, value: int) -> None:
        self._values[key] = struct.pack("<Ii", _I32, value)

    def number(self, key: str, value: float) -> None:
        self._values[key] = struct.pack("<If", _F32, value)

    def flag(self, key: str, value: bool) -> None:
        self._values[key] = struct.pack("<I?", _BOOL, value)

    def text(self, key: str, value: str) -> None:
        self._values[key] = struct.pack("<I", _STRING) + _string(value.encode())

    def texts(self, key: str, values: Sequence[bytes]) -> None:
        made = bytearray(struct.pack("<IIQ", _ARRAY, _STRING, len(values)))
        for value in values:  # not joined: there may be millions
            made += struct.pack("<Q", len(value))
            made += value
        self._values[key] = made

    def wholes(self, key: str, values: Sequence[int]) -> None:
        self._values[key] = struct.pack(f"<IIQ{len(values)}i", _ARRAY, _I32, len(values), *values)

    def numbers(self, key: str, values: Sequence[float]) -> None:
        self._values[key] = struct.pack(f"<IIQ{len(values)}f", _ARRAY, _F32, len(values), *values)

    def has(self, key: str) -> bool:
        return key in self._values

    def header(self) -> bytes:
        parts: list[bytes | bytearray] = [struct.pack("<4sIQQ", b"GGUF", VERSION, len(self.tensors), len(self._values))]
        for key, value in self._values.items():
            parts += (_string(key.encode()), value)
        offset = 0
        for tensor in self.tensors:
            dimensions = tensor.shape[::-1]
            parts.append(_string(tensor.name.encode()) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
            parts.append(struct.pack("<IQ", TYPES[tensor.type][0], offset))
            offset += _padded(tensor.bytes)
        length = sum(map(len, parts))
        return b"".join((*parts, bytes(_padded(length) - length)))

    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header()) + sum(_padded(tensor.bytes) for tensor in self.tensors)

    def write(self, path: Path, told: Callable[[float], None]) -> None:
        """told: is called with the share that is written, from 0 to 1. Raises OSError; FileExistsError if there is a file already."""
        all, done = max(1, self.size()), 0
        with path.open("xb") as file:
            done += file.write(self.header())
            for tensor in self.tensors:
                begun = done
                for block in tensor.blocks():
                    done += file.write(block)
                    told(done / all)
                done += file.write(bytes(begun + _padded(tensor.bytes) - done))


def _string(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT
