"""Models that were deleted or replaced in a registry that several replicas share: out of sight at once, and on the disk while an engine of
any of them may still read them. Blocks; run it in threads.

    .graves/MOMENT-RANDOM/grave.json   what is in it: the paths that its files 0, 1, ... had in the registry
    .graves/MOMENT-RANDOM/underway     it is being filled: what is not in its place is put back if that was broken off

    .graves/spare                      bytes that are given back where a full disk could not note a deletion

Everything here is done in turns: no two replicas move anything at once. So whoever finds `underway` in its turn knows that nobody will end
it.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from engines.host.catalogue import moves
from engines.host.catalogue.quarantine import Quarantine
from gateway.core.modelshare import Turn

FOLDER: Final = ".graves"
RECORD: Final = "grave.json"
UNDERWAY: Final = "underway"
SPARE: Final = "spare"
SPARE_BYTES: Final = 64 * 1024
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


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
        moves.rename(path, grave / str(number))
    moves.sync(registry)
    (grave / UNDERWAY).unlink(missing_ok=True)
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
            moves.rename(target, old)
        moves.rename(source, target)
    except BaseException:
        if not linked and os.path.lexists(old):
            moves.place(old, target)  # where that fails, the next turn does it
        shutil.rmtree(grave, ignore_errors=True)
        raise
    moves.sync(registry)
    (grave / UNDERWAY).unlink(missing_ok=True)


def unfinished(registry: Path) -> list[Path]:
    """Deletions and replacements that are under way, or were broken off. Raises OSError."""
    return [grave for grave in _graves(registry) if moves.there(grave / UNDERWAY)]


def heal(registry: Path) -> list[str]:
    """Puts back what was being deleted or replaced when a replica ended; the paths that are there again. Raises OSError."""
    back = []
    for grave in unfinished(registry):
        found = _read(grave)
        for number, path in enumerate(() if found is None else found.paths):
            if os.path.lexists(grave / str(number)) and _put_back(grave / str(number), registry / path):
                back.append(path)
        (grave / UNDERWAY).unlink(missing_ok=True)
    return back


def clear(registry: Path, over: Callable[[Grave], bool]) -> int:
    """Removes for good what nobody reads any more; how many graves. Needs no turn: what is under way is left alone."""
    removed = 0
    for grave in _graves(registry):
        moment = grave.name.partition("-")[0]
        try:
            found = _read(grave) or Grave(float(moment) if moment.isdecimal() else 0.0, ())
            kept = not over(found) or moves.there(grave / UNDERWAY)
        except OSError:  # whose it was is not known at present
            continue
        if not kept:
            shutil.rmtree(grave, ignore_errors=True)
            removed += 1
    return removed


def spare(registry: Path) -> None:
    """Keeps some bytes back, so that a deletion can be noted on a disk that is full. Raises OSError."""
    path = registry / FOLDER / SPARE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and path.stat().st_size == SPARE_BYTES:
        return
    try:
        path.write_bytes(secrets.token_bytes(SPARE_BYTES))  # no file system stores these as a hole, or smaller
        moves.sync(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _put_back(buried: Path, target: Path) -> bool:
    """Whether it is in its place again. False: another one is there. Raises OSError."""
    try:
        moves.place(buried, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        return False
    return True


def _dig(registry: Path, paths: Sequence[Path], moment: float) -> Path:
    """Raises OSError."""
    told = Grave(moment, tuple(path.relative_to(registry).as_posix() for path in paths))
    try:
        return _dug(registry / FOLDER, told)
    except OSError as error:
        if error.errno not in FULL:
            raise
        (registry / FOLDER / SPARE).unlink(missing_ok=True)
    return _dug(registry / FOLDER, told)


def _dug(folder: Path, told: Grave) -> Path:
    grave = folder / f"{int(told.moment)}-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        grave.mkdir(mode=0o700, exist_ok=True)  # no other has this name: if it is there, it is this one
        (grave / RECORD).write_bytes(msgspec.json.encode(told))
        moves.sync(grave / RECORD)
        (grave / UNDERWAY).touch(0o600)
        moves.sync(grave)
    except OSError:
        shutil.rmtree(grave, ignore_errors=True)  # nothing is in it
        raise
    return grave


def _link(target: Path, to: Path) -> bool:
    with suppress(OSError):
        moves.link(target, to)
        return True
    return False


def _graves(registry: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in (registry / FOLDER).iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return


def _read(grave: Path) -> Grave | None:
    """None: the file is not complete (yet), so it says nothing. Raises OSError if it cannot be read."""
    try:
        return msgspec.json.decode((grave / RECORD).read_bytes(), type=Grave)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
