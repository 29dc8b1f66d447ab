"""Files and batches of clients in the process that has the store: their parts, in the order in which they start and end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from gateway.app.audit.vault import Vault
from gateway.app.batches.book import BatchBook
from gateway.app.batches.creators import Creators
from gateway.app.batches.lines import LocalLines
from gateway.app.batches.work import BatchWork
from gateway.app.clients.file_rows import FileBook, FileRows, FileSweep
from gateway.app.clients.files import ClientFiles, Record
from gateway.app.clients.tenant_keys import TenantKeys
from gateway.app.store.link import StoreLink
from gateway.app.workers.channel import Handlers
from gateway.app.workers.control_batches import MOST_LINE, WorkAnswers, WorkerLines
from gateway.app.workers.hub import Hub
from gateway.core.batches import Lines, WorkDesk
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.network import Networks
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.identity.revocations import Revocations
from gateway.pipeline.plane import DataPlane
from gateway.store.feed import CHANGE, RESYNC

LEAST_LEASE: Final = 2.0


class ClientWork:
    """desk: for this process's own data listener; None where neither is enabled. workers: whether other processes serve, which take files
    and run lines. Life: `start` once the store has been started and a Snapshot is in force, `aclose` before the store closes. Raises
    ConfigError."""

    def __init__(
        self,
        spec: ConfigSpec,
        link: StoreLink,
        vault: Vault | None,
        plane: DataPlane,
        networks: Networks,
        record: Record,
        owner: TaskOwner,
        holder: str,
        *,
        workers: bool,
        revocations: Revocations,
    ) -> None:
        self.desk: WorkDesk | None = None
        self.files: ClientFiles | None = None
        self.book: BatchBook | None = None
        self.file_book: FileBook | None = None
        self._sweep: FileSweep | None = None
        self._work: BatchWork | None = None
        self._creators: Creators | None = None
        self._lines: WorkerLines | None = None
        self.lines: Lines | None = None
        """Where lines run, of batches and of jobs; None where there are neither."""
        checked(spec, workers)
        self.revocations = revocations
        self._store, self._keys = link.store, TenantKeys(link.store, vault)
        self._rows = FileRows(self._store.files, spec.files)
        if not spec.files.enabled:
            return
        self.files = ClientFiles(spec.files, self._rows, Path(spec.state_dir), self._keys, record)
        self.file_book = FileBook(self._store.files, self.files)
        self._sweep = FileSweep(self._store.files, self.files, owner)
        if spec.batches.enabled or spec.jobs.enabled:
            if workers:
                self.lines = self._lines = WorkerLines(spec.batches.spare, SystemClock())
            else:
                self._creators = Creators(self._store.get_key, link.people, plane.current, networks, SystemClock(), revocations)
                self.lines = LocalLines(plane, self._creators, spec.batches.spare)
        if spec.batches.enabled and self.lines is not None:
            self.book = BatchBook(spec.batches, spec.files, self._store.batches, self._store.files, record)
            parts = (self._store.batches, self.book, self.files, self.lines, lambda: plane.draining or plane.closing)
            self._work = BatchWork(spec.batches, *parts, holder.partition(":")[0], holder, SystemClock(), SystemEntropy())
        self.desk = WorkDesk(self.files, self.book, spec.files.max_bytes, spec.files.upload_timeout)

    def serve_workers(self, hub: Hub, handlers: Handlers) -> None:
        """Answers what workers ask, and has them run lines from now on."""
        WorkAnswers(self._store, None if self.files is None else self._rows, self._keys, self.book).register(handlers)
        if self._lines is not None:
            self._lines.hub = hub

    async def start(self) -> None:
        """Raises StorageFull where the directory of files cannot be written."""
        if self.files is not None and self._sweep is not None:
            await self.files.start()
            self._sweep.start()
        if self._work is not None:
            self._work.start()

    def heard(self, change: Change) -> None:
        if self._creators is not None and change[1] in (CHANGE, RESYNC):
            self._creators.forget()

    async def aclose(self) -> None:
        if self._work is not None:
            await self._work.aclose()

    def collect(self) -> Iterable[Metric]:
        for part in (self._sweep, self.files, self.book):
            if part is not None:
                yield from part.collect()


def checked(spec: ConfigSpec, workers: bool) -> None:
    """Raises ConfigError."""
    if spec.batches.enabled and not spec.files.enabled:
        raise ConfigError("needs files: set files.enabled too", path="batches.enabled")
    if spec.batches.lease < LEAST_LEASE:
        raise ConfigError(f"is at least {LEAST_LEASE:.0f}s: it is renewed every second", path="batches.lease")
    if workers and spec.batches.enabled and spec.batches.max_line_bytes > MOST_LINE:
        raise ConfigError(f"is at most {MOST_LINE} with --workers: lines go from process to process", path="batches.max_line_bytes")
