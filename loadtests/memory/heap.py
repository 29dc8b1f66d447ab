"""What glibc's main heap holds, read from outside while the process runs: `python -m loadtests.memory.heap PID [TOP]`.

Every thread keeps up to seven freed blocks of each of 64 sizes to itself (glibc's tcache, at most 233 KiB a thread). To mallinfo2 they are
in use, so a process with many threads seems to grow until these caches are full. Linux with glibc 2.34 or newer, 64 bits.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HEADER, LARGEST_CACHED, BINS = 16, 1040, 64
FLAGS = 7
"""Of a block's size: bits that say something else."""
KIB = 1024


class Heap(NamedTuple):
    """Bytes by the size of the blocks."""

    used: Counter[int]
    cached: Counter[int]
    free: Counter[int]


def walk(pid: int) -> Heap:
    """The blocks of a process's main heap. It goes on meanwhile, so a block or two may be told wrongly.

    Raises OSError if its memory may not be read, ValueError if it has no such heap.
    """
    span = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[heap\]$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    if span is None:
        raise ValueError(f"process {pid} has no heap of glibc's")
    start, end = (int(address, 16) for address in span.groups())
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(start)
        data = memory.read(end - start)
    heap, mark = Heap(Counter(), Counter(), Counter()), _mark(data, start)
    at = 0
    while at + 2 * HEADER <= len(data):
        size = _word(data, at + 8) & ~FLAGS
        if size < 2 * HEADER or at + size + HEADER > len(data):
            break  # the rest is not in any block yet
        if not _word(data, at + size + 8) & 1:
            heap.free[size] += size
        elif mark and size <= LARGEST_CACHED and _word(data, at + HEADER + 8) == mark:
            heap.cached[size] += size
        else:
            heap.used[size] += size
        at += size
    return heap


def _word(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _mark(data: bytes, start: int) -> int:
    """The process's random number that glibc writes into each block that a thread caches; 0 if none is found.

    The first block of the heap is the main thread's cache: 64 counts of 16 bits, then the first block of each size.
    """
    marks: Counter[int] = Counter()
    for block in struct.unpack_from(f"<{BINS}Q", data, HEADER + 2 * BINS):
        if start <= block < start + len(data) - HEADER:
            marks[_word(data, block - start + 8)] += 1
    marks.pop(0, None)
    return marks.most_common(1)[0][0] if marks else 0


def main() -> None:
    heap, top = walk(int(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print("KiB: " + ", ".join(f"{name} {sum(sizes.values()) // KIB:,}" for name, sizes in heap._asdict().items()))
    print(f"{'block':>10} {'used':>10} {'cached':>10} {'free':>10}  (bytes)")
    for size, _ in sum(heap, Counter[int]()).most_common(top):
        print(f"{size:>10,} {heap.used[size]:>10,} {heap.cached[size]:>10,} {heap.free[size]:>10,}")


if __name__ == "__main__":
    main()
