"""What slots that follow an engine's refusals would be worth, simulated: `python loadtests/routing/adaptive.py`.

An external engine takes `capacity` requests at a time and answers 429 to any more; each takes a second on average, exponentially
distributed. Clients send one request after the other; one that is refused comes again after a second, as `retry-after` asks. The
gateway's slots are

- fixed: 256, the default, or the engine's capacity, where the operator knows it
- adaptive: from 256 down to 0.9 of what was in flight after a refusal, at most once a second; up by one for each `limit` answers

and what finds no slot waits in the gateway's queue. Time is simulated, chance is seeded: the figures are the same everywhere.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

SECONDS = 300.0
SLOTS = 256


@dataclass(slots=True)
class Adaptive:
    """Additive increase, multiplicative decrease of the requests in flight at one endpoint."""

    most: int = SLOTS
    limit: float = float(SLOTS)
    _cut_at: float = -1.0

    def refused(self, in_flight: int, now: float) -> None:
        if now - self._cut_at >= 1.0:
            self.limit, self._cut_at = max(1.0, 0.9 * min(in_flight, self.limit)), now

    def answered(self) -> None:
        self.limit = min(float(self.most), self.limit + 1 / self.limit)


@dataclass(slots=True)
class Run:
    """One run. capacity: of the engine over time, as (from second, requests). slots: None for adaptive ones."""

    clients: int
    capacity: list[tuple[float, int]]
    slots: int | None
    now: float = 0.0
    running: int = 0
    refusals: int = 0
    waits: list[float] = field(default_factory=list)

    def most(self) -> int:
        return [count for start, count in self.capacity if start <= self.now][-1]

    def go(self) -> Run:
        chance, rule = random.Random(7), Adaptive()
        events: list[tuple[float, int, str, float]] = [(chance.random(), number, "ask", -1.0) for number in range(self.clients)]
        heapq.heapify(events)
        queue: deque[tuple[int, float]] = deque()
        while events:
            self.now, client, what, since = heapq.heappop(events)
            if self.now > SECONDS:
                return self
            if what == "ask":
                queue.append((client, self.now if since < 0 else since))
            else:
                self.running -= 1
                self.waits.append(self.now - since)
                rule.answered()
                heapq.heappush(events, (self.now, client, "ask", -1.0))
            while queue and self.running < (int(rule.limit) if self.slots is None else self.slots):
                client, since = queue.popleft()
                if self.running >= self.most():
                    self.refusals += 1
                    rule.refused(self.running, self.now)
                    heapq.heappush(events, (self.now + 1.0, client, "ask", since))
                    continue
                self.running += 1
                heapq.heappush(events, (self.now + chance.expovariate(1.0), client, "done", since))
        return self


def main() -> None:
    print(f"{'capacity':16} {'clients':>7} {'slots':>8} {'answers/s':>9} {'429 per 100 answers':>19} {'p50 s':>6} {'p99 s':>6}")
    for name, capacity in (("32", [(0.0, 32)]), ("32, 16, 64", [(0.0, 32), (100.0, 16), (200.0, 64)])):
        for clients in (24, 64, 256):
            for label, slots in (("256", SLOTS), ("32", 32), ("adaptive", None)):
                run = Run(clients, capacity, slots).go()
                waits = sorted(run.waits)
                share = 100 * run.refusals / len(waits)
                p50, p99 = waits[len(waits) // 2], waits[int(0.99 * len(waits))]
                print(f"{name:16} {clients:7} {label:>8} {len(waits) / SECONDS:9.1f} {share:19.1f} {p50:6.2f} {p99:6.2f}")


if __name__ == "__main__":
    main()
