"""Counts denials of unknown callers per peer and second, so that a flood of them does not flood the audit log.

A peer's first denial in a second gets a record of its own. The others are counted and reported as one number after the second. The table is
bounded: peers that do not fit are counted together.
"""

from __future__ import annotations

from dataclasses import dataclass

OTHERS = "*"
"""Stands for all peers for which the table has no room."""


@dataclass(frozen=True, slots=True)
class Flood:
    """`count` denials of `peer`, with `code`, in the second that began at `second` (seconds of the given clock), beyond the first."""

    peer: str
    code: str
    second: int
    count: int


class FloodTable:
    """Pure: the caller passes the time, in seconds. Not thread-safe."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._second = -1
        self._counts: dict[tuple[str, str], int] = {}
        self._closed: list[Flood] = []

    def denied(self, peer: str, code: str, now: float) -> bool:
        """Counts a denial. Returns True for the first one of this peer and code in this second: it gets a record of its own."""
        second = int(now)
        if second != self._second:
            self._close()
            self._second = second
        counts = self._counts
        key = (peer, code)
        if key in counts:
            counts[key] += 1
            return False
        if len(counts) >= self._capacity:
            key = (OTHERS, code)
            counts[key] = counts.get(key, 1) + 1
            return False
        counts[key] = 1
        return True

    def drain(self, now: float) -> list[Flood]:
        """Returns, once, the counts of the seconds that have passed. Call it about every second."""
        if int(now) != self._second:
            self._close()
        closed, self._closed = self._closed, []
        return closed

    def _close(self) -> None:
        """Ends the current second. At most `capacity` floods wait to be drained; older ones are summed into OTHERS."""
        self._closed += [Flood(peer, code, self._second, count - 1) for (peer, code), count in self._counts.items() if count > 1]
        self._counts.clear()
        excess = len(self._closed) - self._capacity
        if excess > 0:
            lost = self._closed[: excess + 1]
            sums: dict[str, int] = {}
            for flood in lost:
                sums[flood.code] = sums.get(flood.code, 0) + flood.count
            merged = [Flood(OTHERS, code, lost[-1].second, count) for code, count in sums.items()]
            self._closed = merged + self._closed[excess + 1 :]
