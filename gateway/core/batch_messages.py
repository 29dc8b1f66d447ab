"""What a worker asks the process that has the store about files and batches, and what that process asks a worker: to run a line.

caller: whose files or batches alone (gateway.core.conversations.owner_of); None for all of the tenant (as a worker
of an earlier release means it)."""

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
    """Its content is on the disk. keep: seconds. began: when the upload did (time.perf_counter, which the processes of a machine share)."""

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
    """id: "" for a key of the pepper. key: in hex."""

    id: str
    key: Secret


class FileKey(Ask[FileKeyGiven], frozen=True):
    """The key of a tenant's files. id: of the key that a file was written with; None: the one for new files."""

    tenant: str
    id: str | None = None


# --- worker -> control: batches


class BatchGiven(Message, frozen=True):
    batch: BatchRecord


class BatchesGiven(Message, frozen=True):
    batches: list[BatchRecord]
    more: bool = False


class MakeBatch(Ask[BatchGiven], frozen=True):
    """wanted: what the client has sent. began: as of AddFile; a worker of an earlier release does not say it."""

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
    """record: None for a key that is not there any more."""

    record: KeyRecord | None = None


class CreatorKey(Ask[CreatorKeyGiven], frozen=True):
    """The key with this id, which has made a batch."""

    id: str


# --- control -> worker


class LineRan(Message, frozen=True):
    """What came of a line. again: seconds after which it is to be tried again, as it did not reach an engine. ended: why the batch cannot
    go on (code and message): whoever made it may do nothing any more. lost: whether an engine had it is not known."""

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
    """free: how many lines may begin now. slots: that the worker has for the model; 0 where its engines sleep or are down, or where other
    workers have them."""

    free: int
    slots: int


class LineRoom(Ask[LinesFree], frozen=True):
    """How many lines may take a slot of the model now, with this share of them left free."""

    model: str
    spare: float


MESSAGES = (
    FileGiven, FilesGiven, FileRoom, AddFile, FindFile, ListFiles, DropFile, FileKeyGiven, FileKey,
    BatchGiven, BatchesGiven, MakeBatch, FindBatch, ListBatches, CancelBatch, CreatorKeyGiven, CreatorKey,
    LineRan, RunLine, LinesFree, LineRoom,
)  # fmt: skip
"""Every kind, for the table of gateway.app.workers.messages."""
