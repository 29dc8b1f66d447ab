"""What every store keeps to where a file and a batch meet."""

from __future__ import annotations

import asyncio
import time

import msgspec

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.errors import NotFound, RequestError
from tests.contract.store.place import Place

ROUNDS = 30
FILE = FileRecord(id="file-1", tenant="acme", owner="acme/app", name="in.jsonl", purpose="batch", size=1, key="")
BATCH = BatchRecord(
    id="batch_1", creator=Creator(id="app", tenant="acme", kind="api_key"), endpoint="/v1/embeddings", input="file-1", state="validating",
    created=0.0, expires=0.0, window="24h",
)  # fmt: skip


async def test_a_file_goes_or_its_batch_comes_but_never_both(place: Place) -> None:
    one, other = await place.open(), await place.open()
    for number in range(ROUNDS):
        file = msgspec.structs.replace(FILE, id=f"file-{number}")
        await one.files.add(file, 100.0, time.perf_counter(), ROUNDS, ROUNDS)
        batch = msgspec.structs.replace(BATCH, id=f"batch_{number}", input=file.id)
        made, gone = await asyncio.gather(
            one.batches.add(batch, 100.0, ROUNDS), other.files.delete("acme", file.id), return_exceptions=True
        )
        both = (type(made), type(gone))
        assert both in ((BatchRecord, RequestError), (NotFound, FileRecord)), both
