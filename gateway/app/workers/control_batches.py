"""Files and batches in the control process: answers workers' questions about the store, and has workers run the lines of batches.

A line goes to the worker with the most room for its model. If a worker is killed, it is not known whether an engine ran its lines
(LineLost), and the batch says so.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.app.batches.book import BatchBook
from gateway.app.workers.channel import AskRefused, FeedClosed, Handlers
from gateway.app.workers.hub import Hub
from gateway.core.batch_messages import (
    AddFile,
    BatchesGiven,
    BatchGiven,
    CancelBatch,
    CreatorKey,
    CreatorKeyGiven,
    DropFile,
    FileGiven,
    FileKey,
    FileKeyGiven,
    FileRoom,
    FilesGiven,
    FindBatch,
    FindFile,
    LineRoom,
    LinesFree,
    ListBatches,
    ListFiles,
    MakeBatch,
    RunLine,
)
from gateway.core.batches import BatchRecord, FileKeys, KeptFiles, LineLost, LineOutcome
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, NotFound, Overloaded, PermissionDenied, RequestError
from gateway.core.messages import Done
from gateway.core.secret import Secret
from gateway.store.store import Store

FRESH_SECONDS: Final = 0.02
"""Seconds for which a worker's report of its room counts."""
ROOM_SECONDS: Final = 2.0
LINE_SECONDS: Final = 86400.0
"""The request has deadlines of its own in the worker, and a worker that does not answer is ended: this bounds what neither does."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of lines that are under way."""
MOST_LINE: Final = 16 * 1024 * 1024
WAIT_SECONDS: Final = 0.02
TURN_SECONDS: Final = 30.0
ASLEEP: Final = 1 << 20
"""Room in a worker for a model whose engines have no slots at the moment: the request itself waits for them, or is refused."""


class WorkerLines:
    """Implements gateway.core.batches.Lines. hub: set once there are workers; before, there is no room."""

    hub: Hub | None = None

    def __init__(self, spare: float, clock: Clock) -> None:
        self._spare, self._clock = spare, clock
        self._room: dict[str, tuple[float, dict[str, int]]] = {}
        """Model -> when the workers were asked, and how many lines may still begin in each."""
        self._bytes = 0

    async def place(self, model: str, begun: int) -> str | None:
        known = self._room.get(model)
        if known is None or self._clock.monotonic() - known[0] > FRESH_SECONDS:
            known = self._room[model] = (self._clock.monotonic(), await self._asked(model))
        room = known[1]
        best = max(room, key=lambda worker: room[worker], default=None)
        if best is None or room[best] <= 0:
            return None
        room[best] -= 1
        return best

    async def _asked(self, model: str) -> dict[str, int]:
        """The room of each worker, by worker."""
        hub, found = self.hub, dict[str, LinesFree]()
        if hub is None:
            return {}
        serving = [id for id, worker in hub.workers.items() if worker.state == "ready" and not worker.adopted]
        asked = [(id, hub.ask(id, LineRoom(model, self._spare), ROOM_SECONDS)) for id in serving]
        for id, answer in asked:
            try:
                found[id] = await answer
            except GatehouseError:
                continue  # another one has the line
        if not any(one.slots for one in found.values()):
            return dict.fromkeys(found, ASLEEP)
        return {id: one.free for id, one in found.items()}

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        if self.hub is None:
            raise Overloaded("There is no worker.", retry_after=1.0)
        await self._turn(len(body))
        self._bytes += len(body)
        try:
            line = RunLine(batch.id, batch.creator, batch.endpoint, number, attempt, body)
            ran = await self.hub.ask(place, line, LINE_SECONDS)
        except FeedClosed as error:
            raise LineLost(f"The worker {place} is gone.") from error
        except AskRefused as error:
            if error.status == 500:
                raise LineLost("The worker has failed.") from error
            raise
        finally:
            self._bytes -= len(body)
        if ran.ended is not None:
            raise PermissionDenied(ran.ended[1], code=ran.ended[0])
        if ran.lost:
            raise LineLost(f"The worker {place} has failed.")
        return LineOutcome(ran.status, ran.body, ran.request_id, ran.again)

    async def _turn(self, size: int) -> None:
        """Raises Overloaded."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                while self._bytes and self._bytes + size > MOST_BYTES:
                    await asyncio.sleep(WAIT_SECONDS)
        except TimeoutError:
            raise Overloaded("Too many bytes of other lines are under way.", retry_after=1.0) from None


class WorkAnswers:
    """Answers workers. files, batches: None where they are not enabled."""

    def __init__(self, store: Store, files: KeptFiles | None, keys: FileKeys, batches: BatchBook | None) -> None:
        self._store, self._files, self._keys, self._batches = store, files, keys, batches

    @property
    def files(self) -> KeptFiles:
        if self._files is None:
            raise RequestError("Files are not enabled here (files.enabled).", code="not_found", status=404)
        return self._files

    @property
    def batches(self) -> BatchBook:
        if self._batches is None:
            raise RequestError("Batches are not enabled here (batches.enabled).", code="not_found", status=404)
        return self._batches

    async def room(self, ask: FileRoom) -> Done:
        await self.files.room(ask.tenant)
        return Done()

    async def add(self, ask: AddFile) -> FileGiven:
        return FileGiven(await self.files.add(ask.file, ask.keep, ask.began))

    async def find(self, ask: FindFile) -> FileGiven:
        return FileGiven(await self.files.get(ask.tenant, ask.id, ask.caller))

    async def list(self, ask: ListFiles) -> FilesGiven:
        return FilesGiven(*await self.files.page(ask.tenant, ask.caller, ask.limit, ask.after, ask.newest, ask.purpose))

    async def drop(self, ask: DropFile) -> FileGiven:
        return FileGiven(await self.files.delete(ask.tenant, ask.id, ask.caller))

    async def key(self, ask: FileKey) -> FileKeyGiven:
        if ask.id is None:
            id, key = await self._keys.current(ask.tenant)
            return FileKeyGiven(id, Secret(key.hex()))
        return FileKeyGiven(ask.id, Secret((await self._keys.opening(ask.tenant, ask.id)).hex()))

    async def make(self, ask: MakeBatch) -> BatchGiven:
        return BatchGiven(await self.batches.make(ask.creator, ask.wanted, ask.began))

    async def find_batch(self, ask: FindBatch) -> BatchGiven:
        return BatchGiven(await self.batches.get(ask.id, ask.tenant, ask.caller))

    async def list_batches(self, ask: ListBatches) -> BatchesGiven:
        return BatchesGiven(*await self.batches.page(ask.tenant, ask.limit, ask.after, caller=ask.caller))

    async def cancel(self, ask: CancelBatch) -> BatchGiven:
        return BatchGiven(await self.batches.stop(ask.id, ask.tenant, ask.actor, ask.caller))

    async def creator_key(self, ask: CreatorKey) -> CreatorKeyGiven:
        try:
            return CreatorKeyGiven(await self._store.get_key(ask.id))
        except NotFound:
            return CreatorKeyGiven()

    def register(self, handlers: Handlers) -> None:
        handlers.answer(FileRoom, lambda _, ask: self.room(ask))
        handlers.answer(AddFile, lambda _, ask: self.add(ask))
        handlers.answer(FindFile, lambda _, ask: self.find(ask))
        handlers.answer(ListFiles, lambda _, ask: self.list(ask))
        handlers.answer(DropFile, lambda _, ask: self.drop(ask))
        handlers.answer(FileKey, lambda _, ask: self.key(ask))
        handlers.answer(MakeBatch, lambda _, ask: self.make(ask))
        handlers.answer(FindBatch, lambda _, ask: self.find_batch(ask))
        handlers.answer(ListBatches, lambda _, ask: self.list_batches(ask))
        handlers.answer(CancelBatch, lambda _, ask: self.cancel(ask))
        handlers.answer(CreatorKey, lambda _, ask: self.creator_key(ask))
