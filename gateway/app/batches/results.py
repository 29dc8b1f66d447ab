"""Writes the output file and the error file of a batch that has ended: one line for each of its input, none lost. When it is broken
off it is begun anew, with new files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from gateway.app.clients.files import ClientFiles
from gateway.batches.lines import Asked
from gateway.batches.sealed import Damaged, SealedTexts, SealedWriter
from gateway.core.batches import BatchError, BatchRecord, FileRecord, LineRow
from gateway.core.errors import GatehouseError, NotFound
from gateway.store.batches import StoredBatches
from gateway.wire.openai.batches import failure

PAGE: Final = 200
PAGE_BYTES: Final = 4 * 1024**2
"""Outcomes that are read from the store at once: so many, and of so many bytes. Vectors may have megabytes a line."""
UNKNOWN: Final = ("outcome_unknown", "The gateway ended while the request ran: whether an engine answered it is not known.")
REASONS: Final = {
    "expired": ("batch_expired", "The batch expired before the request was run."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before the request was run."),
}


class _File:
    def __init__(self, name: str) -> None:
        self.name, self.id, self.key = name, "", ""
        self.writer: SealedWriter | None = None
        self.finished = False


class Results:
    """`records`: the files that were made, without their rows."""

    def __init__(self, kept: StoredBatches, files: ClientFiles, texts: SealedTexts, lease: float) -> None:
        self._kept, self._files, self._texts, self._lease = kept, files, texts, lease
        self._output, self._error = _File("output"), _File("error")
        self._unknown = 0
        self.records: list[FileRecord] = []

    async def write(self, batch: BatchRecord, rest: AsyncIterator[Asked] | None) -> BatchRecord:
        """The batch as it is in the end. rest: the whole input, where some lines have no outcome; they get one here. Raises StorageFull,
        LeaseLost, StoreUnavailable."""
        after = 0
        while page := await self._kept.outcomes(batch.id, after, PAGE, PAGE_BYTES):
            await self._append(batch, self._output, await asyncio.to_thread(self._opened, page, "done"))
            await self._append(batch, self._error, await asyncio.to_thread(self._opened, page, "failed"))
            after = page[-1].number
            await self._kept.advance(batch, self._lease)
        if rest is not None:
            try:
                await self._missing(batch, rest)
            except (Damaged, NotFound) as error:  # nothing more is known of the other lines
                batch = msgspec.structs.replace(batch, errors=batch.errors or (unreadable(error),))
        for file in (self._output, self._error):
            if file.writer is not None:
                await self._files.disk(file.writer.finish)
                file.finished = True
                self.records.append(self._record(batch, file))
        return msgspec.structs.replace(
            batch,
            state=ended_as(batch),
            output=self._output.id,
            error=self._error.id,
            failed=batch.failed + self._unknown,
            unknown=batch.unknown + self._unknown,
        )

    def _opened(self, page: list[LineRow], state: str) -> bytes:
        return b"".join(self._texts.open(row.number, row.sealed) for row in page if row.state == state and row.sealed)

    async def _missing(self, batch: BatchRecord, rest: AsyncIterator[Asked]) -> None:
        known = {row.number: row for row in await self._kept.begun(batch.id)}
        told = REASONS.get(ended_as(batch)) or _why(batch.errors)
        count, lines = 0, bytearray()
        try:
            async for line in rest:
                row = known.get(line.number)
                if row is not None and row.state in ("done", "failed"):
                    continue
                lines += self._missed(batch, line, row, told)
                count += 1
                if count % PAGE == 0:
                    await self._append(batch, self._error, bytes(lines))
                    lines.clear()
                    await self._kept.advance(batch, self._lease)
        finally:
            await self._append(batch, self._error, bytes(lines))

    def _missed(self, batch: BatchRecord, line: Asked, row: LineRow | None, told: tuple[str, str]) -> bytes:
        if row is not None and row.state == "begun":
            self._unknown += 1
            told = UNKNOWN
        return failure(batch.id, line.number, line.custom_id, *told)

    async def _append(self, batch: BatchRecord, file: _File, data: bytes) -> None:
        if not data:
            return
        if file.writer is None:
            file.id, file.key, file.writer = await self._files.result_writer(batch.creator.tenant)
        await self._files.disk(file.writer.write, data)

    def _record(self, batch: BatchRecord, file: _File) -> FileRecord:
        assert file.writer is not None
        tenant = batch.creator.tenant
        name = f"{batch.id}_{file.name}.jsonl"
        return FileRecord(
            id=file.id,
            tenant=tenant,
            owner=batch.creator.name,
            name=name,
            purpose="batch_output",
            size=file.writer.size,
            key=file.key,
        )

    async def abandon(self) -> None:
        """What is not whole. A whole file stays: whether the store has taken its row is not known after every error, and a file without a
        row is removed later (ClientFiles.sweep)."""
        for file in (self._output, self._error):
            if file.writer is not None and not file.finished:
                await self._files.disk(file.writer.abandon)


def ended_as(batch: BatchRecord) -> str:
    """The final state of a batch whose lines have all ended: from the store alone, so that every process says the same."""
    if batch.errors:
        return "failed"
    if "cancelling" in batch.moments:
        return "cancelled"
    return "completed" if batch.completed + batch.failed >= batch.total else "expired"


def unreadable(error: GatehouseError) -> BatchError:
    """The error of a batch whose input cannot be read, or not to its end."""
    return BatchError(code=error.code, message=error.message, param="input_file_id")


def _why(errors: tuple[BatchError, ...]) -> tuple[str, str]:
    return (errors[0].code, errors[0].message) if errors else UNKNOWN
