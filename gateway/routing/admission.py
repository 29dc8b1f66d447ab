"""The queue of one pool: who gets the next free slot when all are taken. Bounded and pure (no clock, no loop).

Order: priority class first (interactive, standard, batch; from the caller's policy, never from a header), then deficit round robin
among the tenants of a class ("Efficient Fair Queuing using Deficit Round Robin", Shreedhar and Varghese, 1995),
over the estimated tokens of the requests and weighted by tenant. Rounds in which no deficit is large enough are skipped by arithmetic.
Within a tenant's line, requests are served in order of arrival. A retry avoids the endpoints that failed it: while only those are free, it
keeps its place and others pass it. A line is split by the set of endpoints that its requests avoid, so that no pop walks along requests.

When the queue is full, the tenant with the most entries in the lowest class loses its newest one, if the newcomer has a better claim: a
greedy tenant gets only the places that others leave ("longest queue drop"). Deadlines are absolute monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush

from gateway.core.types import Priority

RANKS: dict[Priority, int] = {"interactive": 0, "standard": 1, "batch": 2}
Avoids = tuple[str, ...]
"""Endpoints that a request avoids because they failed it; empty unless it is a retry."""


class Entry:
    """One waiting request. cost: estimated tokens, at least 1. It leaves its queue once: granted, dropped or cancelled."""

    __slots__ = ("avoids", "cost", "deadline", "number", "queued", "rank", "tenant")

    def __init__(self, tenant: str, priority: Priority, cost: int, deadline: float, avoids: Avoids = ()) -> None:
        self.tenant, self.rank, self.cost, self.deadline, self.avoids = tenant, RANKS[priority], max(1, cost), deadline, avoids
        self.number = 0
        """Its place in the order of arrival, given by the queue."""
        self.queued = False


class _Line:
    """One tenant's entries of one class, split by what they avoid, each part in the order of arrival. No part is empty."""

    __slots__ = ("deficit", "parts", "size", "tenant", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant, self.weight = tenant, weight
        self.parts: dict[Avoids, deque[Entry]] = {}
        self.size = 0
        self.deficit = 0.0

    def append(self, entry: Entry) -> None:
        part = self.parts.get(entry.avoids)
        if part is None:
            part = self.parts[entry.avoids] = deque()
        part.append(entry)
        self.size += 1

    def remove(self, entry: Entry) -> None:
        part = self.parts[entry.avoids]
        if part[0] is entry:
            part.popleft()
        else:
            part.remove(entry)
        if not part:
            del self.parts[entry.avoids]
        self.size -= 1

    def first(self, barred: Collection[Avoids]) -> Entry | None:
        """The earliest entry whose avoid-set is not barred."""
        first: Entry | None = None
        for avoids, part in self.parts.items():
            if (first is None or part[0].number < first.number) and avoids not in barred:
                first = part[0]
        return first

    def newest(self) -> Entry:
        return max((part[-1] for part in self.parts.values()), key=lambda entry: entry.number)


class _Class:
    """The non-empty lines of one priority class, in the order of their turns."""

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
        line.append(entry)
        self.size += 1

    def remove(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        line.remove(entry)
        self.size -= 1
        if not line.size:
            del self._lines[line.tenant]
            self._turns.remove(line)

    def pop(self, barred: Collection[Avoids]) -> Entry | None:
        """The next entry that is not barred. A line whose entries are all barred is passed over and keeps its deficit."""
        if len(self._turns) == 1:  # a single tenant takes no turns
            line = self._turns[0]
            alone = line.first(barred)
            if alone is not None:
                line.deficit = max(0.0, line.deficit - alone.cost)
                self.remove(alone)
            return alone
        candidates: list[tuple[_Line, Entry]] = []
        for line in self._turns:  # usually it is the first one's turn
            first = line.first(barred)
            if first is not None:
                if line.deficit >= first.cost:
                    return self._take(line, first)
                candidates.append((line, first))
        if not candidates:
            return None
        # Each round adds its weight (in tokens) to every line; the line that needs the fewest rounds goes first.
        rounds = min((entry.cost - line.deficit) / line.weight for line, entry in candidates)
        for line, _ in candidates:
            line.deficit += rounds * line.weight
        line, entry = next((line, entry) for line, entry in candidates if line.deficit >= entry.cost * (1 - 1e-9))
        return self._take(line, entry)

    def _take(self, line: _Line, entry: Entry) -> Entry:
        line.deficit = max(0.0, line.deficit - entry.cost)
        self._turns.remove(line)
        self._turns.append(line)
        self.remove(entry)
        return entry

    def greediest(self) -> _Line | None:
        """The line with the most entries relative to its weight."""
        return max(self._turns, key=lambda line: line.size / line.weight, default=None)

    def others(self, tenant: str) -> int:
        """The number of other tenants with entries."""
        return len(self._lines) - (tenant in self._lines)

    def share(self, tenant: str) -> float:
        """A tenant's entries relative to its weight."""
        line = self._lines.get(tenant)
        return line.size / line.weight if line is not None else 0.0

    def entries(self) -> Iterator[Entry]:
        for line in self._turns:
            for part in line.parts.values():
                yield from part


class AdmissionQueue:
    """The queue of one pool. size: the most entries at once. weights: by tenant, 1.0 where none is given."""

    __slots__ = ("_classes", "_deadlines", "_length", "_number", "avoided", "size")

    def __init__(self, size: int, weights: Mapping[str, float]) -> None:
        self.size = size
        self.avoided: dict[Avoids, int] = {}
        """Avoid-set -> number of entries that have it; without the empty set."""
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
        """The number of entries in this class and the better ones."""
        return sum(lines.size for lines in self._classes[: rank + 1])

    def before(self, tenant: str, rank: int) -> int:
        """The number of entries that are served before the first of this tenant and class, about: better classes, and one of each other
        tenant of the same."""
        return sum(lines.size for lines in self._classes[:rank]) + self._classes[rank].others(tenant)

    def push(self, entry: Entry) -> Entry | None:
        """Queues an entry. Returns the entry that was dropped for it, the new one itself if it was not queued, or None."""
        victim: Entry | None = None
        if self._length >= self.size:
            victim = self._victim(entry)
            if victim is entry:
                return entry
            self._remove(victim)
        self._number += 1
        entry.number = self._number
        self._classes[entry.rank].append(entry)
        if entry.avoids:
            self.avoided[entry.avoids] = self.avoided.get(entry.avoids, 0) + 1
        entry.queued = True
        self._length += 1
        if len(self._deadlines) > 64 + 2 * self._length:
            self._deadlines = [item for item in self._deadlines if item[2].queued]
            heapify(self._deadlines)
        heappush(self._deadlines, (entry.deadline, self._number, entry))
        return victim

    def pop(self, barred: Collection[Avoids] = ()) -> Entry | None:
        """Takes out the next entry. `barred`: avoid-sets (keys of `avoided`) whose entries no free slot can serve."""
        for lines in self._classes:
            if lines.size and (entry := lines.pop(barred)) is not None:
                self._left(entry)
                return entry
        return None

    def cancel(self, entry: Entry) -> bool:
        """Removes an entry; False if it was no longer queued."""
        if not entry.queued:
            return False
        self._remove(entry)
        return True

    def expire(self, now: float) -> list[Entry]:
        """Takes out all entries whose deadline has passed."""
        late: list[Entry] = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].queued):
            _, _, entry = heappop(self._deadlines)
            if entry.queued:
                self._remove(entry)
                late.append(entry)
        return late

    def _remove(self, entry: Entry) -> None:
        self._classes[entry.rank].remove(entry)
        self._left(entry)

    def _left(self, entry: Entry) -> None:
        entry.queued = False
        self._length -= 1
        if entry.avoids:
            others = self.avoided[entry.avoids] - 1
            if others:
                self.avoided[entry.avoids] = others
            else:
                del self.avoided[entry.avoids]

    def _victim(self, newcomer: Entry) -> Entry:
        for rank in range(len(self._classes) - 1, newcomer.rank, -1):
            line = self._classes[rank].greediest()
            if line is not None:
                return line.newest()
        lines = self._classes[newcomer.rank]
        line = lines.greediest()
        if line is None or line.size / line.weight <= lines.share(newcomer.tenant) + 1 / max(
            0.001, lines.weights.get(newcomer.tenant, 1.0)
        ):
            return newcomer
        return line.newest()
