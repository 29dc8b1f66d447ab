"""Mixes of chats and documents, and the objectives that its answers should meet. Shared by the benchmark and the simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Sizes = tuple[tuple[float, int, int], ...]
"""Share of requests, least and most tokens of their prompts."""
QUESTIONS, PASSAGES, DOCUMENTS = (8, 64), (128, 512), (1024, 1800)
MIXED = "mixed"
MIXES: dict[str, Sizes] = {
    MIXED: ((0.6, *QUESTIONS), (0.3, *PASSAGES), (0.1, *DOCUMENTS)),
    "chats": ((0.95, *QUESTIONS), (0.05, *DOCUMENTS)),
    "halves": ((0.5, *QUESTIONS), (0.5, *DOCUMENTS)),
}
"""A bit of all; many short chats beside few documents; as many documents as questions."""
ANSWERS = (16, 64)
"""Least and most tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """When it comes, in seconds from the start; tokens of its prompt and of its answer."""

    at: float
    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """A request and when its tokens came, in seconds from the start."""

    request: Request
    times: Sequence[float]

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.request.at

    @property
    def mean_gap(self) -> float:
        """Seconds between two tokens, on average."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)

    @property
    def longest_gap(self) -> float:
        """Longest time between two tokens, in seconds."""
        return max((b - a for a, b in pairwise(self.times)), default=0.0)


@dataclass(frozen=True, slots=True)
class Objective:
    """What an answer should meet: seconds to the first token (and more for each token of its prompt), mean and longest gap."""

    name: str
    first: float
    per_token: float
    mean_gap: float
    longest_gap: float

    def met(self, served: Served) -> bool:
        """Whether this answer met it."""
        limit = self.first + self.per_token * served.request.prompt
        return served.first <= limit and served.mean_gap <= self.mean_gap and served.longest_gap <= self.longest_gap

    def share(self, served: Sequence[Served]) -> float:
        """Share of answers that met it: goodput, as a share of what was asked."""
        return sum(map(self.met, served)) / len(served)


OBJECTIVES = (
    Objective("first token and mean gap", 2.0, 0.016, 0.25, 1e9),
    Objective("first token and every gap", 2.0, 0.016, 0.25, 0.5),
)
"""2 s and 16 ms a prompt token, about twice what reading it alone takes the benchmark's model on two cores; gaps of 250 ms on average, or
of at most half a second."""


def mix(seed: int, count: int, rate: float, sizes: Sizes = MIXES[MIXED]) -> list[Request]:
    """So many requests at random times, `rate` a second on average (Poisson)."""
    generator, now, requests = random.Random(seed), 0.0, list[Request]()
    for _ in range(count):
        now += generator.expovariate(rate)
        (size,) = generator.choices(sizes, [item[0] for item in sizes])
        requests.append(Request(now, generator.randint(*size[1:]), generator.randint(*ANSWERS)))
    return requests
