"""How often the store is written to while the lines of a batch run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.batches.book import BatchBook
from gateway.app.batches.run import BatchRun, Shared
from gateway.app.clients.file_rows import FileRows
from gateway.app.clients.files import ClientFiles
from gateway.core.batches import BatchRecord, Creator, LineOutcome
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.specs.batches import BatchesSpec, FilesSpec
from gateway.core.types import Principal
from gateway.store.batches import StoredBatches
from gateway.store.database import Database, make_engine
from gateway.store.files import StoredFiles
from gateway.store.tables import metadata

LINES = 36
AT_ONCE = 12


class Keys:
    async def current(self, tenant: str) -> tuple[str, bytes]:
        return "k", bytes(32)

    async def opening(self, tenant: str, id: str) -> bytes:
        return bytes(32)


class Engine:
    """Lines that take `seconds` and up to an eighth more."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.most, self.now, self.ran = seconds, 0, 0, list[int]()

    async def place(self, model: str, begun: int) -> str | None:
        return ""

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds * (1 + number % AT_ONCE / AT_ONCE / 8))
        self.now -= 1
        self.ran.append(number)
        return LineOutcome(200, b"{}", f"r-{number}", None)


class Counted(StoredBatches):
    steps = 0

    async def advance(self, *given: Any, **more: Any) -> BatchRecord:
        self.steps += 1
        return await super().advance(*given, **more)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    engine = make_engine("sqlite", tmp_path, 10.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    made = Database(engine, 10.0)
    yield made
    await made.aclose()


async def ran(database: Database, directory: Path, engine: Engine) -> tuple[BatchRecord, Counted]:
    """A batch of `LINES` lines, from its file to its results."""
    now = lambda connection: SystemClock().wall()  # noqa: E731 - one line says it
    kept, stored, record = Counted(database, now), StoredFiles(database, now), lambda *given, **more: None
    files = ClientFiles(FilesSpec(enabled=True, reserve_bytes=0), FileRows(stored, FilesSpec()), directory, Keys(), record)
    await files.start()
    upload = files.begin(Principal(id="app", tenant="acme", kind="api_key"))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    asked = [{"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions", "body": body} for number in range(LINES)]
    await upload.write("\n".join(map(json.dumps, asked)).encode())
    file = await upload.finish("in.jsonl", "batch", None)
    settings = BatchesSpec(enabled=True, parallel=AT_ONCE)
    book = BatchBook(settings, kept, stored, record)
    wanted = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    await book.make(Creator(id="app", tenant="acme", kind="api_key"), wanted)
    batch = await kept.take("here", settings.lease, [], [])
    assert batch is not None
    run = BatchRun(Shared(settings, kept, book, files, engine, lambda: False, SystemClock(), SystemEntropy()), batch)
    await asyncio.wait_for(run.run(), 60)
    return run.batch, kept


async def test_lines_that_end_soon_after_each_other_are_written_together(database: Database, tmp_path: Path) -> None:
    engine = Engine(0.6)
    batch, kept = await ran(database, tmp_path, engine)
    assert (batch.state, batch.completed, engine.most) == ("completed", LINES, AT_ONCE)
    assert sorted(engine.ran) == list(range(1, LINES + 1))
    assert kept.steps <= LINES / 2, "one for each line, and more, would be the obvious way"
