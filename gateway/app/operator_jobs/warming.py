"""Asks the requests of a client's file, as lines of a batch run, so that their answers are kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.app.clients.files import ClientFiles
from gateway.batches.lines import Asked, LineRefused, Splitter, asked
from gateway.core.batches import BatchRecord, LineLost, Lines
from gateway.core.errors import GatehouseError, PermissionDenied
from gateway.core.jobs import JobFailed, JobRecord, Warm
from gateway.core.tasks import TaskOwner

TRIES: Final = 5
"""Tries of a request that a limit refuses, or for which there is no room."""
LOST_TRIES: Final = 2
"""Tries of a request whose process died while it ran: the request may be the reason."""
MOST_WAIT: Final = 60.0
ROOM_SECONDS: Final = 0.2
ROOM_TRIES: Final = 3000
MOST_LINE: Final = 1024 * 1024
END_SECONDS: Final = 10.0


class Warming:
    """One attempt. `counts`: `answered`, `failed`. held: whether the job is still this process's; while that is not sure, nothing is
    asked."""

    def __init__(self, job: JobRecord, task: Warm, files: ClientFiles, lines: Lines, held: Callable[[], bool]) -> None:
        self._job, self._task, self._files, self._lines, self._held = job, task, files, lines, held
        self._as_batch = BatchRecord(
            id=job.id,
            creator=job.creator,
            endpoint=task.endpoint,
            input=task.file,
            state="in_progress",
            created=job.created,
            expires=0.0,
            window="24h",
            metadata=None,
            salt="",
        )
        self._begun = 0
        self._ended: JobFailed | None = None
        self.counts: Counter[str] = Counter()
        self.progress = 0.0

    async def run(self) -> dict[str, int]:
        """Raises JobFailed, other GatehouseErrors where the file cannot be read."""
        owner, room = TaskOwner("warming"), asyncio.Semaphore(self._task.at_once)
        record, content = await self._files.read(self._job.tenant, self._task.file, self._job.creator.owner)
        self._as_batch = msgspec.structs.replace(self._as_batch, creator=self._job.creator.labelled(record.labels))
        splitter, read = Splitter(MOST_LINE), 0
        try:
            async for block in content:
                read += len(block)
                for number, line in splitter.feed(block, last=read >= record.size):
                    await room.acquire()
                    if self._ended is not None:
                        raise self._ended
                    owner.spawn(self._line(number, line, room), name=f"line {number}")
                self.progress = read / max(1, record.size)
            for _ in range(self._task.at_once):
                await room.acquire()
            if self._ended is not None:
                raise self._ended
        finally:
            await owner.aclose(END_SECONDS)
        return {"answered": self.counts["answered"], "failed": self.counts["failed"]}

    async def _line(self, number: int, line: bytes, room: asyncio.Semaphore) -> None:
        try:
            request = asked(number, line, self._task.endpoint, MOST_LINE)
            self.counts["answered" if await self._asked(request) else "failed"] += 1
        except PermissionDenied as error:
            self._ended = JobFailed(error.message, code=error.code, lasting=True)
        except (LineRefused, LineLost, GatehouseError):
            self.counts["failed"] += 1
        finally:
            room.release()

    async def _asked(self, request: Asked) -> bool:
        lost = 0
        for attempt in range(1, TRIES + 1):
            place = await self._place(request.model)
            if place is None:
                return False
            while not self._held():  # whoever runs the attempt renews the lease now, or ends this
                await asyncio.sleep(ROOM_SECONDS)
            self._begun += 1
            try:
                ran = await self._lines.run(place, self._as_batch, request.number, request.body, attempt)
            except LineLost:
                lost += 1
                if lost == LOST_TRIES or attempt == TRIES:
                    raise
                continue
            finally:
                self._begun -= 1
            if ran.again is None or attempt == TRIES:
                return ran.status < 400
            await asyncio.sleep(min(ran.again, MOST_WAIT))
        return False

    async def _place(self, model: str) -> str | None:
        for _ in range(ROOM_TRIES):
            place = await self._lines.place(model, self._begun)
            if place is not None:
                return place
            await asyncio.sleep(ROOM_SECONDS)
        return None
