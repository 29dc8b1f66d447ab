"""The records in a segment besides the pipeline's own, and what every line has in common.

A line is `{"seq":N,"kind":"intent",...,"hash":"<64 hex>"}` and a line feed; `seq` and `hash` come from gateway.audit.chain, the
fields between them from gateway.audit.encode.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.types import AuditRecord, EventRecord, IntentRecord, OutcomeRecord

MAX_RECORD: Final = 64 * 1024
"""Bytes of one encoded record. A longer one (a client may send any `model`) is shortened, and says so."""
MAX_LINE: Final = MAX_RECORD + 512


class SegmentRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header: the first line of every segment. previous: the hash of the line before it (64 zeros for the first segment).

    broken: `segment`, `line` and `reason`, when the writer found the log damaged at its start and went on in this segment. process: the
    process that writes it, by the name under which it takes from limits in Redis; empty without Redis.
    """

    time: float
    format: int
    segment: int
    writer: str
    previous: str
    config: int
    broken: dict[str, Any] | None = None
    process: str = ""


class Sighting(msgspec.Struct, frozen=True):
    """The newest checkpoint of another writer, as it was seen in the directory: its number, and what it covers."""

    number: int
    covers: int
    head: str


class CheckpointRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signed statement: at `time`, line `covers` of this writer's chain, in `segment`, had the hash `head`.

    number: 1, 2, 3... for each writer. key: the id of the signing key (gateway.audit.crypto.key_id). others: the checkpoints of the other
    writers that were new since this writer's last one. root: of the Merkle tree over the checkpoints 1 to number - 1, whose leaves are the
    lines of the checkpoints file; empty where they are not all known. peaks: the roots of that tree's perfect subtrees, every 1,024th
    time, so that a start needs to read only the last ones. signature: Ed25519, hex.
    """

    time: float
    writer: str
    number: int
    segment: int
    covers: int
    head: str
    key: str
    others: dict[str, Sighting] = {}
    root: str = ""
    peaks: tuple[str, ...] = ()
    signature: str = ""


class TreeHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signed statement: the Merkle tree over `size` lines of a segment, from line `first` on, has this root; and they are part of the
    chain whose line `covers` had the hash `head` (a checkpoint says so)."""

    time: float
    writer: str
    segment: int
    first: int
    size: int
    root: str
    covers: int
    head: str
    key: str
    signature: str = ""


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a record in place of what is encrypted. salt: in hex. n: the nonce, counted. data: ciphertext and tag."""

    v: int
    key: str
    salt: str
    n: int
    data: bytes


class Text(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is encrypted of a text, as MessagePack. body: as it was sent. texts: of a stream, by their places in its events. cut: it was
    longer."""

    body: str = ""
    texts: dict[str, str] = {}
    cut: bool = False


class Line(msgspec.Struct):
    """What every line has."""

    seq: int
    kind: str
    hash: str


Record = AuditRecord | SegmentRecord | CheckpointRecord

KINDS: Final[dict[type, bytes]] = {
    IntentRecord: b',"kind":"intent",',
    OutcomeRecord: b',"kind":"outcome",',
    EventRecord: b',"kind":"event",',
    SegmentRecord: b',"kind":"segment",',
    CheckpointRecord: b',"kind":"checkpoint",',
}
"""The bytes between the sequence number and the fields, by the record's type."""
