"""Whether a model of a registry that replicas share is what was added there, before each load of an engine (docs/models.md).

What it consists of stands in the gateways' store. A checksum that this machine has computed of the same bytes is not computed again; that
nobody can have written to the file since, its change time says, which cannot be set. Blocks; run it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from engines.host.catalogue.checksums import Checksums, digest
from engines.host.catalogue.scan import File
from engines.host.catalogue.shelf import file_at
from gateway.core.modelshare import NotedModel, SharedFile

ADVICE: Final = "add it anew (`--replace`), or delete it with `gatehouse models remove`"


class Altered(Exception):
    """It is not what was added. The text names the model and what is wrong."""


class Notes(Protocol):
    """What the store has noted. Called in threads."""

    def of(self, path: Path) -> tuple[Path, NotedModel | None] | None:
        """The model that this real path is, or is in, and where it is. None: it is no path of the directory. Raises OSError where that
        cannot be told."""
        ...

    def seen(self, path: Path, files: tuple[SharedFile, ...]) -> None:
        """Nobody has noted this one yet."""
        ...


def described(files: Mapping[Path, SharedFile]) -> tuple[SharedFile, ...]:
    """A model's files as they are noted, in a fixed order."""
    return tuple(sorted(files.values(), key=lambda file: file.path))


def look(path: Path, sha256: Callable[[Path, File], str]) -> dict[Path, SharedFile]:
    """The files of a model. path: its file or folder. Raises OSError."""
    return {one: _file(one, path, sha256) for one in _files(path)}


def loading(notes: Notes, reads: Iterator[Path], checksums: Checksums, go_on: Callable[[], bool]) -> list[Path]:
    """reads: the real paths of the files and folders that an engine is about to read. Returns all files that were compared.

    Raises Altered, OSError, Stopped.
    """
    fresh: list[tuple[File, str]] = []

    def sha256(path: Path, file: File) -> str:
        known = checksums.certain(file)
        if known is None:
            known = digest(path, go_on)
            fresh.append((file, known))
        return known

    compared: dict[Path, None] = {}
    try:
        for path in reads:
            found = notes.of(path)
            if found is None or (where := found[0]) in compared:
                continue
            files = look(where, sha256)
            here = described(files)
            if found[1] is None:
                notes.seen(where, here)
            elif here not in found[1].versions:
                raise Altered(f"the model {found[1].path!r} is not what was added: {_differs(here, found[1].versions[0])}; {ADVICE}")
            compared.update(dict.fromkeys([where, *files]))
    finally:
        if fresh:
            checksums.put(fresh)
    return list(compared)


def _file(path: Path, model: Path, sha256: Callable[[Path, File], str]) -> SharedFile:
    file = file_at(path)
    name = path.name if path == model else path.relative_to(model).as_posix()
    return SharedFile(path=name, size=file.size, sha256=sha256(path, file))


def _files(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if not one.is_dir()) if path.is_dir() else [path]


def _differs(here: tuple[SharedFile, ...], noted: tuple[SharedFile, ...]) -> str:
    mine, theirs = ({file.path: file for file in files} for files in (here, noted))
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in theirs:
            return f"{name!r} was put there"
        if name not in mine:
            return f"{name!r} was taken away"
        if mine[name] != theirs[name]:
            return f"{name!r} has other bytes (SHA-256 {mine[name].sha256}, {theirs[name].sha256} was added)"
    return "its files are others"
