"""Files and batches in a worker. It reads and writes files itself, in the directory that all processes share, asks the control process for
their records in the store, and runs the lines of batches that the control process hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.app.batches.creators import Creators
from gateway.app.batches.lines import LocalLines
from gateway.app.clients.files import ClientFiles, Record
from gateway.app.workers.channel import Channel, Handlers
from gateway.app.workers.store_feed import StoreFeed
from gateway.core.batch_messages import (
    AddFile,
    CancelBatch,
    CreatorKey,
    DropFile,
    FileKey,
    FileRoom,
    FindBatch,
    FindFile,
    LineRan,
    LineRoom,
    LinesFree,
    ListBatches,
    ListFiles,
    MakeBatch,
    RunLine,
)
from gateway.core.batches import BatchRecord, Creator, FileRecord, LineLost, WorkDesk, reached
from gateway.core.clock import SystemClock
from gateway.core.conversations import owner_of
from gateway.core.errors import NotFound, PermissionDenied
from gateway.core.network import Networks
from gateway.core.specs import ConfigSpec
from gateway.core.specs.batches import FilesSpec
from gateway.core.storage import KeyRecord
from gateway.core.types import Peer, Principal
from gateway.identity.people import People
from gateway.identity.revocations import Revocations
from gateway.pipeline.plane import DataPlane

SECONDS: Final = 10.0
"""How long an answer may take: more than the store's own deadline."""
MOST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is sent over the feed."""
MOST_WAITING: Final = 16 * 1024 * 1024
"""Bytes that wait for the control process while another answer is sent."""
WAIT_SECONDS: Final = 0.02


class FeedFiles:
    """Implements gateway.core.batches.KeptFiles over the feed."""

    def __init__(self, stored: StoreFeed) -> None:
        self._stored = stored

    async def room(self, tenant: str) -> None:
        await self._stored.ask(FileRoom(tenant), SECONDS)

    async def add(self, record: FileRecord, keep: float, began: float) -> FileRecord:
        return (await self._stored.ask(AddFile(record, keep, began), SECONDS)).file

    async def get(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        return (await self._stored.ask(FindFile(tenant, id, caller), SECONDS)).file

    async def page(
        self, tenant: str, caller: str | None, limit: int, after: str | None, newest: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]:
        found = await self._stored.ask(ListFiles(tenant, limit, after, newest, purpose, caller), SECONDS)
        return found.files, found.more

    async def delete(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        return (await self._stored.ask(DropFile(tenant, id, caller), SECONDS)).file


class FeedKeys:
    """Implements gateway.core.batches.FileKeys over the feed."""

    def __init__(self, stored: StoreFeed) -> None:
        self._stored = stored

    async def current(self, tenant: str) -> tuple[str, bytes]:
        found = await self._stored.ask(FileKey(tenant), SECONDS)
        return found.id, bytes.fromhex(found.key.reveal())

    async def opening(self, tenant: str, id: str) -> bytes:
        return bytes.fromhex((await self._stored.ask(FileKey(tenant, id), SECONDS)).key.reveal())


class FeedBatches:
    """Implements gateway.core.batches.BatchDesk over the feed."""

    def __init__(self, stored: StoreFeed, files: FilesSpec) -> None:
        self._stored, self._files = stored, files

    def _reached(self, principal: Principal) -> str | None:
        return reached(self._files, owner_of(principal))

    async def create(
        self, principal: Principal, peer: Peer, wanted: Mapping[str, Any], began: float, labels: Collection[str] = ()
    ) -> BatchRecord:
        return (await self._stored.ask(MakeBatch(Creator.of_batch(principal, peer, labels), dict(wanted), began), SECONDS)).batch

    async def batch(self, principal: Principal, id: str) -> BatchRecord:
        return (await self._stored.ask(FindBatch(principal.tenant, id, self._reached(principal)), SECONDS)).batch

    async def batches(self, principal: Principal, *, limit: int, after: str | None) -> tuple[list[BatchRecord], bool]:
        found = await self._stored.ask(ListBatches(principal.tenant, limit, after, self._reached(principal)), SECONDS)
        return found.batches, found.more

    async def cancel(self, principal: Principal, id: str) -> BatchRecord:
        tenant, actor = principal.tenant, f"{principal.tenant}/{principal.id}"
        return (await self._stored.ask(CancelBatch(tenant, id, actor, self._reached(principal)), SECONDS)).batch


class WorkerWork:
    """desk: None where files are not enabled. spec: this worker's share. Life: `start`."""

    def __init__(
        self,
        spec: ConfigSpec,
        channel: Channel,
        plane: DataPlane,
        people: People,
        networks: Networks,
        record: Record,
        revocations: Revocations,
    ) -> None:
        self._channel, self._stored = channel, StoreFeed(channel)
        self.desk: WorkDesk | None = None
        self.files: ClientFiles | None = None
        self._lines: LocalLines | None = None
        self._creators: Creators | None = None
        if not spec.files.enabled:
            return
        self.files = ClientFiles(spec.files, FeedFiles(self._stored), Path(spec.state_dir), FeedKeys(self._stored), record)
        batches = None
        if spec.batches.enabled or spec.jobs.enabled:
            self._creators = Creators(self._key, people, plane.current, networks, SystemClock(), revocations)
            self._lines = LocalLines(plane, self._creators, spec.batches.spare)
        if spec.batches.enabled:
            batches = FeedBatches(self._stored, spec.files)
        self.desk = WorkDesk(self.files, batches, spec.files.max_bytes, spec.files.upload_timeout)

    async def start(self) -> None:
        """Raises StorageFull where the directory of files cannot be written."""
        if self.files is not None:
            await self.files.start()

    def forget(self) -> None:
        """A key or a caller's rights have changed, or may have."""
        if self._creators is not None:
            self._creators.forget()

    async def _key(self, id: str) -> KeyRecord:
        record = (await self._stored.ask(CreatorKey(id), SECONDS)).record
        if record is None:
            raise NotFound(f"There is no key {id[:64]!r}.")
        return record

    # --- for the control process

    def room(self, ask: LineRoom) -> LinesFree:
        return LinesFree(0, 0) if self._lines is None else LinesFree(*self._lines.room(ask.model, ask.spare))

    async def run(self, ask: RunLine) -> LineRan:
        """Raises GatehouseError where the line was not run."""
        if self._lines is None:
            return LineRan(again=1.0)
        told: dict[str, object] = {"id": ask.batch, "line": ask.number, "attempt": ask.attempt}
        try:
            ran = await self._lines.ran(ask.creator, ask.endpoint, ask.body, told)
        except PermissionDenied as error:
            return LineRan(ended=(error.code, error.message))
        except LineLost:
            return LineRan(lost=True)
        status, body = ran.status, ran.body
        if len(body) > MOST_ANSWER:
            status, body = 502, _too_large(len(body))
        await self._until_taken()
        return LineRan(status, body, ran.request_id, ran.again)

    async def _until_taken(self) -> None:
        """What the control process has not read yet is bounded; a feed to a process that reads nothing at all ends by itself."""
        while self._channel.backlog > MOST_WAITING:
            await asyncio.sleep(WAIT_SECONDS)


def _too_large(size: int) -> bytes:
    message = f"The answer has {size} bytes; with --workers an answer in a batch has at most {MOST_ANSWER}."
    return msgspec.json.encode({"error": {"message": message, "type": "server_error", "param": None, "code": "answer_too_large"}})


def work_handlers(handlers: Handlers, work: WorkerWork) -> None:
    """What a worker does for the control process's batches."""
    handlers.answer(LineRoom, lambda _, ask: work.room(ask))
    handlers.answer(RunLine, lambda _, ask: work.run(ask))
