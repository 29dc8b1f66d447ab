"""Seals closed segments and compresses them. Everything here blocks; `turn` is called now and then, so that others get on, and may raise
to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.chain import ChainError, check_line, read_line, read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.merkle import Frontier, leaf_hash
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_checkpoint, read_header
from gateway.audit.segments import FRAME, SUFFIX, compress, is_compressed, open_segment
from gateway.audit.sinks.file import sync_directory
from gateway.audit.statements import Seal

_BREATH: Final = 64
"""Lines between two turns."""
_KINDS: Final = tuple((b'"kind":"%b"' % kind.encode(), kind) for kind in ("intent", "outcome", "event", "checkpoint", "segment"))
_HEAD: Final = 48


class NotSealed(Exception):
    """A segment is not as it was written, or nothing signed covers it. The message says where and why."""


class _Time(msgspec.Struct):
    time: float = 0.0


_time_of: Final = msgspec.json.Decoder(_Time).decode


def seal_of(writer: str, number: int, path: Path, after: Path, verifier: CheckpointVerifier, time: float, turn: Callable[[], None]) -> Seal:
    """What a closed segment holds; not signed yet. Every line is held against the chain, and the last one against a signed checkpoint in
    the segment or the header of the next (`after`). Raises NotSealed, OSError."""
    digest, tree, records = sha256(), Frontier(), dict.fromkeys(sorted(kind for _, kind in _KINDS), 0)
    size, at, last = 0, 0, b""
    seq, head, first, began = 0, b"", 0, 0.0
    with open_segment(path) as file:
        for line in read_lines(file):
            if at % _BREATH == 0:
                turn()
            at += 1
            try:
                if at == 1:
                    first, head, began = _begin(line, writer, number)
                    previous, seq = head, first - 1
                seq += 1
                head = check_line(line, seq, head)
            except ChainError as error:
                raise NotSealed(f"{path.name}:{at}: {error}") from error
            tree.add(leaf_hash(line[:-1]))
            digest.update(line)
            size += len(line)
            start = line[:_HEAD]
            for mark, kind in _KINDS:
                if mark in start:
                    records[kind] += 1
                    break
            last = line
    if not last:
        raise NotSealed(f"{path.name}: the segment is empty")
    if not _covered(last, seq, verifier) and not _continued(after, seq, head):
        raise NotSealed(f"{path.name}:{at}: neither a signed checkpoint nor the next segment goes on from this line")
    return Seal(
        time=time,
        writer=writer,
        segment=number,
        first=first,
        last=seq,
        bytes=size,
        sha256=digest.hexdigest(),
        root=tree.root.hex(),
        previous=previous.decode(),
        head=head.decode(),
        began=began,
        ended=max(began, _time_of(last).time),
        records={kind: count for kind, count in records.items() if count},
    )


def _begin(line: bytes, writer: str, number: int) -> tuple[int, bytes, float]:
    claims, header = read_line(line), read_header(line)
    if claims is None or header is None:
        raise ChainError("the segment has no header")
    if (header.writer, header.segment) != (writer, number):
        raise ChainError(f"this is segment {header.segment} of writer {header.writer}")
    return claims.seq, header.previous.encode(), header.time


def _covered(last: bytes, seq: int, verifier: CheckpointVerifier) -> bool:
    checkpoint = read_checkpoint(last) if b'"kind":"checkpoint"' in last[:_HEAD] else None
    return checkpoint is not None and checkpoint.covers == seq - 1 and verifier.genuine(checkpoint)


def _continued(after: Path, seq: int, head: bytes) -> bool:
    with open_segment(after) as file:
        line = file.readline(MAX_LINE)
    claims, header = read_line(line), read_header(line)
    return claims is not None and header is not None and (claims.seq, header.previous.encode()) == (seq + 1, head)


def compress_segment(path: Path, seal: Seal, turn: Callable[[], None]) -> Path:
    """Puts the compressed form of a sealed segment in its place. It is on the disk, and was read back and found to hold the very lines
    that were sealed, before the lines are removed: whenever this ends, one of the two is whole. Raises NotSealed, OSError."""
    if is_compressed(path):
        return path
    target = path.with_name(path.name + SUFFIX)
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}{SUFFIX}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as packed, path.open("rb") as plain:
            compress(_Turning(plain, turn), packed)  # type: ignore[arg-type]
            packed.flush()
            os.fsync(packed.fileno())
        _same(draft, seal, turn)
        times = path.stat()
        os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)
    path.unlink()
    sync_directory(path.parent)
    return target


def clean(directory: Path) -> None:
    """Removes what a compression left that was interrupted. Raises OSError."""
    for draft in directory.glob(f".audit-*{SUFFIX}"):
        draft.unlink(missing_ok=True)
    for packed in directory.glob(f"audit-*{SUFFIX}"):  # both are whole; the lines are the older
        if packed.with_name(packed.name.removesuffix(SUFFIX)).exists():
            packed.unlink()


class _Turning:
    def __init__(self, file: object, turn: Callable[[], None]) -> None:
        self._read, self._turn = file.read, turn  # type: ignore[attr-defined]

    def read(self, size: int) -> bytes:
        self._turn()
        found: bytes = self._read(size)
        return found


def _same(path: Path, seal: Seal, turn: Callable[[], None]) -> None:
    digest = sha256()
    with open_segment(path) as file:
        while block := file.read(FRAME):
            turn()
            digest.update(block)
    if digest.hexdigest() != seal.sha256:
        raise NotSealed(f"{path.name} does not hold the lines that were sealed")
