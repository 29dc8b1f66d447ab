"""Uploads on disk, out of reach of every engine until they are verified: one folder each, with what was promised and the bytes so far.

The files are the state: an upload's offset is the size of its data, its last use the time of its last byte. So nothing is lost however the
process ends, and nothing else needs to be written. Everything here blocks; run it in threads.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.host.catalogue.checksums import digest
from gateway.core.modelfiles import UploadSettings, kind_of

RECORD: Final = "upload.json"
DATA: Final = "data"
CONTENT: Final = "content"
"""The content to be verified: the file under its own name, or the unpacked folder."""
REPLACED: Final = "replaced"
"""The model that is being replaced, until the new one is in place."""
REMOVED: Final = ".removed-"
_ID: Final = re.compile(r"[0-9a-f]{32}")


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared when the upload began. made: by a job on this machine, whose next attempt makes it again."""

    settings: UploadSettings
    actor: str
    created: float
    made: bool = False


class Upload:
    """One upload. Used by one thread at a time: whoever appends or verifies has claimed it (`engines.host.catalogue.library`)."""

    def __init__(self, folder: Path, promise: Promise, offset: int, touched: float) -> None:
        self.folder, self.promise, self.offset, self.touched = folder, promise, offset, touched
        self.state: str = "receiving"
        self._hash = hashlib.sha256() if offset == 0 else None
        """Hash state of the bytes so far; None if not all of them passed through this process."""

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def settings(self) -> UploadSettings:
        return self.promise.settings

    @property
    def missing(self) -> int:
        return self.settings.size - self.offset

    def write(self, data: bytes | bytearray, now: float) -> None:
        """Appends all of it or nothing: after an error the offset is as before. Raises OSError."""
        path = self.folder / DATA
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            view, at = memoryview(data), self.offset
            try:
                while len(view):
                    done = os.pwrite(descriptor, view, at)
                    if done <= 0:
                        raise OSError(errno.EIO, "nothing was written")
                    view, at = view[done:], at + done
            except OSError:
                os.ftruncate(descriptor, self.offset)
                raise
            finally:
                view.release()
        finally:
            os.close(descriptor)
        if self._hash is not None:
            self._hash.update(data)
        self.offset, self.touched = at, now

    def sha256(self, go_on: Callable[[], bool]) -> str:
        """SHA-256 of all bytes, which are on the disk afterwards. Raises OSError, Stopped."""
        descriptor = os.open(self.folder / DATA, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return digest(self.folder / DATA, go_on) if self._hash is None else self._hash.hexdigest()

    def content(self) -> Path:
        """An empty folder for the content to be verified."""
        path = self.folder / CONTENT
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return path

    def take(self) -> Path:
        """Moves the bytes under their own name, as the model's reader needs them; `give_back` undoes it."""
        path = self.content() / self.settings.name
        (self.folder / DATA).rename(path)
        return path

    def give_back(self) -> None:
        """Undoes `take` after a verification that did not lead to an installation."""
        taken = self.folder / CONTENT / self.settings.name
        if not (self.folder / DATA).exists() and taken.is_file():
            taken.rename(self.folder / DATA)
        shutil.rmtree(self.folder / CONTENT, ignore_errors=True)


class Quarantine:
    """The folder of all uploads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def free(self) -> int:
        """Bytes that can still be written."""
        self.prepare()
        return shutil.disk_usage(self.root).free

    def begin(self, settings: UploadSettings, actor: str, now: float, *, made: bool = False) -> Upload:
        """A new upload, which survives a restart. Raises OSError."""
        self.prepare()
        folder = self.root / secrets.token_hex(16)
        folder.mkdir(mode=0o700)
        promise = Promise(settings=settings, actor=actor, created=now, made=made)
        os.close(os.open(folder / DATA, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        beside = folder / f"{RECORD}.new"
        with os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(promise))
            file.flush()
            os.fsync(file.fileno())
        beside.rename(folder / RECORD)
        return Upload(folder, promise, 0, now)

    def adopt(self, path: Path, settings: UploadSettings, actor: str, now: float) -> Upload:
        """An upload that is complete from the beginning: moves the file here. Raises OSError."""
        upload = self.begin(settings, actor, now, made=True)
        path.chmod(0o600)
        path.rename(upload.folder / DATA)
        return Upload(upload.folder, upload.promise, settings.size, now)  # its hash is not known: `sha256` reads it

    def recover(self, registry: Path) -> list[Upload]:
        """The uploads of an earlier run. Undoes what a crash left half done: removes what has no record, and puts back a model that was
        being replaced if the new one did not arrive."""
        found = []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            upload = self._read(folder) if _ID.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink() else None
            if upload is None:
                self.remove(folder)
                continue
            old, target = folder / REPLACED, registry / upload.settings.name
            if old.exists() and not target.exists():
                old.rename(target)
            if 0 <= upload.offset <= upload.settings.size and not upload.promise.made:
                shutil.rmtree(folder / CONTENT, ignore_errors=True)
                found.append(upload)
            else:
                self.remove(folder)
        return found

    def _read(self, folder: Path) -> Upload | None:
        try:
            promise = msgspec.json.decode((folder / RECORD).read_bytes(), type=Promise)
        except (OSError, msgspec.MsgspecError):
            return None
        data, taken = folder / DATA, folder / CONTENT / promise.settings.name
        try:
            if not data.exists() and taken.is_file():
                taken.rename(data)  # a crash came during its verification
            status = data.lstat()
        except OSError:
            return Upload(folder, promise, -1, promise.created)  # it was installed; only its remains had to be removed
        return Upload(folder, promise, status.st_size, status.st_mtime)

    def remove(self, folder: Path) -> None:
        """Deletes an upload or its remains."""
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.unlink(missing_ok=True)

    def bury(self, path: Path) -> Path:
        """Takes a model out of a directory at once, by a rename; the returned path is still to be removed. Raises OSError."""
        self.prepare()
        name = f"{REMOVED}{secrets.token_hex(8)}"
        try:
            return path.rename(self.root / name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return path.rename(path.with_name(name))  # another file system: rename it there to a name that scans skip


def promised(settings: UploadSettings, actor: str, created: float, expires: float) -> dict[str, Any]:
    """An upload of which nothing has arrived, as the admin API shows it."""
    return {
        "id": "",
        "name": settings.name,
        "format": "tar" if kind_of(settings.name) == "folder" else "file",
        "size": settings.size,
        "sha256": settings.sha256,
        "replace": settings.replace,
        "signature": settings.signature,
        "offset": 0,
        "state": "receiving",
        "created_at": created,
        "created_by": actor,
        "expires_at": expires,
    }
