"""What the model directories hold, with what the files say about themselves; refreshed when older than seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.facts import Facts
from engines.host.catalogue.checksums import Checksums
from engines.host.catalogue.inspection import Inspection
from engines.host.catalogue.scan import File, Found, Place, file_of, scan
from engines.runtimes import RUNTIMES, RuntimeRow, row_of
from gateway.core.modelshare import LocalModel, SharedFile
from gateway.core.plugins import Table

FRESH_SECONDS: Final = 3.0
Key = tuple[tuple[str, tuple[int, int, int]], ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """One scan. at: monotonic seconds."""

    at: float
    models: tuple[Found, ...]
    remarks: list[str]
    known: Mapping[Path, Facts]

    def facts(self, found: Found) -> Facts:
        """The facts of all parts together."""
        first = self.known[found.path] if found.path in self.known else Facts()
        if found.missing:
            return Facts(problem=f"parts are missing: {', '.join(map(str, found.missing))}")
        return first


class Shelf:
    """Scans and keeps the last result. Unchanged files are not read again."""

    def __init__(self, places: Callable[[], tuple[Place, ...]], checksums: Checksums, runtimes: Table[RuntimeRow] = RUNTIMES) -> None:
        self._places, self._checksums, self._runtimes = places, checksums, runtimes
        self._last: tuple[tuple[Place, ...], Looked] | None = None
        self._known: dict[Path, tuple[Key, Facts]] = {}
        self._changes = 0
        self.task: asyncio.Task[Looked] | None = None

    def fresh(self, now: float) -> Looked | None:
        """The last scan, while it is fresh."""
        if self._last is None or now - self._last[1].at > FRESH_SECONDS or self._last[0] != self._places():
            return None
        return self._last[1]

    def forget(self) -> None:
        """Something was changed: the next caller scans again, even if a scan is under way."""
        self._changes += 1
        self._last = self.task = None

    def look(self, now: float, go_on: Callable[[], bool]) -> Looked:
        """Scans the directories and reads new files. Blocks. Raises OSError if no process can be started, and Stopped."""
        places, changes = self._places(), self._changes
        done = scan(places, self._runtimes)
        known: dict[Path, tuple[Key, Facts]] = {}
        with Inspection(go_on, (place.root for place in places)) as inspection:
            for found in done.models:
                key = tuple((str(file.path), file.stamp) for file in found.files)
                before, row = self._known.get(found.path), row_of(found.runtime, self._runtimes)
                same = before is not None and before[0] == key
                known[found.path] = before if same and before is not None else (key, _read(found, row, inspection))
        self._known = known
        looked = Looked(now, tuple(done.models), done.remarks, {path: facts for path, (_, facts) in known.items()})
        if changes == self._changes:
            self._last = (places, looked)
        return looked


def _read(found: Found, row: RuntimeRow, inspection: Inspection) -> Facts:
    """The facts of the first file or the folder, with the parameters of all parts of a split model."""
    if found.missing:
        return Facts()
    facts = inspection.look(found.path, row)
    if facts.problem or len(found.files) == 1 or found.folder:
        return facts
    for number, file in enumerate(found.files[1:], 2):
        more = inspection.look(file.path, row)
        if more.problem or (more.part, more.parts) != (number, len(found.files)):
            return Facts(problem=f"part {number}: {more.problem or 'belongs to another model'}")
        facts = _with(facts, more.parameters or 0)
    return facts


def _with(facts: Facts, parameters: int) -> Facts:
    values = {name: getattr(facts, name) for name in facts.__struct_fields__}
    return Facts(**{**values, "parameters": (facts.parameters or 0) + parameters})


def file_at(path: Path) -> File:
    """A file as a scan would find it. Raises OSError."""
    return file_of(path, path.stat())


def local(found: Found, checksums: Checksums) -> LocalModel:
    """The model as it is told to other replicas."""
    base = found.path if found.folder else found.path.parent
    known = [(file, checksums.get(file)) for file in found.every]
    files = [SharedFile(path=file.path.relative_to(base).as_posix(), size=file.size, sha256=sha256) for file, sha256 in known if sha256]
    paths = tuple((str(file.path), file.stamp) for file in found.every)
    return LocalModel(name=found.name, version=found.version, files=tuple(files) if len(files) == len(known) else None, paths=paths)


def users(engines: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Engines by the path of their model, and by every folder above it."""
    found: dict[str, list[str]] = {}
    for name, model in engines:
        path = Path(model)
        for place in (path, *path.parents):
            found.setdefault(str(place), []).append(name)
    return found


def used_by(found: Found, engines: Mapping[str, list[str]]) -> list[str]:
    """The engines that use this model: one of its files, its folder, or a file in its folder."""
    names = {name for file in found.files for name in engines.get(str(file.path), ())} | set(engines.get(str(found.real), ()))
    return sorted(names)


def view(found: Found, facts: Facts, checksums: Checksums, engines: list[str], *, every: bool = False) -> dict[str, Any]:
    """The model as the admin API shows it. every: include each file."""
    first = checksums.get(found.files[0]) if found.files[0].path == found.path or found.folder else None
    shown: dict[str, Any] = {
        "name": found.name,
        "runtime": found.runtime,
        "source": found.place.source,
        "format": "folder" if found.folder else "split" if len(found.files) > 1 or found.missing else "file",
        "size": found.size,
        "files": len(found.files),
        "modified_at": found.modified,
        "sha256": first,
        "problem": facts.problem,
        "used_by": engines,
        "version": found.version,
        **facts.shown(),
    }
    if every:
        base = found.path if found.folder else found.path.parent
        shown["parts"] = [{"name": f.path.relative_to(base).as_posix(), "size": f.size, "sha256": checksums.get(f)} for f in found.every]
    return shown
