"""Signed statements about whole segments: what one held when it was closed, and that it was taken away as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gateway.audit.crypto import CheckpointVerifier, Signer
from gateway.audit.encode import encode_json
from gateway.audit.sinks.file import AppendFile

SEAL: Final = b"gatehouse audit seal 1\n"
TOMBSTONE: Final = b"gatehouse audit tombstone 1\n"


class Seal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A closed segment: lines `first` to `last` of the writer's chain, the Merkle root over them (RFC 9162, section 2.1; leaves without
    their line feeds), the hash before the first and that of the last.

    bytes, sha256: of its lines as a file. began, ended: the times of its header and of its last record, in seconds since the epoch.
    records: how many of each kind.
    """

    time: float
    writer: str
    segment: int
    first: int
    last: int
    bytes: int
    sha256: str
    root: str
    previous: str
    head: str
    began: float
    ended: float
    records: dict[str, int]
    key: str = ""
    signature: str = ""


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sealed segment that was taken away, and why: `age` or `size`. archived: where a copy was put before."""

    time: float
    writer: str
    segment: int
    first: int
    last: int
    root: str
    previous: str
    head: str
    began: float
    ended: float
    records: dict[str, int]
    why: str
    archived: str = ""
    key: str = ""
    signature: str = ""


T = TypeVar("T", Seal, Tombstone)


def seals_name(writer: str) -> str:
    return f"seals-{writer}.jsonl"


def tombstones_name(writer: str) -> str:
    return f"tombstones-{writer}.jsonl"


def tombstone(seal: Seal, time: float, why: str, archived: str) -> Tombstone:
    """What is left of a sealed segment; not signed yet."""
    kept: dict[str, Any] = {name: getattr(seal, name) for name in Tombstone.__struct_fields__ if name in Seal.__struct_fields__}
    return Tombstone(**{**kept, "time": time, "why": why, "archived": archived, "key": "", "signature": ""})


class Statements:
    """A file of statements. found: the genuine ones by segment; the first one about a segment counts. bad: the lines (from 1 on) of all
    others, with the reason. Blocks; raises OSError."""

    def __init__(self, path: Path, kind: type[T], context: bytes, writer: str, verifier: CheckpointVerifier) -> None:
        self.found: dict[int, Any] = {}
        self.bad: list[tuple[int, str]] = []
        decode = msgspec.json.Decoder(kind).decode
        data = path.read_bytes() if path.exists() else b""
        self.size = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self.size].splitlines(), start=1):
            try:
                one = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.bad.append((number, "this is not a signed statement about a segment"))
                continue
            if not verifier.confirms(context, one):
                self.bad.append((number, "the signature is not genuine"))
            elif one.writer != writer:
                self.bad.append((number, f"this belongs to writer {one.writer}"))
            elif self.found.setdefault(one.segment, one) != one:
                self.bad.append((number, f"segment {one.segment} is spoken of twice"))


def seals(directory: Path, writer: str, verifier: CheckpointVerifier) -> Statements:
    return Statements(directory / seals_name(writer), Seal, SEAL, writer, verifier)


def tombstones(directory: Path, writer: str, verifier: CheckpointVerifier) -> Statements:
    return Statements(directory / tombstones_name(writer), Tombstone, TOMBSTONE, writer, verifier)


def append(path: Path, context: bytes, statement: T, signer: Signer, size: int) -> T:
    """Signs a statement and adds it to a file behind its last whole line, on the disk. size: up to that line's end. Raises OSError."""
    signed: T = signer.state(context, statement)
    file = AppendFile(path, create=not path.exists())
    try:
        file.cut(size)
        file.append(encode_json(signed) + b"\n", sync=True)
    finally:
        file.close()
    return signed
