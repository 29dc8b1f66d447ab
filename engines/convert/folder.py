"""The files of a Hugging Face folder: plain files that lie in it, never through a link, of bounded size, and decoded only where the values
fit into the memory."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

MOST_JSON: Final = 128 * 1024 * 1024
MOST_ENTRIES: Final = 2000
MOST_MEMORY: Final = 8 * 1024**3
SPARE: Final = 64 * 1024**2
"""Memory that is left for the interpreter and its libraries."""
_STRING, _LIST, _OBJECT, _KEY, _VALUE = 76, 112, 344, 76, 40
"""Bytes that CPython takes at most for each, beside the text: with the reference to it, the collector's part, and what lists and
dictionaries reserve."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Refused(ValueError):
    """The folder cannot be converted. The message says why, and names no place on this machine."""


def weight(data: bytes) -> int:
    """Bytes of memory that the values of a JSON text take at most. Counted, not decoded: a decoder that runs out of memory may take the
    process with it, and says nothing."""
    text = len(data) * (1 if data.isascii() and b"\\u" not in data else 4)
    strings, keys = data.count(b'"') // 2, data.count(b":")
    lists, objects = data.count(b"["), data.count(b"{")
    others = max(0, data.count(b",") + 1 + keys - strings)
    return text + strings * _STRING + keys * _KEY + lists * _LIST + objects * _OBJECT + others * _VALUE


class Folder:
    """memory: bytes that the process may have."""

    def __init__(self, path: Path, memory: int = MOST_MEMORY) -> None:
        self.path, self.name, self._memory = path, path.name, memory

    def names(self) -> list[str]:
        with os.scandir(self.path) as entries:
            found = []
            for entry in entries:
                found.append(entry.name)
                if len(found) > MOST_ENTRIES:
                    raise Refused(f"the folder has more than {MOST_ENTRIES} entries")
        return sorted(found)

    def open(self, name: str) -> int | None:
        """A descriptor for reading; None where there is no such file. Raises Refused."""
        if not _NAME.fullmatch(name):
            raise Refused(f"a file is named {name[:64]!r}: letters, digits and any of '._-' are possible")
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Refused(f"{name} is a link: copy the file itself into the folder (cp -L)") from None
            raise Refused(f"{name} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused(f"{name} is not a plain file")
        return descriptor

    def read(self, name: str, most: int = MOST_JSON) -> bytes | None:
        """The whole file; None where there is none. Raises Refused."""
        if (descriptor := self.open(name)) is None:
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Refused(f"{name} has more than {most} bytes")
        return data

    def fits(self, name: str, needed: int) -> None:
        """Raises Refused unless the memory holds twice the bytes of the file's values: as they are read, and as they are converted."""
        if 2 * needed + SPARE > self._memory:
            raise Refused(
                f"the values of {name} may take {needed >> 20} MiB of memory; {max(0, self._memory - SPARE) // 2 >> 20} MiB are possible "
                "(half of jobs.memory_bytes, less 32 MiB)"
            )

    def text(self, name: str) -> str | None:
        """Raises Refused."""
        try:
            return None if (data := self.read(name)) is None else data.decode()
        except UnicodeDecodeError:
            raise Refused(f"{name} is not UTF-8") from None

    def json(self, name: str) -> dict[str, Any] | None:
        """An object of JSON; None where there is no such file. Raises Refused."""
        if (data := self.read(name)) is None:
            return None
        self.fits(name, weight(data))
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Refused(f"{name} is not an object of JSON: {str(error)[:200]}") from None
