"""A consistent-hash ring: immutable, weighted, the same in every process and after every restart.

Each member owns POINTS points (times its weight) on a circle of 2**64 positions; a key belongs to the member whose point
follows the key's position. The points come from BLAKE2b over the member's name, never from Python's salted `hash()`, and
the points of a smaller weight are a prefix of those of a larger one: a change of one member or one weight moves only the keys
that it must. With 512 points a member's share of the keys is within about 5% of its weight's; beyond 2,048 members each has fewer, so that
a ring is bounded: 105 of 10,000 members, whose shares are within about 10%, 10 of 100,000 (30%).

The bound on the load ("Consistent Hashing with Bounded Loads", Mirrokni, Thorup, Zadimoghaddam, 2018) is applied by
the selector that walks the ring: a key goes to the first member after it that is below bound x average load.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import cycle, islice, repeat
from struct import Struct

from gateway.core.slices import Steps, at_once

POINTS = 512
"""Points of a member of weight 1.0."""
HEAVIEST = 8.0
"""The largest weight on a ring; others are scaled with it, so that weights of 90 and 10 do not make 51,200 points."""
MOST = 1 << 20
"""Points of a ring with many members, about."""
TURN = 1 << 64
"""Positions on the circle."""
WALK = 64
"""Points beyond a turn that `owners` has."""
BLOCK = 512
"""Points made or sorted in one step."""
_PER_DIGEST = 8
"""Points taken from one 64-byte digest."""
_unpack = Struct(">8Q").unpack


def point_blocks(name: str, count: int) -> Iterator[list[int]]:
    """The first `count` points of a member, in blocks; a longer list starts with the shorter one."""
    encoded = name.encode()
    for first in range(0, count, BLOCK):
        points: list[int] = []
        for digest in range(first // _PER_DIGEST, -(-min(count, first + BLOCK) // _PER_DIGEST)):
            points.extend(_unpack(blake2b(b"%b\0%d" % (encoded, digest), digest_size=64).digest()))
        del points[count - first :]
        yield points


def counts_of(weights: Sequence[float]) -> list[int]:
    """The number of points of each weight: POINTS for 1.0, after the largest weight was scaled to between 1 and HEAVIEST, and less where
    that would be more than MOST in all; at least one."""
    largest = max(weights, default=0.0)
    scale = HEAVIEST / largest if largest > HEAVIEST else 1 / largest if 0 < largest < 1 else 1.0
    scale *= min(1.0, MOST / (POINTS * scale * sum(weights) or 1.0))
    return [max(1, round(POINTS * weight * scale)) if weight > 0 else 0 for weight in weights]


class Ring:
    """Finds the members for a key. Built once for each change of membership; members are known by their index.

    names: the members' names, all different. weights: relative to 1.0; a member of weight 0.0 owns nothing. Building costs about
    0.4 ms a member, with many of them less.
    `positions` ends with the first point again, one turn later, so that every key has a point after it; `owners` goes on WALK points
    further, so that a walk of as many steps need not begin again.
    """

    __slots__ = ("owners", "positions", "search", "size")

    def __init__(self, names: Sequence[str], weights: Sequence[float]) -> None:
        at_once(self._build(names, weights))

    @classmethod
    def steps(cls, names: Sequence[str], weights: Sequence[float]) -> Steps[Ring]:
        """The same in steps of a fraction of a millisecond, for a large pool."""
        ring = cls.__new__(cls)
        yield from ring._build(names, weights)
        return ring

    def _build(self, names: Sequence[str], weights: Sequence[float]) -> Steps[None]:
        if len(names) != len(weights) or len(set(names)) != len(names):
            raise ValueError("a ring needs distinct names, each with a weight")
        counts = counts_of(weights)
        order = sorted(range(len(names)), key=names.__getitem__)  # by name, so that the order in the configuration does not matter
        bits = len(names).bit_length()
        shift, parts = _parts(sum(counts))
        for rank, index in enumerate(order):
            for points in point_blocks(names[index], counts[index]):
                for point in points:
                    parts[point >> shift].append(point << bits | rank)  # one number each: a list of them is sorted fastest
                yield
        self.positions, self.owners = [], []
        for part in parts:
            part.sort()
            self.positions += [placed >> bits for placed in part]
            self.owners += [order[placed & ((1 << bits) - 1)] for placed in part]
            part.clear()
            yield
        self.size = sum(1 for count in counts if count)
        if self.positions:
            self.positions.append(self.positions[0] + TURN)
            self.owners += islice(cycle(self.owners[: WALK + 1]), WALK + 1)
        shift, starts = yield from _table(self.positions)
        self.search = (shift, starts, self.positions)

    def at(self, key: int) -> int:
        """Where on the ring the walk for a key (0 <= key < 2**64) starts: an index into `owners`. The ring must not be empty."""
        shift, starts, positions = self.search
        place = starts[key >> shift]
        while positions[place] <= key:
            place += 1
        return place

    def owner(self, key: int) -> int:
        """The index of the member that owns a key. The ring must not be empty."""
        return self.owners[self.at(key)]

    def walk(self, key: int) -> Iterator[int]:
        """All members that own points, each once, in the order in which a key falls to them."""
        if not self.positions:
            return
        start, seen = self.at(key), set[int]()
        for place in (*range(start, len(self.owners)), *range(start)):
            member = self.owners[place]
            if member not in seen:
                seen.add(member)
                yield member
                if len(seen) == self.size:
                    return


def _parts(points: int) -> tuple[int, list[list[int]]]:
    """(shift, lists): a point belongs to the list `point >> shift`. Sorted one by one, because sorting a large ring at once takes tens of
    milliseconds. The points are spread evenly: about BLOCK in each."""
    bits = max(0, (points // BLOCK).bit_length() - 1)
    return TURN.bit_length() - 1 - bits, [[] for _ in range(1 << bits)]


def _table(positions: Sequence[int]) -> Steps[tuple[int, array[int]]]:
    """(shift, starts): the search for a key starts at `starts[key >> shift]`, on average one or two steps before its place.

    The points are spread evenly, so with more cells than points almost nothing is left to search; a bisection costs four times as much.
    """
    cells = 1 << (len(positions)).bit_length()
    shift = (TURN // cells).bit_length() - 1
    starts = array("I")
    for place, position in enumerate(positions):
        starts.extend(repeat(place, min(position >> shift, cells - 1) + 1 - len(starts)))
        if place % BLOCK == 0:
            yield
    return shift, starts
