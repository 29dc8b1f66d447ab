"""Model files that gateways have sent to a machine: in pieces, checked by their SHA-256 before anything uses them, within a bound of disk.

`files/SHA256` is whole and verified, `parts/SHA256` is on its way, `models/REVISION/...` are hard links to files as an engine needs them.
Nothing here is named by what a gateway says but by checksums and by names that `FilePath` allows. Blocks only in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from engines.host.catalogue.checksums import Stopped, digest
from gateway.core.errors import GatehouseError, RequestError
from gateway.core.placing import Order, Received, SentFile
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.machine")
WRITE: Final = 1024 * 1024
RESERVE: Final = 256 * 1024 * 1024
"""Bytes of the disk that stay free, whatever `accepts.disk_bytes` says."""
MAX_PARTS: Final = 64


class ReceivedFiles:
    """most: bytes of all files. needed: the checksums that engines use now or wait for. Life: `start`, `aclose`."""

    def __init__(self, folder: Path, most: int, needed: Callable[[], Iterable[str]]) -> None:
        self._files, self._parts, self._models = folder / "files", folder / "parts", folder / "models"
        self._most, self._needed = most, needed
        self._owner = TaskOwner("model files")
        self._busy: set[str] = set()
        self._verifying: dict[str, asyncio.Task[bool]] = {}
        self._open = True
        self._counting = threading.Lock()
        self.used = 0
        """Bytes of files and parts."""

    async def start(self) -> None:
        """Finds what an earlier run has received. Raises OSError."""
        await asyncio.to_thread(self._begin)

    def _begin(self) -> None:
        shutil.rmtree(self._models, ignore_errors=True)  # links, made anew by each order
        for folder in (self._files, self._parts, self._models):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.used = self._count()

    async def aclose(self) -> None:
        self._open = False
        await self._owner.aclose()

    def needed(self) -> set[str]:
        """The checksums of the files that engines use."""
        return set(self._needed())

    def free(self, needed: set[str]) -> int:
        """Bytes that may still come, those of files that are not needed among them. Blocks."""
        kept = sum(path.stat().st_size for path in _inside(self._files) if path.name in needed)
        on_disk = shutil.disk_usage(self._files).free + self.used - kept - RESERVE
        return max(0, min(self._most - kept, on_disk))

    def state(self, sha256: str, size: int) -> Received:
        """What is there of a file. Begins to verify one that is complete."""
        if self.has(sha256, size):
            return Received(offset=size, verified=True)
        have = _size(self._parts / sha256)
        if have == size and sha256 not in self._busy:
            self._verify(sha256)
        return Received(offset=have)

    def has(self, sha256: str, size: int) -> bool:
        return _size(self._files / sha256) == size and (self._files / sha256).is_file()

    async def append(self, sha256: str, size: int, offset: int, parts: AsyncIterator[bytes]) -> Received:
        """Takes the bytes from an offset on; those that came are kept if the rest does not. Raises GatehouseError: 409 `upload_busy`,
        `offset_mismatch`; 413; 507."""
        if self.has(sha256, size):
            return Received(offset=size, verified=True)
        if sha256 in self._busy or sha256 in self._verifying:
            raise _conflict("upload_busy", "Another gateway sends this file, or it is being verified.")
        self._busy.add(sha256)
        try:
            path = self._parts / sha256
            have = _size(path)
            if have > size:  # it was begun under another size, so one of the two was a lie
                await self._write(partial(path.unlink, missing_ok=True))
                self._freed(have)
                have = 0
            if offset != have:
                raise _conflict("offset_mismatch", f"{have} bytes of this file are here; go on there.")
            await self._make_room(size, have)
            await self._take(path, size - have, parts)
        finally:
            self._busy.discard(sha256)
        return self.state(sha256, size)

    async def _take(self, path: Path, missing: int, parts: AsyncIterator[bytes]) -> None:
        waiting = bytearray()
        if not missing:
            path.touch(mode=0o600)
        try:
            async for part in parts:
                missing -= len(part)
                if missing < 0:
                    raise RequestError("More bytes came than the file has.", code="request_too_large", status=413)
                waiting += part
                if len(waiting) >= WRITE:
                    piece, waiting = bytes(waiting), bytearray()
                    await self._write(partial(self._append, path, piece))
        finally:
            if waiting and self._open:
                await self._write(partial(self._append, path, bytes(waiting)))

    def _append(self, path: Path, piece: bytes) -> None:
        with self._counting:  # several files may come at once, and each was promised what was left
            if self.used + len(piece) > self._most or shutil.disk_usage(self._files).free - len(piece) < RESERVE:
                raise OSError(errno.EDQUOT, "no room is left for model files")
            self.used += len(piece)
        try:
            self._written(path, piece)
        except OSError:
            with self._counting:
                self.used = self._count()  # a part of it may be there
            raise

    def _freed(self, size: int) -> None:
        with self._counting:
            self.used -= size

    def _written(self, path: Path, piece: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(piece)

    async def _write(self, act: Callable[[], object]) -> None:
        """Completes what a thread has begun even if the caller goes away. Raises GatehouseError: 507."""
        task = self._owner.spawn(asyncio.to_thread(act), name="write")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
        except OSError as error:
            raise _full(f"The machine's disk refused: {error.strerror}.") from None

    async def _make_room(self, size: int, have: int) -> None:
        """Removes files that no engine uses, the oldest first, until there is room for the rest of one. Raises GatehouseError: 507."""
        needed = self.needed()
        room = await asyncio.to_thread(lambda: (self.free(needed), len(os.listdir(self._parts))))
        if size > room[0] or (not have and room[1] >= MAX_PARTS):
            raise _full(f"{size} bytes do not fit into what the machine accepts (accepts.disk_bytes), or its disk.")
        await asyncio.to_thread(self._evict, size - have, needed)

    def _evict(self, size: int, needed: set[str]) -> None:
        unused = [path for path in _inside(self._files) if path.name not in needed]
        stalled = [path for path in _inside(self._parts) if path.name not in self._busy and path.name not in self._verifying]
        for path in (*sorted(unused, key=_moment), *sorted(stalled, key=_moment)):
            room = min(self._most - self.used, shutil.disk_usage(self._files).free - RESERVE)
            if room >= size:
                return
            log.info("model file %s makes room", path.name)
            bytes_ = path.stat().st_size
            path.unlink()
            self._freed(bytes_)

    # --- verification

    def _verify(self, sha256: str) -> None:
        if sha256 not in self._verifying:
            task = self._verifying[sha256] = self._owner.spawn(self._verified(sha256), name="verify")
            task.add_done_callback(lambda done: self._verifying.pop(sha256, None))

    async def _verified(self, sha256: str) -> bool:
        """Whether a part is what it was announced as; it is deleted if not."""
        path = self._parts / sha256
        right = await asyncio.to_thread(lambda: digest(path, lambda: self._open) == sha256)
        if right:
            await asyncio.to_thread(self._keep, path, sha256)
            return True
        log.error("a model file that was sent does not have the sha256 %s: it is deleted", sha256)
        self._freed(_size(path))
        path.unlink(missing_ok=True)
        return False

    def _keep(self, path: Path, sha256: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        path.chmod(0o400)
        path.replace(self._files / sha256)

    # --- for an engine

    def missing(self, files: Iterable[SentFile]) -> list[str]:
        return [file.sha256 for file in files if not self.has(file.sha256, file.size)]

    async def recheck(self, files: Iterable[SentFile]) -> bool:
        """Reads files again that were verified when they came, and deletes those that were altered since; whether there are such."""
        altered = False
        for sha256 in {file.sha256 for file in files}:
            path = self._files / sha256
            try:
                same = await asyncio.to_thread(digest, path, lambda: self._open) == sha256
            except (OSError, Stopped):
                continue  # it is not here, or this machine ends
            if not same:
                log.error("the model file %s was altered on this machine's disk: it is deleted", sha256)
                self._freed(_size(path))
                path.unlink(missing_ok=True)
                altered = True
        return altered

    async def laid_out(self, order: Order) -> Path:
        """Where the model of an order is, its files in their places. Raises OSError."""
        return await asyncio.to_thread(self._lay_out, order)

    def _lay_out(self, order: Order) -> Path:
        target, fresh = self._models / order.revision, self._models / f"{order.revision}.new"
        if not target.exists():
            shutil.rmtree(fresh, ignore_errors=True)
            for file in order.files:
                place = fresh / file.path
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.link(self._files / file.sha256, place)
            fresh.rename(target)
        return target / order.model

    async def taken_down(self, revision: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._models / revision, ignore_errors=True)

    def _count(self) -> int:
        return sum(path.stat().st_size for folder in (self._files, self._parts) for path in _inside(folder))


def _inside(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def _moment(path: Path) -> float:
    return path.stat().st_mtime


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _conflict(code: str, message: str) -> GatehouseError:
    return GatehouseError(message, code=code, status=409)


def _full(message: str) -> GatehouseError:
    return GatehouseError(message, code="insufficient_storage", status=507)
