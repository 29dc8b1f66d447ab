"""The records of clients' files in the process that has the store: bounded by the settings, and swept when they are over."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.app.clients.files import ClientFiles
from gateway.batches.sealed import PARTIAL
from gateway.core.batches import FILE_PREFIX, FileRecord
from gateway.core.errors import GatehouseError
from gateway.core.specs.batches import FilesSpec
from gateway.core.tasks import TaskOwner
from gateway.store.files import StoredFiles

log = logging.getLogger("gatehouse.files")
SWEEP_SECONDS: Final = 60.0
ORPHAN_SECONDS: Final = 3600.0
"""Content without a row is removed when it has not been written to for so long."""


class FileRows:
    """Implements gateway.core.batches.KeptFiles."""

    def __init__(self, kept: StoredFiles, settings: FilesSpec) -> None:
        self._kept, self._most, self._most_bytes = kept, settings.max_tenant_files, settings.max_tenant_bytes

    async def room(self, tenant: str) -> None:
        await self._kept.room(tenant, self._most, self._most_bytes)

    async def add(self, record: FileRecord, keep: float, began: float) -> FileRecord:
        return await self._kept.add(record, keep, began, self._most, self._most_bytes)

    async def get(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        return await self._kept.get(tenant, id, caller)

    async def page(
        self, tenant: str, caller: str | None, limit: int, after: str | None, newest: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]:
        return await self._kept.page(tenant, limit, after, newest, purpose, caller)

    async def delete(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        return await self._kept.delete(tenant, id, caller)


class FileBook:
    """Implements the admin API's port: files of any tenant."""

    def __init__(self, kept: StoredFiles, files: ClientFiles) -> None:
        self._kept, self._files = kept, files

    async def page(self, tenants: Sequence[str] | None, limit: int, after: str | None) -> tuple[list[FileRecord], bool]:
        return await self._kept.page(tenants, limit, after, True, None)

    async def get(self, id: str) -> FileRecord:
        return await self._kept.get(None, id)

    async def delete(self, id: str, actor: str, *, dry_run: bool = False) -> FileRecord:
        found = await self._kept.delete(None, id, dry_run=dry_run)
        if not dry_run:
            await self._files.deleted(found, actor)
        return found


class FileSweep:
    """Removes files that have expired, and content without a row. Life: `start` once the store and `files` have been started."""

    def __init__(self, kept: StoredFiles, files: ClientFiles, owner: TaskOwner) -> None:
        self._kept, self._files, self._owner = kept, files, owner
        self._totals = (0, 0)

    def start(self) -> None:
        self._owner.every(SWEEP_SECONDS, self.sweep, name="client files")

    async def sweep(self) -> None:
        """A store or a disk that does not answer is left to the next time."""
        try:
            while expired := await self._kept.expire():
                for one in expired:
                    await self._files.expired(one)
            for names in _grouped(await self._files.disk(self._old), 200):
                known = await self._kept.known([name.removesuffix(PARTIAL) for name in names])
                for name in names:
                    if name.endswith(PARTIAL) or name not in known:
                        await self._files.remove(name)
            self._totals = await self._kept.totals()
        except GatehouseError as error:
            log.debug("files could not be swept: %s", error.message)

    def _old(self) -> list[str]:
        limit = time.time() - ORPHAN_SECONDS
        with os.scandir(self._files.directory) as found:
            return [entry.name for entry in found if entry.name.startswith(FILE_PREFIX) and _older(entry, limit)]

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_files", "Files of clients in the store", value=float(self._totals[0]))
        yield GaugeMetricFamily("gatehouse_files_bytes", "Bytes of clients' files", value=float(self._totals[1]))


def _older(entry: os.DirEntry[str], limit: float) -> bool:
    """False where another process has removed it meanwhile."""
    try:
        return entry.stat().st_mtime < limit
    except FileNotFoundError:
        return False


def _grouped(names: list[str], size: int) -> Iterator[list[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))
