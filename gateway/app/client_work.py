"""Files and batches of clients in a process that serves by itself: their parts, in the order in which they start and end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from gateway.app.batch_creators import Creators
from gateway.app.batch_work import BatchWork
from gateway.app.batches import BatchBook
from gateway.app.client_files import ClientFiles, Record
from gateway.app.store_link import StoreLink
from gateway.app.tenant_keys import TenantKeys
from gateway.app.vault import Vault
from gateway.core.batches import WorkDesk
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.network import Networks
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.pipeline.plane import DataPlane

LEAST_LEASE: Final = 2.0


class ClientWork:
    """desk: None where neither is enabled. Life: `start` once the store has been started and a Snapshot is in force, `aclose` before the
    store closes. Raises ConfigError."""

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
    ) -> None:
        self.desk: WorkDesk | None = None
        self.files: ClientFiles | None = None
        self.book: BatchBook | None = None
        self._work: BatchWork | None = None
        self._creators: Creators | None = None
        if not spec.files.enabled:
            if spec.batches.enabled:
                raise ConfigError("needs files: set files.enabled too", path="batches.enabled")
            return
        if spec.batches.lease < LEAST_LEASE:
            raise ConfigError(f"is at least {LEAST_LEASE:.0f}s: it is renewed every second", path="batches.lease")
        if workers:
            raise ConfigError("needs a gateway of one process: start it without --workers, several on one store if need be", path="files")
        store = link.store
        keys = TenantKeys(store, vault)
        self.files = ClientFiles(spec.files, store.files, Path(spec.state_dir), keys, record, owner)
        if spec.batches.enabled:
            clock = SystemClock()
            self._creators = Creators(store.get_key, link.people, plane.current, networks, clock)
            self.book = BatchBook(spec.batches, store.batches, store.files, record)
            replica = holder.partition(":")[0]
            parts = (store.batches, self.book, self.files, plane, self._creators, replica, holder, clock, SystemEntropy())
            self._work = BatchWork(spec.batches, *parts)
        self.desk = WorkDesk(self.files, self.book, spec.files.max_bytes, spec.files.upload_timeout)

    async def start(self) -> None:
        """Raises StorageFull where the directory of files cannot be written."""
        if self.files is not None:
            await self.files.start()
        if self._work is not None:
            self._work.start()

    def heard(self, change: Change) -> None:
        if self._creators is not None:
            self._creators.heard(change)

    async def aclose(self) -> None:
        if self._work is not None:
            await self._work.aclose()

    def collect(self) -> Iterable[Metric]:
        for part in (self.files, self.book):
            if part is not None:
                yield from part.collect()
