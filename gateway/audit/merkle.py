"""Merkle trees over lines, after RFC 9162, section 2.1: inclusion proofs. A leaf's hash is SHA-256(0x00, leaf), an inner node's
SHA-256(0x01, left, right); the left half of n leaves has the largest power of two that is less than n."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256


def leaf_hash(leaf: bytes) -> bytes:
    return sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root_and_path(leaves: Sequence[bytes], index: int) -> tuple[bytes, list[bytes]]:
    """The root over the leaves' hashes, and the inclusion path of one leaf, from its sibling up. Raises IndexError without such a leaf."""
    if not 0 <= index < len(leaves):
        raise IndexError(index)
    level, path = list(leaves), []
    while len(level) > 1:  # the same tree, level by level: a node without a sibling goes up as it is
        if (sibling := index ^ 1) < len(level):
            path.append(level[sibling])
        pairs = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = [*pairs, level[-1]] if len(level) % 2 else pairs
        index //= 2
    return level[0], path


def root_from(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that a path leads to (section 2.1.3.2); None where the path does not fit a tree of this size. leaf: its hash."""
    if not 0 <= index < size:
        return None
    at, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return None
        if at & 1 or at == last:
            found = node_hash(sibling, found)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            found = node_hash(found, sibling)
        at >>= 1
        last >>= 1
    return found if last == 0 else None
