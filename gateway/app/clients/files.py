"""Files of clients: records in the store, content in a directory that all processes share, encrypted with the tenant's key.

The record is written after the content is on the disk, and removed before it: a process that is killed leaves content without a record at
most, which gateway.app.clients.file_rows.FileSweep removes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.batches.sealed import SealedWriter, pieces
from gateway.core.batches import FILE_PREFIX, MIN_EXPIRY, FileKeys, FileRecord, KeptFiles, reached
from gateway.core.clock import Entropy, SystemEntropy
from gateway.core.conversations import owner_of
from gateway.core.errors import GatehouseError, NotFound, Overloaded, RequestError, StorageFull
from gateway.core.specs.batches import FilesSpec
from gateway.core.types import Principal

log = logging.getLogger("gatehouse.files")
MOST_NAME: Final = 255
BLOCK: Final = 1024 * 1024
"""Bytes that one turn of a thread reads or writes."""
PURPOSE: Final = "batch"
MISSING: Final = "file_missing"
COMPRESSED: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
Record = Callable[..., None]


class FileUpload:
    """Implements gateway.core.batches.Upload."""

    def __init__(self, book: ClientFiles, principal: Principal, labels: Collection[str] = ()) -> None:
        self._book, self._principal, self._labels = book, principal, tuple(sorted(labels))
        self._began = time.perf_counter()
        self._writer: SealedWriter | None = None
        self._buffer = bytearray()
        self._id, self._key, self._size = "", "", 0
        self._open = True

    async def write(self, data: bytes) -> None:
        if not self._size and data.startswith(COMPRESSED):
            raise RequestError("The file is compressed: send it as it is, one JSON object a line.", code="invalid_file", param="file")
        self._size += len(data)
        if self._size > self._book.settings.max_bytes:
            raise RequestError(
                f"The file has more than {self._book.settings.max_bytes} bytes.", code="request_too_large", param="file", status=413
            )
        self._buffer += data
        if len(self._buffer) >= BLOCK:
            await self._flush()

    async def _flush(self) -> None:
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._writer is None:
            self._id, self._key, self._writer = await self._book.writer(self._principal.tenant)
        await self._book.disk(self._writer.write, data)

    async def finish(self, name: str, purpose: str, expires_after: float | None) -> FileRecord:
        if purpose != PURPOSE:
            raise RequestError(f"purpose: files are kept for {PURPOSE!r} alone.", param="purpose")
        if not self._size:
            raise RequestError("file: it is empty.", param="file")
        most = self._book.settings.expire_after
        keep = most if expires_after is None else expires_after
        if not MIN_EXPIRY <= keep <= max(most, MIN_EXPIRY):
            raise RequestError(f"expires_after[seconds] is between {MIN_EXPIRY:.0f} and {most:.0f}.", param="expires_after[seconds]")
        await self._flush()
        assert self._writer is not None
        await self._book.disk(self._writer.finish)
        who = f"{self._principal.tenant}/{self._principal.id}"
        record = FileRecord(
            id=self._id,
            tenant=self._principal.tenant,
            owner=who,
            name=plain_name(name),
            purpose=purpose,
            size=self._size,
            key=self._key,
            caller=owner_of(self._principal),
            labels=self._labels,
        )
        try:
            made = await self._book.add(record, keep, self._began)
        except GatehouseError:
            await self._book.remove(self._id)
            raise
        self._writer = None
        self._end()
        return made

    async def abandon(self) -> None:
        if self._open and self._writer is not None:
            await asyncio.to_thread(self._writer.abandon)
        self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._book.ended(self._principal.tenant)


class ClientFiles:
    """Implements gateway.core.batches.FileDesk. Life: `start`.

    record: (event, target, detail, actor=, outcome=) for the audit log.
    """

    def __init__(
        self, settings: FilesSpec, kept: KeptFiles, state_dir: Path, keys: FileKeys, record: Record, entropy: Entropy | None = None
    ) -> None:
        self.settings, self._kept, self.keys, self._record = settings, kept, keys, record
        self.directory = state_dir / settings.directory
        self._entropy: Entropy = entropy or SystemEntropy()
        self.uploads = 0
        self._open = Counter[str]()
        """Uploads of each tenant: one alone cannot take all places."""
        self._counts = {"uploaded": 0, "deleted": 0, "expired": 0}

    async def start(self) -> None:
        """Raises StorageFull where the directory cannot be written."""
        await self.disk(lambda: self.directory.mkdir(mode=0o700, parents=True, exist_ok=True))

    # --- for the data listener

    def begin(self, principal: Principal, labels: Collection[str] = ()) -> FileUpload:
        tenant, most = principal.tenant, self.settings.max_open
        if self.uploads >= most or self._open[tenant] >= max(1, most // 2):
            raise Overloaded(f"{self.uploads} files are being uploaded.", code="overloaded", retry_after=5.0)
        self.uploads += 1
        self._open[tenant] += 1
        return FileUpload(self, principal, labels)

    def ended(self, tenant: str) -> None:
        """An upload is over."""
        self.uploads -= 1
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    def _reached(self, principal: Principal) -> str | None:
        return reached(self.settings, owner_of(principal))

    async def find(self, tenant: str, id: str, owner: str) -> FileRecord:
        """As `file`, for a caller that is not there itself."""
        return await self._kept.get(tenant, id, reached(self.settings, owner))

    async def files(
        self, principal: Principal, *, limit: int, after: str | None, newest: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]:
        return await self._kept.page(principal.tenant, self._reached(principal), limit, after, newest, purpose)

    async def file(self, principal: Principal, id: str) -> FileRecord:
        return await self._kept.get(principal.tenant, id, self._reached(principal))

    async def content(self, principal: Principal, id: str) -> tuple[FileRecord, AsyncIterator[bytes]]:
        return await self.read(principal.tenant, id, owner_of(principal))

    async def read(self, tenant: str, id: str, owner: str | None = None) -> tuple[FileRecord, AsyncIterator[bytes]]:
        """owner: who reads it; None: the gateway itself. Raises NotFound, also where another replica has it in a directory that is not
        shared; Shredded."""
        record = await self._kept.get(tenant, id, None if owner is None else reached(self.settings, owner))
        key = await self.keys.opening(tenant, record.key)
        path = self.path(id)
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"The content of {id} is not here: replicas must share files.directory.", code=MISSING)
        return record, blocks(pieces(path, id, key))

    async def delete(self, principal: Principal, id: str) -> None:
        found = await self._kept.delete(principal.tenant, id, self._reached(principal))
        await self.deleted(found, f"{principal.tenant}/{principal.id}")

    # --- for uploads and for the results of batches

    async def writer(self, tenant: str) -> tuple[str, str, SealedWriter]:
        """Begins a new file: its id, its key's id, and the writer. Raises StorageFull, QuotaExceeded, MasterUnavailable."""
        await self._kept.room(tenant)
        return await self.result_writer(tenant)

    async def result_writer(self, tenant: str) -> tuple[str, str, SealedWriter]:
        """The same without a look at the tenant's quota: what was computed is not lost for it."""
        key_id, key = await self.keys.current(tenant)
        await self.disk(self._room)
        id = f"{FILE_PREFIX}{int(time.time() * 1000):011x}{self._entropy.bytes(12).hex()}"
        return id, key_id, await self.disk(SealedWriter, self.path(id), id, key, self._entropy)

    def path(self, id: str) -> Path:
        """Ids are made here: none has a separator."""
        return self.directory / id

    def _room(self) -> None:
        if shutil.disk_usage(self.directory).free < self.settings.reserve_bytes:
            raise StorageFull("There is no room for files on the disk.", retry_after=60.0)

    async def disk(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Runs it in a thread. Raises StorageFull for whatever the disk says."""
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            log.error("files cannot be written: %s", error.strerror)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("There is no room for files on the disk.", retry_after=60.0) from None
            raise StorageFull("Files cannot be written at the moment.", code="storage_failed", retry_after=60.0) from None

    async def add(self, record: FileRecord, keep: float, began: float) -> FileRecord:
        made = await self._kept.add(record, keep, began)
        self._counts["uploaded"] += 1
        self._record("file_uploaded", made.id, {"tenant": made.tenant, "bytes": made.size, "purpose": made.purpose}, actor=made.owner)
        return made

    async def remove(self, id: str) -> None:
        """The content, if it is there."""
        await self.disk(lambda: self.path(id).unlink(missing_ok=True))

    async def deleted(self, record: FileRecord, actor: str) -> None:
        """As `expired`, because somebody wanted it."""
        await self.remove(record.id)
        self._counts["deleted"] += 1
        self._record("file_deleted", record.id, {"tenant": record.tenant, "bytes": record.size}, actor=actor)

    async def expired(self, record: FileRecord) -> None:
        """The record is gone: so is the content."""
        await self.remove(record.id)
        self._counts["expired"] += 1
        self._record("file_expired", record.id, {"tenant": record.tenant, "bytes": record.size}, actor=record.owner)

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_file_uploads", "Files that are being uploaded", value=float(self.uploads))
        events = CounterMetricFamily("gatehouse_file_events", "Files uploaded, deleted, expired", labels=["event"])
        for event, count in self._counts.items():
            events.add_metric([event], float(count))
        yield events


async def blocks(content: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same in blocks, each read in a thread."""

    def block() -> bytes:
        found = bytearray()
        for piece in content:
            found += piece
            if len(found) >= BLOCK:
                break
        return bytes(found)

    while True:
        try:
            data = await asyncio.to_thread(block)
        except OSError as error:
            raise StorageFull(f"A file cannot be read: {error.strerror}.", code="storage_failed", status=503) from None
        if not data:
            return
        yield data


def plain_name(name: str) -> str:
    """The last part of a name that may be a path on the client's machine. It is only shown: nothing here is opened by it."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(one for one in last if one.isprintable() and not "\ud800" <= one <= "\udfff")[:MOST_NAME]
    return shown if shown.strip(". ") else "file"
