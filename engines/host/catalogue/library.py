"""The model files of a gateway as its event loop sees them: what exists and what is being uploaded. Implements the port `ModelFiles`.

The loop also carries the data plane, so whatever blocks (reading directories, writing, hashing, moving) runs in threads, in bounded pieces.
Contents are parsed in a process of its own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from engines.host.catalogue import graves, install, refusals, shelf, weights
from engines.host.catalogue.checksums import Checksums, Stopped, digest
from engines.host.catalogue.quarantine import Quarantine, Upload, promised
from engines.host.catalogue.scan import Found, Place
from engines.host.catalogue.shelf import Shelf
from engines.host.catalogue.trust import Trust, Untrusted
from engines.runtimes import RUNTIMES, RuntimeRow
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, NotFound, RequestError, VersionMismatch
from gateway.core.modelfiles import UploadSettings, kind_of, model_of, signature_of
from gateway.core.modelshare import Alone, LocalModel, Neighbours, NoNeighbours, Sharing
from gateway.core.plugins import Table
from gateway.core.specs import ModelSignaturesSpec, UploadsSpec
from gateway.core.tasks import TaskOwner

T = TypeVar("T")
log = logging.getLogger("gatehouse.models")
PIECE: Final = 1024 * 1024
"""Bytes gathered before a thread writes and hashes them."""
IDLE_SECONDS: Final = 20.0
"""An append that receives nothing for this long ends; what arrived is kept."""
WRITERS, WORKERS = 4, 2
"""Threads for short work (and scans), and for work that reads whole models."""
_ID: Final = re.compile(r"[0-9a-f]{32}")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Library:
    """places: the directories of models, the registry first. settings: the bounds in force. engines: (name, absolute path of its model).
    signatures: whose signatures models carry, the keys as absolute paths. registry: where, if not in the state directory."""

    def __init__(
        self,
        state_dir: Path,
        places: Callable[[], tuple[Place, ...]],
        settings: Callable[[], UploadsSpec],
        engines: Callable[[], Iterable[tuple[str, str]]],
        clock: Clock,
        idle_seconds: float = IDLE_SECONDS,
        runtimes: Table[RuntimeRow] = RUNTIMES,
        signatures: Callable[[], ModelSignaturesSpec] = ModelSignaturesSpec,
        registry: Path | None = None,
    ) -> None:
        self._registry = state_dir / "models" if registry is None else registry
        self._quarantine = Quarantine(state_dir / "quarantine")
        self._checksums = Checksums(state_dir / "model-checksums.json")
        self.trust = Trust(signatures, self._checksums)
        self.on_refused: Callable[[str, str], None] = lambda name, reason: None
        """Called with a model that was refused for its signature, or for want of one."""
        self._shelf = Shelf(places, self._checksums, runtimes)
        self._runtimes, self._places = runtimes, places
        self._settings, self._engines, self._clock, self._idle = settings, engines, clock, idle_seconds
        self._owner = TaskOwner("model files")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="gatehouse-upload")
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="gatehouse-models")
        self._uploads: dict[str, Upload] = {}
        self._busy: set[str] = set()
        self._verifying: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._moving = asyncio.Lock()
        self._beginning = 0
        self._open = True
        self.sharing: Sharing = Alone()
        """Who is asked before people add and delete models, and told afterwards: other replicas may have them."""
        self.neighbours: Neighbours = NoNeighbours()

    # --- life

    async def start(self) -> None:
        """Finds the uploads of an earlier run. Raises ConfigError for a registry that replicas share and that is not theirs."""
        await self.neighbours.begin()
        found = await self._quick(partial(self._quarantine.recover, self._registry))
        mark = self.neighbours.mark
        await self._quick(partial(install.clean, self._registry, mark, removed=not mark))
        self._uploads = {upload.id: upload for upload in found}
        if found:
            log.info("%d uploads of model files wait to be continued", len(found))

    async def expire(self) -> None:
        """Removes abandoned uploads."""
        limit = self._clock.wall() - self._settings().expire_after
        for upload in list(self._uploads.values()):
            if upload.touched >= limit or upload.id in self._busy or self._uploads.pop(upload.id, None) is None:
                continue
            log.info("the upload of %s was abandoned and is removed", upload.settings.name)
            await self._quick(partial(self._quarantine.remove, upload.folder))

    async def aclose(self) -> None:
        """Ends long work in threads; uploads stay where they are."""
        self._open = False
        await self._owner.aclose()
        for pool in (self._writers, self._workers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _quick(self, call: Callable[[], T]) -> T:
        return await self._in(self._writers, call)

    async def _work(self, call: Callable[[], T]) -> T:
        return await self._in(self._workers, call)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        """Runs a call in a thread. Raises GatehouseError: 507 for a full disk, 500 for another disk failure, 503 during shutdown."""
        if not self._open:
            raise refusals.stopping()
        try:
            future: Future[T] = pool.submit(call)
            return await asyncio.wrap_future(future)
        except OSError as error:
            if error.errno in _FULL:
                raise refusals.full("The disk is full.") from None
            log.error("model files: %s", error)
            raise GatehouseError(f"The disk refused: {error.strerror}.", code="storage_failed") from None
        except Stopped:
            raise refusals.stopping() from None

    def _go_on(self) -> bool:
        return self._open

    # --- what is there

    async def models(self) -> dict[str, Any]:
        """All models: {"items", "remarks"}, without the fields that only `model` shows."""
        looked = await self._look()
        users = self._users()
        items = [shelf.view(found, looked.facts(found), self._checksums, shelf.used_by(found, users)) for found in looked.models]
        return {"items": items, "remarks": looked.remarks}

    async def model(self, name: str) -> dict[str, Any]:
        """One model with its files. Raises NotFound."""
        found, looked = await self._found(name)
        return shelf.view(found, looked.facts(found), self._checksums, shelf.used_by(found, self._users()), every=True)

    async def checksum(self, name: str) -> dict[str, Any]:
        """Like `model`, with the SHA-256 of every file, computed where unknown."""
        found, _ = await self._found(name)

        def compute() -> None:
            for file in found.every:
                if self._checksums.get(file) is None:
                    self._checksums.put([(file, digest(file.path, self._go_on))])

        await asyncio.shield(self._owner.spawn(self._work(compute), name="checksum"))
        return await self.model(name)

    async def contents(self, name: str) -> tuple[Path, list[tuple[Path, int, str]]]:
        """(its first file or its folder, each file with its size and SHA-256) of a model; checksums are computed where unknown. Raises
        NotFound, GatehouseError for one that is not whole."""
        await self.checksum(name)
        found, looked = await self._found(name)
        if (problem := looked.facts(found).problem) is not None:
            raise GatehouseError(f"The model {name!r} cannot be used: {problem}.", code="model_invalid", status=422)
        await self._work(partial(self.trust.sending, [found.path] if found.folder else [file.path for file in found.files], self._go_on))
        listed = [(file.path, file.size, self._checksums.get(file)) for file in found.every]
        if any(sha256 is None for _, _, sha256 in listed):
            raise GatehouseError(f"The files of {name!r} change.", code="model_invalid", status=409)
        return found.path, [(path, size, sha256 or "") for path, size, sha256 in listed]

    async def remove(self, name: str, *, version: str | None, dry_run: bool, told: bool = True) -> dict[str, Any]:
        """Deletes a model of the registry, or one that only other replicas have. Raises NotFound; 409 `read_only`, `in_use`;
        VersionMismatch."""
        async with self._moving, self.neighbours.turn() as turn:
            self._shelf.forget()
            await self.neighbours.look()
            try:
                found, looked = await self._found(name)
            except NotFound as error:
                if not told or (gone := await self._elsewhere(name, version, dry_run)) is None:
                    raise error from None
                return gone
            users = shelf.used_by(found, self._users())
            shown = shelf.view(found, looked.facts(found), self._checksums, users, every=True)
            if found.place.source != "registry":
                raise refusals.conflict("read_only", f"The model {name!r} lies in a directory that Gatehouse only reads.")
            refusals.refuse_used(name, users)
            if version is not None and version != found.version:
                raise VersionMismatch(f"The model {name!r} has changed.")
            if not dry_run:
                if told:
                    await self.sharing.removing(name)
                paths = [found.path] if found.folder else [file.path for file in found.every]
                bury = partial(graves.bury, self._quarantine, self._registry, paths, turn)
                left = await asyncio.shield(self._owner.spawn(self._quick(bury), name="bury"))
                await self.neighbours.removed(paths)
                self._shelf.forget()
                for grave in left:
                    self._owner.spawn(self._quick(partial(self._quarantine.remove, grave)), name="remove")
            return shown

    async def _elsewhere(self, name: str, version: str | None, dry_run: bool) -> dict[str, Any] | None:
        """Deletes a model that only other replicas have. Raises as `remove`."""
        refusals.refuse_used(name, sorted(engine for engine, model in self._engines() if Path(model).name == name))
        gone = await self.sharing.remove_elsewhere(name, dry_run=dry_run or version is not None)
        if gone is not None and version is not None:
            raise VersionMismatch(f"The model {name!r} is not here, so it has no version here.")
        return gone

    async def local(self) -> list[LocalModel]:
        """The models of the registry that are whole, with the checksums that are known."""
        looked = await self._look()
        whole = (one for one in looked.models if one.place.source == "registry" and looked.facts(one).problem is None)
        return [shelf.local(found, self._checksums) for found in whole]

    async def withdraw(self, name: str, version: str) -> None:
        """As `remove`, for a model that was deleted at another replica: the others are not told again."""
        await self.remove(name, version=version, dry_run=False, told=False)

    async def _look(self) -> shelf.Looked:
        """A scan that is at most seconds old; concurrent callers share one."""
        looked = self._shelf.fresh(self._clock.monotonic())
        if looked is not None:
            return looked
        task = self._shelf.task
        if task is None or task.done():
            task = self._shelf.task = self._owner.spawn(
                self._quick(lambda: self._shelf.look(self._clock.monotonic(), self._go_on)), name="scan"
            )
        return await asyncio.shield(task)

    async def _found(self, name: str) -> tuple[Found, shelf.Looked]:
        looked = await self._look()
        if (found := next((one for one in looked.models if one.name == name), None)) is not None:
            return found, looked
        raise NotFound(f"There is no model file {name!r}.")

    def _users(self) -> Mapping[str, list[str]]:
        return shelf.users((*self._engines(), *self.neighbours.uses()))

    # --- files that jobs read and make

    async def source(self, name: str, folders: str = "") -> Path:
        """The file of a model that is one file, or the folder of one of the runtime `folders`, without links. Raises NotFound; RequestError
        for any other model."""
        found, looked = await self._found(name)
        whole = found.folder and found.runtime == folders
        if not whole and (found.folder or len(found.files) != 1 or found.missing):
            raise RequestError(f"The model {name!r} is not one file: a job takes a single file.", param="model")
        if (problem := looked.facts(found).problem) is not None:
            raise RequestError(f"The model {name!r} cannot be used: {problem}.", param="model", code="model_invalid")
        path = found.real
        if not path.is_relative_to(found.place.root.resolve()) or not (path.is_dir() if whole else path.is_file()):
            raise NotFound(f"There is no model file {name!r}.")
        return path

    async def weights(self, name: str) -> tuple[Path, int]:
        """A folder with config.json, without links on the way, and the bytes of its safetensors. Raises NotFound."""
        return await self._quick(partial(weights.folder, self._places(), name))

    async def digest(self, path: Path) -> str:
        """SHA-256 of a file that is no model yet."""
        return await self._work(partial(digest, path, self._go_on))

    async def room(self, size: int, reserve: int) -> None:
        """Raises 507 where so many bytes cannot be written and `reserve` left free."""
        if await self._quick(self._quarantine.free) < size + reserve:
            raise refusals.full(f"{size} bytes are needed beside {reserve} that stay free.")

    async def adopt(self, path: Path, settings: UploadSettings, *, actor: str) -> dict[str, Any]:
        """A file that was made on this machine goes the way of an upload that is complete: quarantine, verification, registry. It is gone
        from its place then, whatever comes of it. Raises as `begin` and `complete` do."""
        if settings.size > self._settings().max_bytes:
            raise RequestError(f"{settings.size} bytes are more than uploads.max_bytes.", code="request_too_large", status=413)
        await self._refuse_conflicts(settings)
        upload = await self._quick(partial(self._quarantine.adopt, path, settings, actor, self._clock.wall()))
        self._uploads[upload.id] = upload
        try:
            return await self.complete(upload.id, dry_run=False)
        except GatehouseError:
            if self._open and self._uploads.get(upload.id) is upload:  # it would wait for somebody to go on with it
                await self._drop(upload)
            raise

    # --- uploads

    def uploads(self) -> list[dict[str, Any]]:
        """Open uploads, the oldest first."""
        return [self._view(upload) for upload in sorted(self._uploads.values(), key=lambda u: (u.promise.created, u.id))]

    def upload(self, id: str) -> dict[str, Any]:
        """Raises NotFound."""
        return self._view(self._get(id))

    async def begin(self, settings: UploadSettings, *, actor: str, dry_run: bool) -> dict[str, Any]:
        """Begins an upload. Raises 409 `already_exists`, `in_use`, `read_only`, `too_many_uploads`; 413; 507 `insufficient_storage`."""
        bounds = self._settings()
        if settings.size > bounds.max_bytes:
            raise RequestError(
                f"{settings.size} bytes are more than uploads.max_bytes, {bounds.max_bytes}.",
                code="request_too_large",
                status=413,
                param="size",
            )
        kind = kind_of(settings.name)
        await self._refuse_conflicts(settings)
        if len(self._uploads) + self._beginning >= bounds.max_open:
            raise refusals.conflict("too_many_uploads", f"{len(self._uploads)} uploads are open (uploads.max_open); finish or delete one.")
        self._beginning += 1  # reserved while the thread works
        try:
            expected = settings.size * (2 if kind == "folder" else 1)  # an archive and what is unpacked from it exist side by side
            room = partial(install.free, self._quarantine, self._registry, list(self._uploads.values()))
            free = await self._quick(room) - bounds.reserve_bytes
            if free < expected:
                raise refusals.full(f"{expected} bytes are needed, {max(0, free)} are free.")
            now = self._clock.wall()
            if dry_run:
                return promised(settings, actor, now, now + bounds.expire_after)
            upload = await self._quick(partial(self._quarantine.begin, settings, actor, now))
            self._uploads[upload.id] = upload
        finally:
            self._beginning -= 1
        return self._view(upload)

    async def append(self, id: str, offset: int, length: int | None, parts: AsyncIterator[bytes]) -> dict[str, Any]:
        """Appends bytes from an offset on; length: how many are announced. What arrived is kept if the rest does not come.

        Raises NotFound; 409 `upload_busy`, `offset_mismatch` (with the header Upload-Offset); 413; 408; 507.
        """
        upload = self._claim(id)
        try:
            if offset != upload.offset:
                raise refusals.conflict(
                    "offset_mismatch",
                    f"The upload has {upload.offset} bytes; go on there.",
                    param="upload-offset",
                    headers=(("upload-offset", str(upload.offset)),),
                )
            if length is not None and length > upload.missing:
                raise refusals.too_large(upload)
            await self._receive(upload, parts)
        finally:
            self._busy.discard(id)
        return self._view(upload)

    async def _receive(self, upload: Upload, parts: AsyncIterator[bytes]) -> None:
        waiting = bytearray()
        try:
            while True:
                async with asyncio.timeout(self._idle):
                    part = await anext(parts, None)
                if part is None:
                    return
                if len(waiting) + len(part) > upload.missing:
                    raise refusals.too_large(upload)
                waiting += part
                if len(waiting) >= PIECE:
                    piece, waiting = waiting, bytearray()
                    await self._write(upload, piece)
        except TimeoutError:
            raise RequestError("Nothing arrived for too long; go on from the offset.", code="request_timeout", status=408) from None
        finally:
            if waiting and self._open:
                await self._write(upload, waiting)

    async def _write(self, upload: Upload, piece: bytearray) -> None:
        """Completes a write even if the caller goes away: nobody else may write meanwhile."""
        task = self._owner.spawn(self._quick(partial(upload.write, piece, self._clock.wall())), name="write")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def complete(self, id: str, *, dry_run: bool) -> dict[str, Any]:
        """Verifies an upload, moves it into the registry and returns the model. Concurrent callers share one verification.

        Raises NotFound; 409 `upload_incomplete`, `upload_busy`, `already_exists`, `in_use` (the upload stays); 422 `checksum_mismatch`,
        `model_invalid` (it is deleted).
        """
        running = self._verifying.get(id)
        if running is None:
            upload = self._claim(id)
            if upload.missing or dry_run:
                self._busy.discard(id)
                return await self._tried(upload)
            running = self._verifying[id] = self._owner.spawn(self._finish(upload), name="verify")
        return await asyncio.shield(running)

    async def _tried(self, upload: Upload) -> dict[str, Any]:
        """Raises what can be known without reading anything."""
        if upload.missing:
            raise refusals.conflict("upload_incomplete", f"{upload.missing} bytes of {upload.settings.size} are missing.")
        await self._refuse_conflicts(upload.settings)
        return self._view(upload)

    async def _finish(self, upload: Upload) -> dict[str, Any]:
        upload.state = "verifying"
        try:
            await self._refuse_conflicts(upload.settings)
            source, mark = await self._work(partial(self._verify, upload)), self.neighbours.mark
            source = await self._work(partial(install.bring, upload, source, self._registry, mark))
            noted = await self._work(partial(self.neighbours.describe, upload.settings.name, source, self._go_on))
            async with self._moving, self.neighbours.turn() as turn:
                self._shelf.forget()
                await self._refuse_conflicts(upload.settings)
                async with self.neighbours.adding(noted):
                    target = await self._work(partial(install.install, upload, source, self._registry, mark, turn))
                self._shelf.forget()
        except install.Refused as error:
            log.warning("the upload of %s is refused: %s", upload.settings.name, error.message)
            if error.code == install.UNTRUSTED:
                self.on_refused(upload.settings.name, error.message)
            await self._drop(upload)
            raise
        except BaseException:
            await self._give_back(upload)
            raise
        else:
            await self._work(partial(self._remember, target, upload.settings.sha256))
            await self._drop(upload)
            await self.sharing.added(upload.settings)
            return await self.model(model_of(upload.settings.name))
        finally:
            upload.state = "receiving"
            self._busy.discard(upload.id)
            self._verifying.pop(upload.id, None)

    def _verify(self, upload: Upload) -> Path:
        """As install.verify; Refused also for a model that is not signed as it must be."""
        source, settings = install.verify(upload, self._go_on, self._runtimes), upload.settings
        signature = None if settings.signature is None else settings.signature.encode()
        try:
            self.trust.arriving(settings.name, source, signature, self._go_on, None if source.is_dir() else settings.sha256)
        except Untrusted as error:
            raise install.Refused(f"{str(error)[0].upper()}{str(error)[1:]}.", code=install.UNTRUSTED) from None
        return source

    async def _give_back(self, upload: Upload) -> None:
        if self._open:  # else the next start does it
            await self._quick(partial(install.give_back, upload, self._registry, self.neighbours.mark))

    def _remember(self, target: Path, sha256: str) -> None:
        """Remembers the checksums; a folder's files each have their own, as the promised one is the archive's."""
        files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
        if (signature := target.with_name(signature_of(target.name))).is_file() and files == [target]:
            files.append(signature)
        known = {target: sha256} if files[0] == target else {}
        self._checksums.put([(shelf.file_at(path), known.get(path) or digest(path, self._go_on)) for path in files])

    async def abandon(self, id: str, *, dry_run: bool) -> dict[str, Any]:
        """Deletes an upload. Raises NotFound, 409 `upload_busy`."""
        upload = self._claim(id)
        try:
            shown = self._view(upload)
            if not dry_run:
                await self._drop(upload)
        finally:
            self._busy.discard(id)
        return shown

    async def _drop(self, upload: Upload) -> None:
        self._uploads.pop(upload.id, None)
        await self._quick(partial(self._quarantine.remove, upload.folder))

    def _get(self, id: str) -> Upload:
        upload = self._uploads.get(id) if _ID.fullmatch(id) else None
        if upload is None:
            raise NotFound("There is no such upload.")
        return upload

    def _claim(self, id: str) -> Upload:
        """Claims an upload for one caller at a time."""
        upload = self._get(id)
        if id in self._busy:
            raise refusals.conflict("upload_busy", "Somebody else is writing to this upload, or it is being verified.", retry_after=1.0)
        self._busy.add(id)
        return upload

    async def _refuse_conflicts(self, settings: UploadSettings) -> None:
        """Refuses a name that is taken in any place: an engine takes the first match."""
        name = settings.name
        await self.neighbours.look()
        for found in (await self._look()).models:
            if found.name != model_of(name) or (found.name != name and all(file.path.name != name for file in found.files)):
                continue
            if found.place.source != "registry":
                raise refusals.conflict("read_only", f"The model {name!r} lies in a directory that Gatehouse only reads.", param="name")
            if not settings.replace:
                raise install.taken(name)
            refusals.refuse_used(name, shelf.used_by(found, self._users()))
        await self.sharing.admit(settings)

    def _view(self, upload: Upload) -> dict[str, Any]:
        shown = promised(upload.settings, upload.promise.actor, upload.promise.created, upload.touched + self._settings().expire_after)
        return {**shown, "id": upload.id, "offset": upload.offset, "state": upload.state}
