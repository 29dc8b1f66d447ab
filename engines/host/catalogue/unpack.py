"""Unpacks a tar archive with a model's folder. Only plain files and folders, only names that `gateway.core.modelfiles` accepts, only new
files, only as many bytes as the archive has: nothing can land outside the folder, and nothing expands.

The archive is walked header by header (POSIX.1-2001, ustar interchange format): `tarfile` would read an extended header of any size into
memory.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from engines.host.catalogue.checksums import Stopped
from gateway.core.modelfiles import FOLDER_FILES, member_problem

BLOCK: Final = 512
COPIED: Final = 1024 * 1024
MAX_EXTENDED: Final = 64 * 1024
"""Largest extended header in bytes; the usual ones (finer times) are ignored."""
_MEANING: Final = (b" path=", b" size=", b" linkpath=", b" GNU.sparse")


class Unsafe(Exception):
    """The archive is refused; the message names the member."""


def unpack(archive: Path, target: Path, go_on: Callable[[], bool]) -> None:
    """Unpacks into an empty folder. Raises Unsafe, OSError, Stopped."""
    members = 0
    with archive.open("rb") as file:
        while (header := file.read(BLOCK)) and header.count(0) != BLOCK:
            members += 1
            if members > 2 * FOLDER_FILES:
                raise Unsafe(f"the archive has more than {FOLDER_FILES} files")
            try:
                member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            except (tarfile.TarError, ValueError) as error:
                raise Unsafe(f"this is not a tar archive: {error} (byte {file.tell() - len(header)})") from None
            _member(file, member, target, go_on)
    if not members:
        raise Unsafe("the archive is empty")


def _member(file: BinaryIO, member: tarfile.TarInfo, target: Path, go_on: Callable[[], bool]) -> None:
    shown = repr(member.name[:200])
    if member.size < 0:
        raise Unsafe(f"{shown} has a negative size")
    if member.type in (tarfile.XHDTYPE, tarfile.XGLTYPE):
        _extended(file, member)
    elif member.type == tarfile.DIRTYPE:
        name = member.name.removeprefix("./").strip("/")
        problem = member_problem(f"{name}/README") if name not in ("", ".") else None
        if problem is not None:
            raise Unsafe(f"the folder {shown} {problem}")
    elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
        name = member.name.removeprefix("./")
        problem = member_problem(name)
        if problem is not None:
            raise Unsafe(f"{shown} {problem}")
        _copy(file, member.size, target / name, shown, go_on)
    else:
        raise Unsafe(f"{shown} is neither a plain file nor a folder")


def _extended(file: BinaryIO, member: tarfile.TarInfo) -> None:
    if member.size > MAX_EXTENDED:
        raise Unsafe(f"an extended header has {member.size} bytes; {MAX_EXTENDED} are possible")
    data = file.read(member.size + -member.size % BLOCK)
    if any(word in data for word in _MEANING):
        raise Unsafe("an extended header changes a name or a size; make the archive in the ustar format")


def _copy(file: BinaryIO, size: int, path: Path, shown: str, go_on: Callable[[], bool]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (FileExistsError, NotADirectoryError):
        raise Unsafe(f"{shown} is there twice") from None
    left = size
    with os.fdopen(descriptor, "wb") as copy:
        while left:
            data = file.read(min(COPIED, left))
            if not data:
                raise Unsafe(f"the archive ends within {shown}")
            copy.write(data)
            left -= len(data)
            if not go_on():
                raise Stopped
        copy.flush()
        os.fsync(copy.fileno())
    file.read(-size % BLOCK)
