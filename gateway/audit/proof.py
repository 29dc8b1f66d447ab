"""Proofs of single records: that a line is part of a log that was signed, without the other lines.

The lines of a segment, up to the checkpoint that covers the record, are the leaves of a Merkle tree (gateway.audit.merkle). Before its
root is signed, every line is held against the chain, and the chain against the signed checkpoint: a log that somebody changed is not signed
again.
Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any, Final, NamedTuple

import msgspec

from gateway.audit.chain import GENESIS, ChainError, check_line, read_line, read_lines
from gateway.audit.crypto import Signer
from gateway.audit.merkle import leaf_hash, root_and_path
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.record import CheckpointRecord, TreeHead
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment
from gateway.audit.signing_keys import trusted
from gateway.audit.sinks.file import checkpoints_name, list_segments
from gateway.core.clock import Clock
from gateway.core.errors import AuditUnproven

_BREATH: Final = 64
"""Lines between which other threads get their turn."""
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_checkpoint: Final = msgspec.json.Decoder(CheckpointRecord).decode
Segments = list[tuple[int, Path]]
Known = dict[tuple[str, int, int], tuple[list[bytes], int]]
"""Leaves and first line, by writer, segment and number of the checkpoint."""
MOST: Final = 1000
"""Records that are proven at once: callers choose the ids of their requests."""
_TREES: Final = 2
"""Trees that are remembered: of a full segment one takes some 50 MB."""


class Place(NamedTuple):
    """A line of a writer's log: its segment, how many lines are before it there, its number in the chain."""

    writer: str
    segment: int
    at: int
    seq: int
    line: bytes

    @property
    def record(self) -> dict[str, Any]:
        """The line, decoded."""
        return _decode(self.line)


def prove(directory: Path, signer: Signer, clock: Clock, request_id: str, opener: Opener = CLOSED) -> list[dict[str, Any]]:
    """A proof for each record of a request, the oldest first. Empty where the log has none. opener: of records that were encrypted as a
    whole. Raises AuditUnproven, OSError, GatehouseError."""
    needle = b'"request_id":' + msgspec.json.encode(request_id)
    there = (place for place in places(directory, (needle,)) if place.record.get("request_id") == request_id)
    chosen = list(islice(there, MOST + 1))
    if len(chosen) > MOST:
        raise AuditUnproven(f"more than {MOST} records have this request id: their caller chose it again and again")
    known: Known = {}
    found = [prove_line(directory, signer, clock, place, opener, known) for place in chosen]
    return sorted(found, key=lambda proof: proof["record"].get("time", 0.0))


def places(directory: Path, needles: Sequence[bytes]) -> Iterator[Place]:
    """The well-formed lines of all writers that hold one of the texts. Raises OSError."""
    for writer, segments in list_segments(directory).items() if directory.is_dir() else ():
        yield from _places(writer, segments, needles)


def prove_line(
    directory: Path, signer: Signer, clock: Clock, place: Place, opener: Opener = CLOSED, known: Known | None = None
) -> dict[str, Any]:
    """The proof of one line; with `opened`, what is sealed in it. known: the leaves of other lines' trees, which are read once. Raises
    AuditUnproven, OSError, GatehouseError."""
    proof = _proof(directory, signer, clock, list_segments(directory)[place.writer], place, {} if known is None else known)
    opened = opener.opened(place.writer, place.line)
    if opened is not None:
        proof["opened"] = {"salt": opened.salt, "record": opened.text.decode("ascii")}
    return proof


def told(proof: dict[str, Any]) -> dict[str, Any]:
    """What a proof proves: the line's record, with what was sealed in it."""
    opened = proof.get("opened")
    record: dict[str, Any] = proof["record"]
    return record if opened is None else {**record, **_decode(opened["record"])}


def _places(writer: str, segments: Segments, needles: Sequence[bytes]) -> Iterator[Place]:
    for number, path in segments:
        with open_segment(path) as file:
            for index, line in enumerate(read_lines(file)):
                if any(needle in line for needle in needles) and (claims := read_line(line)) is not None:
                    yield Place(writer, number, index, claims.seq, line)
                if index % _BREATH == 0:
                    sleep(0)


def _proof(directory: Path, signer: Signer, clock: Clock, segments: Segments, place: Place, known: Known) -> dict[str, Any]:
    checkpoint = _covering(directory, signer, place)
    tree_of = place.writer, place.segment, checkpoint.number
    if tree_of not in known:
        if len(known) >= _TREES:
            known.pop(next(iter(known)))
        known[tree_of] = _leaves(segments, place, checkpoint)
    leaves, first = known[tree_of]
    root, path = root_and_path(leaves, place.at)
    tree = TreeHead(
        time=clock.wall(),
        writer=place.writer,
        segment=place.segment,
        first=first,
        size=len(leaves),
        root=root.hex(),
        covers=checkpoint.covers,
        head=checkpoint.head,
        key=signer.key_id,
    )
    return {
        "record": _decode(place.line),
        "line": place.line[:-1].decode("ascii"),
        "leaf_hash": leaves[place.at].hex(),
        "leaf_index": place.at,
        "path": [node.hex() for node in path],
        "tree": msgspec.to_builtins(signer.sign_tree(tree)),
        "checkpoint": msgspec.to_builtins(checkpoint),
    }


def _covering(directory: Path, signer: Signer, place: Place) -> CheckpointRecord:
    """The first genuine checkpoint that covers a line."""
    path = directory / checkpoints_name(place.writer)
    verifier = trusted(signer.verifier, directory)
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            checkpoint = _decode_checkpoint(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if checkpoint.covers >= place.seq and checkpoint.writer == place.writer and verifier.genuine(checkpoint):
            return checkpoint
    raise AuditUnproven(
        f"line {place.seq} of the writer {place.writer} is not covered by a signed checkpoint yet: try again after the next one"
    )


def _leaves(segments: Segments, place: Place, checkpoint: CheckpointRecord) -> tuple[list[bytes], int]:
    """The hashes of the segment's lines as far as the checkpoint covers them, and the first line's number. Reads on to the line that the
    checkpoint covers, which may be in a later segment. Raises AuditUnproven where a line is not as it was written."""
    leaves: list[bytes] = []
    first = seq = 0
    head = GENESIS.encode()
    for number, path in segments:
        if number < place.segment:
            continue
        with open_segment(path) as file:
            for at, line in enumerate(read_lines(file)):
                if at == 0 and number == place.segment:
                    first, head = _start(line, path)
                    seq = first - 1
                seq += 1
                try:
                    head = check_line(line, seq, head)
                except ChainError as error:
                    raise AuditUnproven(f"{path.name}:{at + 1}: {error}: nothing of a changed log is proven") from error
                if number == place.segment:
                    leaves.append(leaf_hash(line[:-1]))
                if seq == checkpoint.covers:
                    if head.decode() != checkpoint.head:
                        raise AuditUnproven(f"{path.name}:{at + 1}: this is not the line that checkpoint {checkpoint.number} covers")
                    return leaves, first
                if at % _BREATH == 0:
                    sleep(0)
    raise AuditUnproven(f"the log of {place.writer} ends before line {checkpoint.covers}, which checkpoint {checkpoint.number} covers")


def _start(line: bytes, path: Path) -> tuple[int, bytes]:
    """The number of a segment's first line, and the hash before it."""
    claims, header = read_line(line), read_header(line)
    if claims is None or header is None:
        raise AuditUnproven(f"{path.name}:1: this is no header of a segment")
    return claims.seq, header.previous.encode()
