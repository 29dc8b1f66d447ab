"""Merkle trees after RFC 9162: every leaf of every small tree can be proven, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.merkle import Frontier, consistency_path, consistent, leaf_hash, node_hash, root_and_path, root_from, root_of


def mth(leaves: list[bytes]) -> bytes:
    """The definition of section 2.1.1, over leaves' hashes."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    return node_hash(mth(leaves[:half]), mth(leaves[half:]))


def test_known_roots() -> None:
    """Of the reference implementation of certificate transparency."""
    leaves = [
        leaf_hash(bytes.fromhex(text))
        for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
    ]
    assert root_and_path(leaves[:1], 0)[0].hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert root_and_path(leaves, 0)[0].hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@given(size=st.integers(1, 70), data=st.data())
def test_every_leaf_is_proven_at_its_place_only(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(size)]
    index = data.draw(st.integers(0, size - 1))
    root, path = root_and_path(leaves, index)
    assert root == mth(leaves)
    assert root_from(leaves[index], index, size, path) == root
    assert root_from(leaf_hash(b"other"), index, size, path) != root
    other = data.draw(st.integers(-1, size))
    assert other == index or root_from(leaves[index], other, size, path) != root
    assert root_from(leaves[index], index, size, [*path, root]) is None
    assert not path or root_from(leaves[index], index, size, path[:-1]) is None


@given(size=st.integers(0, 70), data=st.data())
def test_a_tree_goes_on_from_its_beginnings_and_from_nothing_else(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(size)]
    first = data.draw(st.integers(0, size))
    path = consistency_path(leaves, first)
    old, new = root_of(leaves[:first]), root_of(leaves)
    assert consistent(first, size, old, new, path)
    assert first == 0 or not consistent(first, size, old, leaf_hash(b"other"), path)
    assert first == 0 or not consistent(first, size, leaf_hash(b"other"), new, path)
    assert not consistent(first, size, old, new, [*path, new])
    assert not path or not consistent(first, size, old, new, path[:-1])
    if 0 < first < size:
        forged = [leaf_hash(b"forged"), *leaves[1:]]
        assert not consistent(first, size, old, root_of(forged), consistency_path(forged, first))


@given(size=st.integers(1, 70), split=st.integers(0, 70))
def test_a_tree_grows_leaf_by_leaf(size: int, split: int) -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(size)]
    grown = Frontier()
    for leaf in leaves[:split]:
        grown.add(leaf)
    again = Frontier(grown.size, grown.peaks)
    for leaf in leaves[split:]:
        again.add(leaf)
    assert again.root == mth(leaves) and len(again.peaks) == size.bit_count()
