"""One batch: how often the store is written to, what is read at once, and its end where the input is lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.app.batches import results
from gateway.app.batches.book import BatchBook
from gateway.app.batches.run import BatchRun, Shared
from gateway.app.clients.file_rows import FileRows
from gateway.app.clients.files import BLOCK, ClientFiles
from gateway.core.batches import BatchRecord, Creator, LineOutcome, LineRow
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import Shredded
from gateway.core.specs.batches import BatchesSpec, FilesSpec
from gateway.core.types import Principal
from gateway.store.batches import StoredBatches
from gateway.store.database import Database, make_engine
from gateway.store.files import StoredFiles
from gateway.store.tables import metadata

LINES = 36
AT_ONCE = 12
SETTINGS = BatchesSpec(enabled=True, parallel=AT_ONCE)


class Keys:
    shredded = False

    async def current(self, tenant: str) -> tuple[str, bytes]:
        return "k", bytes(32)

    async def opening(self, tenant: str, id: str) -> bytes:
        if self.shredded:
            raise Shredded("The data key was destroyed.")
        return bytes(32)


class Engine:
    """Lines that take `seconds` and up to an eighth more. first: called when the first one runs."""

    def __init__(self, seconds: float, answer: bytes = b"{}") -> None:
        self.seconds, self.most, self.now, self.ran = seconds, 0, 0, list[int]()
        self.answer = answer
        self.first: Callable[[], Awaitable[None]] | None = None

    async def place(self, model: str, begun: int) -> str | None:
        return ""

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        first, self.first = self.first, None
        if first is not None:
            await first()
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds * (1 + number % AT_ONCE / AT_ONCE / 8))
        self.now -= 1
        self.ran.append(number)
        return LineOutcome(200, self.answer, f"r-{number}", None)


class Counted(StoredBatches):
    steps = read = 0

    async def advance(self, *given: Any, **more: Any) -> BatchRecord:
        self.steps += 1
        return await super().advance(*given, **more)

    async def outcomes(self, *given: Any) -> list[LineRow]:
        page = await super().outcomes(*given)
        self.read = max(self.read, sum(len(row.sealed or b"") for row in page))
        return page


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    engine = make_engine("sqlite", tmp_path, 60.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    made = Database(engine, 60.0)
    yield made
    await made.aclose()


class Place:
    """A store and a directory with one batch of `LINES` lines. size: characters of each."""

    def __init__(self, database: Database, directory: Path, engine: Engine, size: int = 5) -> None:
        now = lambda connection: SystemClock().wall()  # noqa: E731 - one line says it
        self.kept, self.stored, self.keys = Counted(database, now), StoredFiles(database, now), Keys()
        record = lambda *given, **more: None  # noqa: E731 - one line says it
        self.files = ClientFiles(FilesSpec(enabled=True, reserve_bytes=0), FileRows(self.stored, FilesSpec()), directory, self.keys, record)
        self.book = BatchBook(SETTINGS, FilesSpec(), self.kept, self.stored, record)
        self.engine, self.size, self.input = engine, size, Path()

    async def make(self) -> BatchRecord:
        await self.files.start()
        upload = self.files.begin(Principal(id="app", tenant="acme", kind="api_key"))
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * self.size}]}
        asked = [{"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions", "body": body} for number in range(LINES)]
        await upload.write("\n".join(map(json.dumps, asked)).encode())
        file = await upload.finish("in.jsonl", "batch", None)
        self.input = self.files.path(file.id)
        wanted = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return await self.book.make(Creator(id="app", tenant="acme", kind="api_key"), wanted, None)

    async def run(self) -> BatchRecord:
        """From its file to its results."""
        batch = await self.kept.take("here", SETTINGS.lease, [], [])
        assert batch is not None
        shared = Shared(SETTINGS, self.kept, self.book, self.files, self.engine, lambda: False, SystemClock(), SystemEntropy())
        run = BatchRun(shared, batch)
        await asyncio.wait_for(run.run(), 60)
        return run.batch

    async def results(self, id: str) -> list[dict[str, Any]]:
        _, content = await self.files.read("acme", id)
        return [json.loads(line) for line in b"".join([block async for block in content]).splitlines()]


async def test_lines_that_end_soon_after_each_other_are_written_together(database: Database, tmp_path: Path) -> None:
    engine = Engine(0.6)
    place = Place(database, tmp_path, engine)
    await place.make()
    batch = await place.run()
    assert (batch.state, batch.completed, engine.most) == ("completed", LINES, AT_ONCE)
    assert sorted(engine.ran) == list(range(1, LINES + 1))
    assert place.kept.steps <= LINES / 2, "one for each line, and more, would be the obvious way"


async def test_large_answers_are_read_from_the_store_a_few_at_a_time(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 64 * 1024
    monkeypatch.setattr(results, "PAGE_BYTES", most)
    place = Place(database, tmp_path, Engine(0.0, json.dumps({"vector": "1" * (most // 3)}).encode()))
    await place.make()
    batch = await place.run()
    assert batch.completed == LINES and most / 2 < place.kept.read <= most
    assert sorted(one["custom_id"] for one in await place.results(batch.output)) == sorted(f"l{number}" for number in range(LINES))


async def test_a_batch_whose_input_is_damaged_ends_with_what_it_has(database: Database, tmp_path: Path) -> None:
    engine = Engine(0.0)
    place = Place(database, tmp_path, engine, BLOCK // 10)
    await place.make()

    async def damage() -> None:
        os.truncate(place.input, 2 * BLOCK)

    engine.first = damage
    batch = await place.run()
    assert batch.state == "failed" and [(one.code, one.param) for one in batch.errors] == [("file_damaged", "input_file_id")]
    done = await place.results(batch.output)
    assert 0 < len(done) == len(engine.ran) == batch.completed < LINES


async def test_a_cancelled_batch_ends_without_its_input(database: Database, tmp_path: Path) -> None:
    engine = Engine(0.0)
    place = Place(database, tmp_path, engine)
    made = await place.make()

    async def lose() -> None:
        place.input.unlink()
        await place.book.stop(made.id, None, "root")

    engine.first = lose
    batch = await place.run()
    assert batch.state == "failed" and [one.code for one in batch.errors] == ["file_missing"]
    assert len(await place.results(batch.output)) == batch.completed == len(engine.ran)


async def test_a_batch_ends_with_its_key(database: Database, tmp_path: Path) -> None:
    engine = Engine(0.0)
    place = Place(database, tmp_path, engine)
    await place.make()

    async def shred() -> None:
        place.keys.shredded = True

    engine.first = shred
    batch = await place.run()
    assert (batch.state, batch.output, batch.error) == ("failed", "", "") and [one.code for one in batch.errors] == ["shredded"]
