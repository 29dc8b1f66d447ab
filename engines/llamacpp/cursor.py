"""Reads the parts of a GGUF header, each within its bounds."""

from __future__ import annotations

import mmap
import struct
from typing import Any, NoReturn

_BOOL = 7
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> how `struct` has it."""
FORMATS = {kind: struct.Struct("<" + code) for kind, code in SCALARS.items()}


class GgufError(Exception):
    """The file is not a usable GGUF file; the message says where and why."""


class Cursor:
    """Reads from a buffer; every read is checked against its end. where: for errors. strings: in arrays so far; `kept`: of them.
    kinds: types of the values so far."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0
        self.where = "header"
        self.strings = self.kept = 0
        self.kinds: dict[str, int] = {}

    def fail(self, reason: str) -> NoReturn:
        raise GgufError(f"{self.where}: {reason} (byte {self.at})")

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > self.size:
            self.fail(f"the file is truncated: {count} more bytes expected, {self.size - self.at} left")
        data = self.data[self.at : end]
        self.at = end
        return data

    def scalar(self, kind: int) -> Any:
        form = FORMATS[kind]
        data = self.take(form.size)
        if kind == _BOOL and data not in (b"\0", b"\1"):
            self.fail("a boolean is neither 0 nor 1")
        return form.unpack(data)[0]

    def u32(self) -> int:
        return int(self.scalar(4))

    def u64(self) -> int:
        return int(self.scalar(10))

    def string(self, limit: int) -> str:
        length = self.u64()
        if length > limit:
            self.fail(f"a string of {length} bytes is longer than {limit}")
        return self.take(length).decode("utf-8", "replace")
