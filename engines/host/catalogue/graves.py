"""Models that were deleted or replaced in a registry that several replicas share: out of sight at once, and on the disk while an engine of
any of them may still read them. Blocks; run it in threads.

    .graves/MOMENT-RANDOM/grave.json   what is in it: the paths that its files 0, 1, ... had in the registry
    .graves/MOMENT-RANDOM/underway     it is being filled: what is not in its place is put back if that was broken off

Everything here is done in turns: no two replicas move anything at once. So whoever finds `underway` in its turn knows that nobody will end
it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from engines.host.catalogue.quarantine import Quarantine
from gateway.core.modelshare import Turn

FOLDER: Final = ".graves"
RECORD: Final = "grave.json"
UNDERWAY: Final = "underway"


class Grave(msgspec.Struct, frozen=True):
    """moment: of the store's clock, when it was dug. paths: relative to the registry."""

    moment: float
    paths: tuple[str, ...]


def bury(quarantine: Quarantine, registry: Path, paths: Sequence[Path], turn: Turn | None) -> list[Path]:
    """Takes a model's files out of sight; returns what is to be removed now. turn: in a registry that is shared. Raises OSError,
    LeaseLost."""
    if turn is None:
        return [quarantine.bury(path) for path in paths]
    grave = _dig(registry, paths, turn.moment)
    turn.sure()
    for number, path in enumerate(paths):
        path.rename(grave / str(number))
    sync(registry)
    (grave / UNDERWAY).unlink()
    return []


def swap(registry: Path, source: Path, target: Path, turn: Turn) -> None:
    """Puts a file or folder in the place of another one. The name of a file is never without one where the file system has hard links.
    Raises OSError, LeaseLost."""
    grave = _dig(registry, [target], turn.moment)
    old = grave / "0"
    linked = not source.is_dir() and not target.is_dir() and _link(target, old)
    try:
        turn.sure()
        if not linked:
            target.rename(old)
        source.rename(target)
    except BaseException:
        if not linked and os.path.lexists(old) and not os.path.lexists(target):
            old.rename(target)
        shutil.rmtree(grave, ignore_errors=True)
        raise
    sync(registry)
    (grave / UNDERWAY).unlink()


def unfinished(registry: Path) -> list[Path]:
    """Deletions and replacements that are under way, or were broken off."""
    return [grave for grave in _graves(registry) if (grave / UNDERWAY).exists()]


def heal(registry: Path) -> list[str]:
    """Puts back what was being deleted or replaced when a replica ended; the paths that are there again. Raises OSError."""
    back = []
    for grave in unfinished(registry):
        found = _read(grave)
        for number, path in enumerate(() if found is None else found.paths):
            if os.path.lexists(grave / str(number)) and not os.path.lexists(registry / path):
                (grave / str(number)).rename(registry / path)
                back.append(path)
        (grave / UNDERWAY).unlink(missing_ok=True)
    return back


def clear(registry: Path, over: Callable[[Grave], bool]) -> int:
    """Removes for good what nobody reads any more; how many graves. Needs no turn: what is under way is left alone."""
    removed = 0
    for grave in _graves(registry):
        moment = grave.name.partition("-")[0]
        found = _read(grave) or Grave(float(moment) if moment.isdecimal() else 0.0, ())
        if over(found) and not (grave / UNDERWAY).exists():
            shutil.rmtree(grave, ignore_errors=True)
            removed += 1
    return removed


def _dig(registry: Path, paths: Sequence[Path], moment: float) -> Path:
    grave = registry / FOLDER / f"{int(moment)}-{secrets.token_hex(8)}"
    (registry / FOLDER).mkdir(mode=0o700, exist_ok=True)
    grave.mkdir(mode=0o700)
    told = Grave(moment, tuple(path.relative_to(registry).as_posix() for path in paths))
    (grave / RECORD).write_bytes(msgspec.json.encode(told))
    sync(grave / RECORD)
    (grave / UNDERWAY).touch(0o600)
    sync(grave)
    return grave


def _link(target: Path, to: Path) -> bool:
    try:
        os.link(target, to, follow_symlinks=False)
    except OSError:
        return False
    return True


def _graves(registry: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in (registry / FOLDER).iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return


def _read(grave: Path) -> Grave | None:
    """None: it is not whole yet, or never was, so nothing is in it."""
    try:
        return msgspec.json.decode((grave / RECORD).read_bytes(), type=Grave)
    except (OSError, msgspec.MsgspecError):
        return None


def sync(path: Path) -> None:
    """Has the disk keep a file, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
