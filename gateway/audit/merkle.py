"""Merkle trees over lines, after RFC 9162, section 2.1: inclusion and consistency proofs. A leaf's hash is SHA-256(0x00, leaf), an inner
node's SHA-256(0x01, left, right); the left half of n leaves has the largest power of two that is less than n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class Frontier:
    """A tree that grows leaf by leaf, in as many hashes as its size has bits: the roots of its perfect subtrees, the largest first."""

    __slots__ = ("peaks", "size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self.size, self.peaks = size, list(peaks)

    def add(self, leaf: bytes) -> None:
        """leaf: its hash."""
        found, size, peaks = leaf, self.size, self.peaks
        while size & 1:
            found = sha256(b"\1" + peaks.pop() + found).digest()
            size >>= 1
        peaks.append(found)
        self.size += 1

    @property
    def root(self) -> bytes:
        """Section 2.1.1; of no leaves: the hash of nothing."""
        if not self.peaks:
            return sha256(b"").digest()
        found = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            found = node_hash(peak, found)
        return found


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over the leaves' hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.add(leaf)
    return frontier.root


def consistency_path(leaves: Sequence[bytes], size: int) -> list[bytes]:
    """What shows that the tree over the first `size` of the leaves' hashes is the beginning of the tree over all (section 2.1.4.1). Raises
    ValueError unless 0 <= size <= len(leaves)."""
    if not 0 <= size <= len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no beginning of {size}")
    path: list[bytes] = []
    rest, known = leaves, True
    while 0 < size < len(rest):
        half = 1 << ((len(rest) - 1).bit_length() - 1)
        if size <= half:
            path.append(root_of(rest[half:]))
            rest = rest[:half]
        else:
            path.append(root_of(rest[:half]))
            rest, size, known = rest[half:], size - half, False
    if size and not known:
        path.append(root_of(rest))
    return path[::-1]


def consistent(first: int, second: int, first_root: bytes, second_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether the path shows that a tree of `first` leaves with this root is the beginning of one of `second` leaves (section 2.1.4.2)."""
    if not 0 <= first <= second:
        return False
    if first == second:
        return not path and first_root == second_root
    if first == 0:
        return not path and first_root == sha256(b"").digest()
    nodes = list(path) if first & (first - 1) else [first_root, *path]
    if not nodes:
        return False
    at, last = first - 1, second - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node_hash(node, old), node_hash(node, new)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, node)
        at, last = at >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root
