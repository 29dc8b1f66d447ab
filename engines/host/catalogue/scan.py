"""Which models a directory holds: model files, split ones as one, and folders that are a model. Reads names, not contents.

Bounded in depth, entries and models. Skips names that begin with a dot, links that lead out of the directory, and anything that is
neither a file nor a folder. Blocks; run it in a thread.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from engines.runtimes import RUNTIMES, WEIGHTS, RuntimeRow, runtime_of_file
from gateway.core.modelfiles import CONFIG, FOLDER_FILES, signature_of, split_name, split_of
from gateway.core.modelfiles import WEIGHTS as SUFFIX
from gateway.core.plugins import Table

MAX_DEPTH = 6
MAX_ENTRIES = 20_000
MAX_MODELS = 2_000
Source = Literal["registry", "directory", "bundled"]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of models. Only those in the registry are written and deleted."""

    root: Path
    source: Source


@dataclass(frozen=True, slots=True)
class File:
    """One file of a model, with a stamp that changes with it."""

    path: Path
    size: int
    modified: float
    stamp: tuple[int, int, int]
    """(size, modification time in nanoseconds, inode)"""
    changed: int = 0
    """When anything of it was changed, which nobody can set: st_ctime in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model. name: what an engine's `model` calls it. path: its first file, or its folder. missing: absent parts of a split model."""

    name: str
    place: Place
    path: Path
    runtime: str
    files: tuple[File, ...]
    folder: bool = False
    missing: tuple[int, ...] = ()
    real: Path = Path()
    """Where `path` leads, links followed."""
    signatures: tuple[File, ...] = ()
    """Those of its files that lie beside them; a folder's is one of its files."""

    @property
    def every(self) -> tuple[File, ...]:
        """All that is moved, sent and deleted with it."""
        return self.files + self.signatures

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def modified(self) -> float:
        return max(file.modified for file in self.files)

    @property
    def version(self) -> str:
        """Changes with every file of the model; the content of its ETag."""
        seen = repr([(str(file.path), file.stamp) for file in self.every])
        return hashlib.blake2b(seen.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


@dataclass(slots=True)
class Scan:
    """What was found, and what was skipped and why."""

    runtimes: Table[RuntimeRow] = RUNTIMES
    models: list[Found] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    entries: int = 0

    def full(self) -> bool:
        return self.entries >= MAX_ENTRIES or len(self.models) >= MAX_MODELS


def scan(places: tuple[Place, ...], runtimes: Table[RuntimeRow] = RUNTIMES) -> Scan:
    """Every model of these places. If several share a name, the first counts, as for an engine."""
    done = Scan(runtimes)
    for place in places:
        root = place.root.resolve()
        if root.is_dir():
            _folder(done, place, root, root, 0)
    names: set[str] = set()
    models, done.models = done.models, []
    for found in sorted(models, key=lambda m: (places.index(m.place), m.name)):
        if found.name in names:
            done.remarks.append(f"{found.name} is there more than once; the first place counts")
            continue
        names.add(found.name)
        done.models.append(found)
    if done.full():
        done.remarks.append(f"there are more than {MAX_MODELS} models or {MAX_ENTRIES} entries; the rest was left out")
    return done


def _folder(done: Scan, place: Place, root: Path, folder: Path, depth: int) -> None:
    entries = list(_entries(done, root, folder))
    files = {name: file for name, file in entries if isinstance(file, File)}
    whole = whole_folder(folder, files, done.runtimes) if folder != root else None
    if whole is not None:
        owner, main = whole
        inside = sorted(islice(_all(done, root, folder, 0), FOLDER_FILES), key=lambda file: (file.path != main, file.path))
        if inside and inside[0].path == main:  # it may be a link that leads out
            done.models.append(
                Found(folder.relative_to(root).as_posix(), place, folder, owner.name, tuple(inside), True, (), _real(folder))
            )
        return
    if folder != root and are_weights(files, done.runtimes) and not done.full():
        own = tuple(islice(files.values(), FOLDER_FILES))
        done.models.append(Found(folder.relative_to(root).as_posix(), place, folder, WEIGHTS.name, own, True, (), _real(folder)))
    _files(done, place, root, files)
    for name, entry in entries:
        if entry is None and not done.full():
            if depth + 1 >= MAX_DEPTH:
                done.remarks.append(f"{(folder / name).relative_to(root).as_posix()} lies too deep and was left out")
            else:
                _folder(done, place, root, folder / name, depth + 1)


def _files(done: Scan, place: Place, root: Path, files: dict[str, File]) -> None:
    """The models among the files of one folder."""
    splits: dict[tuple[str, int], dict[int, File]] = {}
    for name, file in files.items():
        if done.full():
            return
        relative = file.path.relative_to(root).as_posix()
        split = split_of(name)
        if split is not None:
            splits.setdefault((split[0], split[2]), {})[split[1]] = file
        elif (row := runtime_of_file(name, done.runtimes)) is not None:
            done.models.append(
                Found(relative, place, file.path, row.name, (file,), real=_real(file.path), signatures=_signatures(files, name))
            )
    for (stem, count), parts in splits.items():
        first = parts[min(parts)].path.with_name(split_name(stem, 1, count))
        missing = [part for part in range(1, min(count, 1000) + 1) if part not in parts]
        ordered = tuple(parts[part] for part in sorted(parts))
        name, owner = first.relative_to(root).as_posix(), runtime_of_file(first.name, done.runtimes)
        if owner is not None:
            done.models.append(
                Found(
                    name,
                    place,
                    first,
                    owner.name,
                    ordered,
                    False,
                    tuple(missing[:20]),
                    _real(first),
                    _signatures(files, *(f.path.name for f in ordered)),
                )
            )


def _signatures(files: dict[str, File], *names: str) -> tuple[File, ...]:
    return tuple(file for name in names if (file := files.get(signature_of(name))) is not None)


def whole_folder(folder: Path, files: Iterable[str], runtimes: Table[RuntimeRow]) -> tuple[RuntimeRow, Path] | None:
    """The runtime and the main file of a folder that is a model as a whole. files: the names of the files in it."""
    for row in runtimes:
        for name in row.folder_files:
            if (folder / name).is_file():
                return row, folder / name
    models = [(owner, folder / name) for name in files if (owner := runtime_of_file(name, runtimes)) is not None]
    return models[0] if len(models) == 1 and models[0][0].folder_files else None


def are_weights(files: Iterable[str], runtimes: Table[RuntimeRow]) -> bool:
    """Whether a folder with these files holds weights that a job converts, and nothing that an engine takes as it is."""
    names = set(files)
    found = CONFIG in names and any(name.endswith(SUFFIX) for name in names)
    return found and not any(runtime_of_file(name, runtimes) for name in names)


def _all(done: Scan, root: Path, folder: Path, depth: int) -> Iterator[File]:
    for name, entry in _entries(done, root, folder):
        if isinstance(entry, File):
            yield entry
        elif depth + 1 < MAX_DEPTH:
            yield from _all(done, root, folder / name, depth + 1)


def _entries(done: Scan, root: Path, folder: Path) -> Iterator[tuple[str, File | None]]:
    """Files, and None for each folder, by name."""
    try:
        names = sorted(_names(done, folder))
    except OSError as error:
        done.remarks.append(f"{folder.relative_to(root).as_posix()} cannot be read: {error.strerror}")
        return
    for name in names:
        path = folder / name
        try:
            if not _within(path, root, folder):
                done.remarks.append(f"{path.relative_to(root).as_posix()} leads out of the directory and was left out")
                continue
            status = path.stat()
        except OSError:  # a dangling link, a circle of links, or just removed
            continue
        if stat.S_ISDIR(status.st_mode):
            yield name, None
        elif stat.S_ISREG(status.st_mode):
            yield name, file_of(path, status)


def file_of(path: Path, status: os.stat_result) -> File:
    stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
    return File(path, status.st_size, status.st_mtime, stamp, status.st_ctime_ns)


def _names(done: Scan, folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if done.entries >= MAX_ENTRIES:
                return
            done.entries += 1
            if not entry.name.startswith(".") and entry.name.isprintable() and len(entry.name) <= 255:
                yield entry.name


def _real(path: Path) -> Path:
    """Follows links; unlike `Path.resolve`, never raises for a circle of them."""
    return Path(os.path.realpath(path))


def _within(path: Path, root: Path, folder: Path) -> bool:
    """Whether a path stays in the directory and does not lead back to a folder that contains it. Only links can do otherwise."""
    if not path.is_symlink():
        return True
    target = Path(os.path.realpath(path, strict=True))
    return target.is_relative_to(root) and not _real(folder).is_relative_to(target)
