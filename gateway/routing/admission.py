"""Who is next when every slot is taken: a bounded queue, pure (no clock, no loop), one per pool.

Order: priority class first (interactive, standard, batch; from the caller's policy, never from a header), then deficit round robin
among the tenants of a class ("Efficient Fair Queuing using Deficit Round Robin", Shreedhar and Varghese, 1995),
over the estimated tokens of the requests and weighted by tenant. Rounds in which nobody's deficit reaches are skipped by arithmetic.

When the queue is full, the newest entry of whoever holds the most of the lowest class gives way, if the newcomer deserves it more: a greedy
tenant fills the queue only with what others leave ("longest queue drop"). Deadlines are absolute monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from gateway.core.types import Priority

RANKS: dict[Priority, int] = {"interactive": 0, "standard": 1, "batch": 2}


class Entry:
    """One request that waits. cost: estimated tokens, at least 1. A queue hands it out, drops it, or forgets it, once."""

    __slots__ = ("cost", "deadline", "queued", "rank", "tenant")

    def __init__(self, tenant: str, priority: Priority, cost: int, deadline: float) -> None:
        self.tenant, self.rank, self.cost, self.deadline = tenant, RANKS[priority], max(1, cost), deadline
        self.queued = False


class _Line:
    """One tenant's entries of one class."""

    __slots__ = ("deficit", "entries", "tenant", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant, self.weight = tenant, weight
        self.entries: deque[Entry] = deque()
        self.deficit = 0.0


class _Class:
    """The lines of one priority class that have entries, in the order of their turns."""

    __slots__ = ("_lines", "_turns", "size", "weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self._lines: dict[str, _Line] = {}
        self._turns: deque[_Line] = deque()
        self.size = 0

    def append(self, entry: Entry) -> None:
        line = self._lines.get(entry.tenant)
        if line is None:
            line = self._lines[entry.tenant] = _Line(entry.tenant, max(0.001, self.weights.get(entry.tenant, 1.0)))
            self._turns.append(line)
        line.entries.append(entry)
        self.size += 1

    def remove(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        line.entries.remove(entry)
        self._left(line)

    def pop(self, usable: Callable[[Entry], bool]) -> Entry | None:
        """The next entry that `usable` accepts. A line whose first entry is not usable is passed over, its deficit kept."""
        candidates = [line for line in self._turns if usable(line.entries[0])]
        if not candidates:
            return None
        line = next((line for line in candidates if line.deficit >= line.entries[0].cost), None)
        if line is None:
            # Each round adds its weight (in tokens) to every line; the line that needs the fewest rounds goes first.
            rounds = min((line.entries[0].cost - line.deficit) / line.weight for line in candidates)
            for waiting in candidates:
                waiting.deficit += rounds * waiting.weight
            line = next(line for line in candidates if line.deficit >= line.entries[0].cost * (1 - 1e-9))
        entry = line.entries.popleft()
        line.deficit = max(0.0, line.deficit - entry.cost)
        self._turns.remove(line)
        self._turns.append(line)
        self._left(line)
        return entry

    def greediest(self) -> _Line | None:
        """The line with the most entries for its weight."""
        return max(self._turns, key=lambda line: len(line.entries) / line.weight, default=None)

    def share(self, tenant: str) -> float:
        """How much a tenant holds for its weight."""
        line = self._lines.get(tenant)
        return len(line.entries) / line.weight if line is not None else 0.0

    def entries(self) -> Iterator[Entry]:
        for line in self._turns:
            yield from line.entries

    def _left(self, line: _Line) -> None:
        self.size -= 1
        if not line.entries:
            del self._lines[line.tenant]
            self._turns.remove(line)


class AdmissionQueue:
    """The queue of one pool. size: most entries at once. weights: of tenants; 1.0 for those that are not named."""

    __slots__ = ("_classes", "_deadlines", "_length", "_number", "size")

    def __init__(self, size: int, weights: Mapping[str, float]) -> None:
        self.size = size
        self._classes = tuple(_Class(weights) for _ in RANKS)
        self._deadlines: list[tuple[float, int, Entry]] = []
        self._length = 0
        self._number = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        for lines in self._classes:
            yield from lines.entries()

    def ahead(self, rank: int) -> int:
        """How many entries are of this class or a better one."""
        return sum(lines.size for lines in self._classes[: rank + 1])

    def push(self, entry: Entry) -> Entry | None:
        """Queues an entry. Returns who had to give way: None, another entry, or this one (it was not queued)."""
        victim: Entry | None = None
        if self._length >= self.size:
            victim = self._victim(entry)
            if victim is entry:
                return entry
            self._remove(victim)
        self._classes[entry.rank].append(entry)
        entry.queued = True
        self._length += 1
        self._number += 1
        if len(self._deadlines) > 64 + 2 * self._length:
            self._deadlines = [item for item in self._deadlines if item[2].queued]
            heapify(self._deadlines)
        heappush(self._deadlines, (entry.deadline, self._number, entry))
        return victim

    def pop(self, usable: Callable[[Entry], bool]) -> Entry | None:
        """Takes out the next entry that `usable` accepts (a retry may have to wait for another endpoint than the free one)."""
        for lines in self._classes:
            if lines.size and (entry := lines.pop(usable)) is not None:
                entry.queued = False
                self._length -= 1
                return entry
        return None

    def cancel(self, entry: Entry) -> bool:
        """Forgets an entry; False when it is not queued any more."""
        if not entry.queued:
            return False
        self._remove(entry)
        return True

    def expire(self, now: float) -> list[Entry]:
        """Takes out all entries whose deadline has come."""
        late: list[Entry] = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].queued):
            _, _, entry = heappop(self._deadlines)
            if entry.queued:
                self._remove(entry)
                late.append(entry)
        return late

    def _remove(self, entry: Entry) -> None:
        self._classes[entry.rank].remove(entry)
        entry.queued = False
        self._length -= 1

    def _victim(self, newcomer: Entry) -> Entry:
        for rank in range(len(self._classes) - 1, newcomer.rank, -1):
            line = self._classes[rank].greediest()
            if line is not None:
                return line.entries[-1]
        lines = self._classes[newcomer.rank]
        line = lines.greediest()
        if line is None or len(line.entries) / line.weight <= lines.share(newcomer.tenant) + 1 / max(
            0.001, lines.weights.get(newcomer.tenant, 1.0)
        ):
            return newcomer
        return line.entries[-1]
