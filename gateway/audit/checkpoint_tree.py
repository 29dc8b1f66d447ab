"""The Merkle tree over a writer's checkpoints (RFC 9162): its leaves are the lines of the checkpoints file, without their line feeds.

Each checkpoint signs the root over all before it. So two of them, however far apart, are shown to belong to one history by a few hashes,
without the log; and what a checkpoint says of a line's hash covers every line before it. Everything here blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.audit.chain import read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.merkle import Frontier, consistency_path, leaf_hash, root_and_path
from gateway.audit.record import CheckpointRecord
from gateway.audit.repair import read_checkpoint
from gateway.audit.sinks.file import checkpoints_name
from gateway.core.errors import AuditUnproven

PEAKS_EVERY: Final = 1024
"""Checkpoints from one that has `peaks` to the next."""
_RECENT: Final = 4 * 1024 * 1024
"""Bytes at the end of a checkpoints file where one that has `peaks` is looked for."""


def tree_over(path: Path) -> Frontier | None:
    """The tree over the checkpoints of a file; None where not all of them are known. Raises OSError."""
    if not path.exists():
        return Frontier()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for begin in (max(0, size - _RECENT), 0):
            file.seek(begin)
            if begin:
                file.readline()
            found, number = (None, 0) if begin else (Frontier(), 0)
            for line in read_lines(file):
                found, number = _grown(found, number, line)
            if found is not None:
                return found
    return None


def _grown(tree: Frontier | None, number: int, line: bytes) -> tuple[Frontier | None, int]:
    checkpoint = read_checkpoint(line) if line[-1:] == b"\n" else None
    if checkpoint is None:
        return None, 0
    if tree is None:
        if not checkpoint.peaks:
            return None, 0
        tree = Frontier(checkpoint.number - 1, map(bytes.fromhex, checkpoint.peaks))
    elif checkpoint.number != number + 1:
        return None, 0
    tree.add(leaf_hash(line[:-1]))
    return tree, checkpoint.number


def rooted(checkpoint: CheckpointRecord, tree: Frontier | None) -> CheckpointRecord:
    """The checkpoint with what it says of those before it."""
    if tree is None or tree.size != checkpoint.number - 1:
        return checkpoint
    peaks = tuple(peak.hex() for peak in tree.peaks) if tree.size and tree.size % PEAKS_EVERY == 0 else ()
    return msgspec.structs.replace(checkpoint, root=tree.root.hex(), peaks=peaks)


def prove_consistency(directory: Path, verifier: CheckpointVerifier, writer: str, first: int, second: int | None = None) -> dict[str, Any]:
    """That the checkpoint `second` (the newest, unless it is said) goes on from the history that `first` signed. Raises AuditUnproven where
    that cannot be shown, OSError."""
    path = directory / checkpoints_name(writer)
    if not path.exists():
        raise AuditUnproven(f"there are no checkpoints of a writer {writer!r}")
    with path.open("rb") as file:
        lines = [line[:-1] for line in read_lines(file) if line[-1:] == b"\n"]
    second = len(lines) if second is None else second
    if not 0 < first < second <= len(lines):
        raise AuditUnproven(f"the writer {writer} has the checkpoints 1 to {len(lines)}: give two of them, the older one first")
    older, newer = (read_checkpoint(lines[number - 1]) for number in (first, second))
    for number, checkpoint in ((first, older), (second, newer)):
        if checkpoint is None or checkpoint.number != number or not verifier.genuine(checkpoint):
            raise AuditUnproven(f"line {number} of {path.name} is not the genuine checkpoint {number}")
        if not checkpoint.root:
            raise AuditUnproven(f"checkpoint {number} of {writer} says nothing of those before it: an older version wrote it")
    assert older is not None and newer is not None
    leaves = [leaf_hash(line) for line in lines[: second - 1]]
    root, inclusion = root_and_path(leaves, first - 1)
    if root.hex() != newer.root:
        raise AuditUnproven(f"the checkpoints before {second} are not those that it signed: nothing of a changed log is proven")
    return {
        "writer": writer,
        "first": msgspec.to_builtins(older),
        "second": msgspec.to_builtins(newer),
        "first_line": lines[first - 1].decode("ascii"),
        "consistency": [node.hex() for node in consistency_path(leaves, first - 1)],
        "inclusion": [node.hex() for node in inclusion],
    }
