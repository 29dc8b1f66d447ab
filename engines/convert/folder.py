"""The files of a Hugging Face folder: plain files that lie in it, never through a link, of bounded size."""

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
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Refused(ValueError):
    """The folder cannot be converted. The message says why, and names no place on this machine."""


class Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name

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
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Refused(f"{name} is not an object of JSON: {str(error)[:200]}") from None
