"""The requests of a file, asked for a job: by the process that holds the job, and by no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

from gateway.app.operator_jobs.warming import Warming
from gateway.core.batches import BatchRecord, Creator, FileRecord, LineLost, LineOutcome
from gateway.core.jobs import JobRecord, Warm
from tests.waiting import reached

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
LINES = [json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": BODY}) for n in range(3)]
TASK = Warm(file="file-1", at_once=1)


class Files:
    async def read(self, tenant: str, id: str, owner: str) -> tuple[FileRecord, AsyncIterator[bytes]]:
        content = "\n".join(LINES).encode()

        async def blocks() -> AsyncIterator[bytes]:
            yield content

        return FileRecord(id=id, tenant=tenant, owner="app", name="x", purpose="batch", size=len(content), key=""), blocks()


class Lines:
    def __init__(self) -> None:
        self.ran: list[int] = []
        self.held, self.looks = True, 0
        self.lost: list[int] = []

    def holds(self) -> bool:
        self.looks += 1
        return self.held

    async def place(self, model: str, begun: int) -> str | None:
        return ""

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        self.ran.append(number)
        if number in self.lost:
            self.lost.remove(number)
            raise LineLost("The worker has ended.")
        self.held = len(self.ran) != 1  # the process stands still while the first is answered
        return LineOutcome(200, b"{}", "request", None)


async def test_nothing_is_asked_while_another_process_may_have_the_job() -> None:
    """Of a process that stood still, the lease is over when it goes on: it asked all that was left until it looked at the lease."""
    creator, lines = Creator(id="app", tenant="acme", kind="api_key"), Lines()
    job = JobRecord(id="job_1", tenant="acme", kind="warm", state="running", task=TASK, creator=creator, replica="", most=1)
    warming = asyncio.create_task(Warming(job, TASK, cast(Any, Files()), cast(Any, lines), lines.holds).run())
    await reached(lambda: lines.looks >= 3, what="a second look at the lease")
    assert lines.ran == [1]
    lines.held = True  # it was renewed
    assert await warming == {"answered": 3, "failed": 0} and lines.ran == [1, 2, 3]


async def test_a_line_whose_process_died_is_asked_once_more() -> None:
    """And not for ever: it may be why the process died."""
    creator, lines = Creator(id="app", tenant="acme", kind="api_key"), Lines()
    lines.lost = [2, 3, 3]
    job = JobRecord(id="job_1", tenant="acme", kind="warm", state="running", task=TASK, creator=creator, replica="", most=1)
    warmed = await Warming(job, TASK, cast(Any, Files()), cast(Any, lines), lambda: True).run()
    assert warmed == {"answered": 2, "failed": 1} and lines.ran == [1, 2, 2, 3, 3]
