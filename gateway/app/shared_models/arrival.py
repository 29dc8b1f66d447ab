"""A model on its way here, from another replica or the store of model files: its files in pieces, from where the last try ended, verified
before anything sees them.

`STATE_DIR/arriving/DIGEST/NUMBER` holds the bytes so far of each file; nothing looks for models there. What is whole goes the way of an
upload: quarantine, the same checks of its content, then the registry.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import socket
import tarfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from engines.host.catalogue.checksums import digest
from engines.host.catalogue.library import Library
from gateway.app.shared_models.bucket import FETCHED, Bucket, BucketFailed
from gateway.app.shared_models.credentials import host_of
from gateway.core.errors import ConfigError, EngineError, GatehouseError
from gateway.core.host_port import HostPort
from gateway.core.modelfiles import MAX_SIGNATURE, UploadSettings, kind_of, signature_of
from gateway.core.modelshare import PIECE, Copy, SharedFile, SharedModel
from gateway.core.specs.base import ClientTlsSpec
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.models")
PIECE_SECONDS: Final = 30.0
RESOLVE_SECONDS: Final = 5.0
TRIES: Final = 3
"""Tries for one piece at one replica."""
PAUSE: Final = 0.5
BLOCK: Final = 512


class NotHere(GatehouseError):
    """A holder could not give a file: another one is asked. bad: it has no such file, or another one."""

    status = 503
    default_code = "engine_failed"
    bad = False


class Altered(NotHere):
    """What came is not what was announced."""

    bad = True


class Silent(Exception):
    """A holder did not answer: it is asked again."""


class Source(Protocol):
    """Somebody who gives a model's files."""

    async def piece(self, number: int, offset: int, left: int) -> bytes:
        """Some bytes of a file from an offset on, at most those that are left. Raises NotHere, Silent."""
        ...

    async def aclose(self) -> None: ...


class PeerSource:
    """Another replica."""

    def __init__(self, client: EndpointClient, digest: str) -> None:
        self._client, self._digest = client, digest

    @classmethod
    async def of(cls, holder: Copy, digest: str, tls: ClientTlsSpec) -> PeerSource:
        """Raises NotHere."""
        try:
            url = f"https://{host_of(holder.replica)}#{await _place(holder.address)}"
            return cls(EndpointClient(url, tls=tls, max_idle=1), digest)
        except ConfigError as error:
            raise NotHere(error.message) from None

    async def piece(self, number: int, offset: int, left: int) -> bytes:
        try:
            async with asyncio.timeout(PIECE_SECONDS):
                path = f"/v1/models/{self._digest}/{number}?offset={offset}"
                answer = await ask(self._client, "GET", path, {}, max_body=PIECE)
        except (EngineError, TimeoutError) as error:
            raise Silent(f"it does not answer ({error})" if str(error) else "it does not answer") from None
        if answer.head.status != 200:
            raise NotHere(f"it answered {answer.head.status}")
        return answer.body

    async def aclose(self) -> None:
        await self._client.aclose()


class BucketSource:
    """The store of model files."""

    def __init__(self, bucket: Bucket, digest: str) -> None:
        self._bucket, self._digest = bucket, digest

    async def piece(self, number: int, offset: int, left: int) -> bytes:
        try:
            return await self._bucket.piece(self._digest, number, offset, min(left, FETCHED))
        except BucketFailed as error:
            told = NotHere(error.message)
            told.bad = error.absent
            raise told from None

    async def aclose(self) -> None:
        return None


class Arrival:
    """One model. folder: of all that are on their way. reserve: bytes of the disk that stay free. source: how a holder is asked (raises
    NotHere). bad: told of a holder that does not have what the gateways' store says."""

    def __init__(
        self,
        model: SharedModel,
        folder: Path,
        library: Library,
        reserve: Callable[[], int],
        source: Callable[[Copy, str], Awaitable[Source]],
        bad: Callable[[Copy, str], Awaitable[None]],
    ) -> None:
        self.model, self._library, self._reserve, self._of, self._bad = model, library, reserve, source, bad
        self.folder = folder / model.digest
        self.have = 0
        """Bytes that are there."""
        self.source = ""
        """Who is asked."""
        self._go_on = True

    async def fetch(self, holders: list[Copy]) -> list[Path]:
        """Returns where its files are, verified, once they are all there. Raises GatehouseError: 503 where no replica gives them, 507."""
        await asyncio.to_thread(self.folder.mkdir, 0o700, True, True)
        try:
            present = await asyncio.to_thread(self._present)
            self.have = sum(present)
            factor = 2 if kind_of(self.model.name) == "folder" else 1
            await self._library.room(self.model.size * factor - self.have, self._reserve())
            why = "no replica that is there has it"
            for holder in holders:
                self.source = holder.replica
                try:
                    return [await self._file(holder, number, file) for number, file in enumerate(self.model.files)]
                except NotHere as error:
                    why = f"{holder.replica}: {error.message}"
                    log.warning("model %s: %s", self.model.name, why)
                    if error.bad:
                        await self._bad(holder, error.message)
            raise NotHere(f"The model {self.model.name!r} could not be fetched; {why}")
        except OSError as error:
            raise GatehouseError(f"The disk refused: {error.strerror}.", status=507, code="insufficient_storage") from None
        finally:
            self._go_on = False

    def _present(self) -> list[int]:
        return [_size(self.folder / str(number)) for number in range(len(self.model.files))]

    async def _file(self, holder: Copy, number: int, file: SharedFile) -> Path:
        """Raises NotHere, GatehouseError, OSError."""
        path = self.folder / str(number)
        if await asyncio.to_thread(_size, path) > file.size:
            await self._discard(path)
        kept = await asyncio.to_thread(_size, path)
        source = await self._of(holder, self.model.digest)
        try:
            for again in (kept > 0, False):
                await self._rest(source, path, number, file)
                if await asyncio.to_thread(digest, path, lambda: self._go_on) == file.sha256:
                    return path
                await self._discard(path)
                if not again:  # bytes of an earlier try, from before a power cut or of another replica, may have been the wrong ones
                    raise Altered(f"what it gave of {file.path!r} has another SHA-256 than was announced")
        finally:
            await source.aclose()
        raise AssertionError

    async def _rest(self, source: Source, path: Path, number: int, file: SharedFile) -> None:
        have = await asyncio.to_thread(_size, path)
        if not file.size:
            await asyncio.to_thread(path.touch, 0o600)
        failures = 0
        while have < file.size:
            try:
                piece = await source.piece(number, have, file.size - have)
            except Silent as error:
                failures += 1
                if failures >= TRIES:
                    raise NotHere(str(error)) from None
                await asyncio.sleep(PAUSE)
                continue
            if not piece or have + len(piece) > file.size:
                raise Altered(f"{file.path!r} has another length there than was announced")
            await self._library.room(len(piece), self._reserve())
            await asyncio.to_thread(_append, path, piece)
            have, failures = have + len(piece), 0
            self.have += len(piece)

    async def _discard(self, path: Path) -> None:
        self.have -= await asyncio.to_thread(_size, path)
        await asyncio.to_thread(path.unlink, True)

    async def parcels(self, paths: list[Path]) -> list[tuple[Path, UploadSettings]]:
        """What is to be adopted, in this order: each file of a model, its first one at the end; a folder as an archive."""
        name, files = self.model.name, self.model.files
        if kind_of(name) == "file":
            at = {file.path: path for path, file in zip(paths, files, strict=True)}
            made = []
            for file in files:
                if not file.path.endswith(signature_of("")):
                    signature = await asyncio.to_thread(_signature, at.get(signature_of(file.path)))
                    made.append((at[file.path], UploadSettings(name=file.path, size=file.size, sha256=file.sha256, signature=signature)))
            return made[::-1]
        archive = self.folder / "archive"
        size, sha256 = await asyncio.to_thread(_packed, archive, paths, files)
        return [(archive, UploadSettings(name=name, size=size, sha256=sha256))]

    async def clear(self) -> None:
        await asyncio.to_thread(partial(shutil.rmtree, self.folder, ignore_errors=True))


async def _place(address: str) -> str:
    """An address and a port. Raises NotHere."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        return HostPort(str(found[0][4][0]), int(port)).text
    except (OSError, ValueError, OverflowError) as error:
        raise NotHere(f"its address {address[:80]!r} is of no use ({str(error) or 'it was not resolved in time'})") from None


def _signature(path: Path | None) -> str | None:
    """Raises GatehouseError."""
    if path is None:
        return None
    try:
        if path.stat().st_size <= MAX_SIGNATURE:
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        pass
    raise GatehouseError("The model's signature cannot be read.", code="model_invalid", status=422)


def _packed(archive: Path, paths: list[Path], files: tuple[SharedFile, ...]) -> tuple[int, str]:
    """A ustar archive of a folder's files; its size and SHA-256."""
    archive.unlink(missing_ok=True)
    with tarfile.open(archive, "x", format=tarfile.USTAR_FORMAT) as packed:
        for path, file in zip(paths, files, strict=True):
            member = tarfile.TarInfo(file.path)
            member.size, member.mode = file.size, 0o600
            try:
                with path.open("rb") as content:
                    packed.addfile(member, content)
            except ValueError:
                raise GatehouseError(f"{file.path!r} is too long a path for an archive.", code="model_invalid", status=422) from None
    state = hashlib.sha256()
    with archive.open("rb") as content:
        while block := content.read(PIECE):
            state.update(block)
    return archive.stat().st_size, state.hexdigest()


def _append(path: Path, piece: bytes) -> None:
    before = _size(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        try:
            view = memoryview(piece)
            while len(view):
                view = view[file.write(view) :]
        except OSError:
            os.ftruncate(file.fileno(), before)
            raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
