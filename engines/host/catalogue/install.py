"""From quarantine into the registry: verify, then move, without overwriting a model unless asked to. Blocks; run it in threads."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from engines.facts import Facts
from engines.host.catalogue import graves, moves
from engines.host.catalogue.inspection import Inspection
from engines.host.catalogue.quarantine import DATA, REMOVED, REPLACED, Quarantine, Upload
from engines.host.catalogue.scan import whole_folder
from engines.host.catalogue.unpack import Unsafe, unpack
from engines.runtimes import RUNTIMES, WEIGHTS, RuntimeRow, runtime_of_file
from gateway.core.errors import AlreadyExists, GatehouseError
from gateway.core.modelfiles import WEIGHTS as SUFFIX
from gateway.core.modelfiles import kind_of, signature_of, split_name, split_of
from gateway.core.modelshare import Turn
from gateway.core.plugins import Table

UNTRUSTED: Final = "model_untrusted"
INCOMING: Final = ".incoming-"
_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


class Refused(GatehouseError):
    """The upload does not match its promise, or is not a model: it is deleted. Codes: checksum_mismatch, model_invalid,
    model_untrusted."""

    status = 422
    type = "invalid_request_error"
    default_code = "model_invalid"


def verify(upload: Upload, go_on: Callable[[], bool], runtimes: Table[RuntimeRow] = RUNTIMES) -> Path:
    """Returns what is to be installed: the file under its name, or the unpacked folder. Raises Refused, OSError, Stopped."""
    name, promised = upload.settings.name, upload.settings.sha256
    actual = upload.sha256(go_on)
    if actual != promised:
        raise Refused(f"The bytes that arrived have the sha256 {actual}; {promised} was promised.", code="checksum_mismatch")
    if kind_of(name) == "folder":
        path = upload.content() / name
        path.mkdir(mode=0o700)
        try:
            unpack(upload.folder / DATA, path, go_on)
        except Unsafe as error:
            raise Refused(f"The archive is refused: {error}.") from None
    else:
        path = upload.take()
    with Inspection(go_on, [path]) as inspection:
        facts = inspection.look(path, _runtime(path, runtimes))
    problem = facts.problem or _misnamed(name, facts)
    if problem:
        raise Refused(f"The model cannot be used: {problem}.")
    return path


def _runtime(path: Path, runtimes: Table[RuntimeRow]) -> RuntimeRow:
    """The runtime that takes a model; for a folder that none takes, the one whose reader can say what is missing."""
    if not path.is_dir():
        found = runtime_of_file(path.name, runtimes)
    else:
        names = [file.name for file in path.iterdir()]
        whole = whole_folder(path, names, runtimes)
        weights = any(name.endswith(SUFFIX) for name in names) and not any(runtime_of_file(name, runtimes) for name in names)
        other = WEIGHTS if weights else next((row for row in runtimes if row.folder_files and row.suffixes), None)
        found = other if whole is None else whole[0]
    if found is None:
        raise Refused(f"No runtime takes a model named {path.name!r}.")
    return found


def _misnamed(name: str, facts: Facts) -> str | None:
    """Why a split model's part has the wrong name: parts find each other by their names."""
    split = split_of(name)
    if facts.parts > 1 and (split is None or split[1:] != (facts.part, facts.parts)):
        return (
            f"it is part {facts.part} of {facts.parts} of a split model, so its name must end in {split_name('', facts.part, facts.parts)}"
        )
    if split is not None and split[2] > 1 and facts.parts <= 1:
        return "its name says that it is a part of a split model, which it is not"
    return None


def install(upload: Upload, source: Path, registry: Path, mark: str = "", turn: Turn | None = None) -> Path:
    """Moves what `bring` returned to its place; the upload's folder may then be removed. turn: in a registry that replicas share, where
    `mark` is this one's. Raises AlreadyExists, OSError, LeaseLost."""
    target = registry / upload.settings.name
    if os.path.lexists(target) and not upload.settings.replace:
        raise taken(upload.settings.name)
    if turn is not None:
        turn.sure()
    if not source.is_dir():
        _sign(upload, registry, mark)
    try:
        if turn is not None:
            _share(upload, source, registry, turn)
        elif source.is_dir():
            _exchange(upload, source, target)
        elif upload.settings.replace:
            os.replace(source, target)
        else:
            moves.place(source, target)
    except OSError as error:
        if error.errno in _TAKEN:
            raise taken(upload.settings.name) from None
        raise
    moves.sync(registry)
    return target


def _share(upload: Upload, source: Path, registry: Path, turn: Turn) -> None:
    """Whether the name is taken the file system says, not what this machine remembers of it."""
    target = registry / upload.settings.name
    try:
        moves.place(source, target)
    except OSError as error:
        if not upload.settings.replace or error.errno not in _TAKEN:
            raise
        graves.swap(registry, source, target, turn)


def _sign(upload: Upload, registry: Path, mark: str) -> None:
    """The signature of a file comes to its place before the file does; one of an earlier file of this name goes."""
    target = registry / signature_of(upload.settings.name)
    if upload.settings.signature is None:
        target.unlink(missing_ok=True)
        return
    beside = upload.folder / "signature"
    beside.write_text(upload.settings.signature, encoding="utf-8")
    moves.sync(beside)
    near = registry / f"{INCOMING}{mark}{upload.id}.sig"
    shutil.copyfile(beside, near)
    near.chmod(0o600)
    moves.sync(near)
    moves.rename(near, target)


def taken(name: str) -> AlreadyExists:
    return AlreadyExists(f"There is a model {name!r} already; say that it may be replaced, or take another name.", param="name")


def _other_device(source: Path, registry: Path) -> bool:
    return source.stat().st_dev != registry.stat().st_dev


def free(quarantine: Quarantine, registry: Path, waiting: Iterable[Upload]) -> int:
    """Bytes that can still be received and then moved to the registry, beside the uploads that wait. Raises OSError."""
    open = list(waiting)
    room = quarantine.free() - sum(upload.missing for upload in open)
    if registry.exists() and _other_device(quarantine.root, registry):
        room = min(room, shutil.disk_usage(registry).free - sum(upload.settings.size for upload in open))
    return room


def bring(upload: Upload, source: Path, registry: Path, mark: str = "") -> Path:
    """If the registry is on another file system, copies a verified model there under a name that scans skip, so that the last step is a
    rename. `give_back` undoes it. Raises OSError."""
    registry.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _other_device(source, registry):
        return source
    near = registry / f"{INCOMING}{mark}{upload.id}"
    if source.is_dir():
        shutil.rmtree(near, ignore_errors=True)
        shutil.copytree(source, near, dirs_exist_ok=True)
        for path in near.rglob("*"):
            if path.is_file():
                moves.sync(path)
    else:
        shutil.copyfile(source, near)
        near.chmod(0o600)
        moves.sync(near)
    return near


def give_back(upload: Upload, registry: Path, mark: str = "") -> None:
    """Undoes what was done before an installation that did not come about."""
    clean(registry, f"{mark}{upload.id}", removed=False)
    upload.give_back()


def _exchange(upload: Upload, source: Path, target: Path) -> None:
    """Swaps folders. If a crash comes between the two renames, the old one is in quarantine and is put back from there."""
    old = upload.folder / REPLACED
    if os.path.lexists(target):
        shutil.move(target, old)
    try:
        source.rename(target)
    except OSError:
        if os.path.lexists(old):
            shutil.move(old, target)
        raise


def clean(registry: Path, mark: str = "", *, removed: bool = True) -> None:
    """Removes what a crash left behind of copies, those with this mark, and of removed models."""
    for path in (*registry.glob(f"{INCOMING}{mark}*"), *(registry.glob(f"{REMOVED}*") if removed else ())):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
