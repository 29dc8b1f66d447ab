"""Messages about files and batches: what workers ask the process with the store, and how that process has a worker run a line.

caller: only the files or batches of this owner (gateway.core.conversations.owner_of); None: the whole tenant's, which is also what a worker
of an earlier release asks for."""

from __future__ import annotations

from typing import Any

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.messages import Ask, Done, Message
from gateway.core.secret import Secret
from gateway.core.storage import KeyRecord

# --- worker -> control: files


class FileGiven(Message, frozen=True):
    file: FileRecord


class FilesGiven(Message, frozen=True):
    """more: whether there are more after these."""

    files: list[FileRecord]
    more: bool = False


class FileRoom(Ask[Done], frozen=True):
    """Whether the tenant may have one more file. Refused with QuotaExceeded."""

    tenant: str


class AddFile(Ask[FileGiven], frozen=True):
    """Adds the record of a file whose content is on the disk. keep: for how many seconds. began: when the upload began (time.perf_counter,
    which all processes of a machine share)."""

    file: FileRecord
    keep: float
    began: float


class FindFile(Ask[FileGiven], frozen=True):
    tenant: str
    id: str
    caller: str | None = None


class ListFiles(Ask[FilesGiven], frozen=True):
    tenant: str
    limit: int
    after: str | None
    newest: bool
    purpose: str | None
    caller: str | None = None


class DropFile(Ask[FileGiven], frozen=True):
    """Forgets the file; whoever asks removes the content."""

    tenant: str
    id: str
    caller: str | None = None


class FileKeyGiven(Message, frozen=True):
    """id: "" for a key that is derived from the pepper. key: in hex."""

    id: str
    key: Secret


class FileKey(Ask[FileKeyGiven], frozen=True):
    """Asks for a key of a tenant's files. id: the key with which a file was written; None: the one for new files."""

    tenant: str
    id: str | None = None


# --- worker -> control: batches


class BatchGiven(Message, frozen=True):
    batch: BatchRecord


class BatchesGiven(Message, frozen=True):
    batches: list[BatchRecord]
    more: bool = False


class MakeBatch(Ask[BatchGiven], frozen=True):
    """wanted: what the client sent. began: as in AddFile; workers of earlier releases leave it out."""

    creator: Creator
    wanted: dict[str, Any]
    began: float | None = None


class FindBatch(Ask[BatchGiven], frozen=True):
    tenant: str
    id: str
    caller: str | None = None


class ListBatches(Ask[BatchesGiven], frozen=True):
    tenant: str
    limit: int
    after: str | None
    caller: str | None = None


class CancelBatch(Ask[BatchGiven], frozen=True):
    tenant: str
    id: str
    actor: str
    caller: str | None = None


class CreatorKeyGiven(Message, frozen=True):
    """record: None if the key no longer exists."""

    record: KeyRecord | None = None


class CreatorKey(Ask[CreatorKeyGiven], frozen=True):
    """Asks for the key that created a batch."""

    id: str


# --- control -> worker


class LineRan(Message, frozen=True):
    """How a line ended. again: it did not reach an engine and is to be tried again after so many seconds. ended: why the batch cannot go on
    (code and message), since its creator has lost all rights. lost: it is not known whether an engine ran the line."""

    status: int = 0
    body: bytes = b""
    request_id: str = ""
    again: float | None = None
    ended: tuple[str, str] | None = None
    lost: bool = False


class RunLine(Ask[LineRan], frozen=True):
    """Runs one line of a batch. number: of the line."""

    batch: str
    creator: Creator
    endpoint: str
    number: int
    attempt: int
    body: bytes


class LinesFree(Message, frozen=True):
    """free: how many lines may begin now. slots: how many the worker has for the model; 0 while its engines sleep or are down, or while
    other workers have them all."""

    free: int
    slots: int


class LineRoom(Ask[LinesFree], frozen=True):
    """Asks how many lines may take a slot of the model now, if this share of the slots must stay free."""

    model: str
    spare: float


MESSAGES = (
    FileGiven, FilesGiven, FileRoom, AddFile, FindFile, ListFiles, DropFile, FileKeyGiven, FileKey,
    BatchGiven, BatchesGiven, MakeBatch, FindBatch, ListBatches, CancelBatch, CreatorKeyGiven, CreatorKey,
    LineRan, RunLine, LinesFree, LineRoom,
)  # fmt: skip
"""Every kind, for the table of gateway.app.workers.messages."""
