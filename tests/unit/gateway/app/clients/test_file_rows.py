"""Files that have expired, in a real database by a clock of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from gateway.app.clients.file_rows import FileSweep
from gateway.app.clients.files import ClientFiles
from gateway.core.batches import FileRecord
from gateway.core.specs.batches import FilesSpec
from gateway.core.tasks import TaskOwner
from gateway.store.database import Database, make_engine
from gateway.store.files import StoredFiles
from gateway.store.tables import metadata


async def test_all_that_has_expired_goes_in_one_round(tmp_path: Path) -> None:
    """Its content too, however much it is: a round is a minute after the last."""
    engine = make_engine("sqlite", tmp_path, 10.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    database, clock, told = Database(engine, 10.0), [1_000_000.0], list[str]()
    kept = StoredFiles(database, lambda connection: clock[0])
    files = ClientFiles(FilesSpec(), cast(Any, kept), tmp_path, cast(Any, None), lambda event, target, *_, **__: told.append(target))
    await files.start()
    for number in range(230):
        record = FileRecord(id=f"file-{number:03}", tenant="acme", owner="app", name="x", purpose="batch", size=1, key="")
        await kept.add(record, 2000.0 if number == 7 else 100.0, 0.0, 1000, 1000)
        (files.directory / record.id).write_bytes(b"x")
    clock[0] += 1000
    await FileSweep(kept, files, TaskOwner("test")).sweep()
    assert [path.name for path in files.directory.iterdir()] == ["file-007"]
    assert len(told) == 229 and await kept.totals() == (1, 1)
    await database.aclose()
