"""Figures of candidates that are tried on real traffic, which can be summed over processes, and the port through which the pipeline
collects them."""

from __future__ import annotations

from collections.abc import Iterable
from math import log2
from typing import Any, Final, Protocol

from msgspec import Struct, field

from gateway.core.messages import Ask, Message
from gateway.core.ports import Attempt

STEPS: Final = 4
"""Classes of durations per doubling, so that a quantile is at most 19% too high."""
CLASSES: Final = 88
SHORTEST: Final = 0.001
"""Seconds; shorter durations are in the first class."""
TENTHS: Final = 10


def no_durations() -> list[int]:
    return [0] * CLASSES


def class_of(seconds: float) -> int:
    """The class of a duration; each is wider than the one before by the same factor."""
    if seconds <= SHORTEST:
        return 0
    return min(CLASSES - 1, 1 + int(log2(seconds / SHORTEST) * STEPS))


def quantile(counts: list[int], share: float) -> float | None:
    """The upper end, in seconds, of the class below which this share of the durations lies; None without durations."""
    total = sum(counts)
    if not total:
        return None
    rest = share * total
    for number, count in enumerate(counts):
        rest -= count
        if count and rest <= 1e-9:
            return float(SHORTEST * 2.0 ** (number / STEPS))
    return float(SHORTEST * 2.0 ** ((CLASSES - 1) / STEPS))


class Side(Struct):
    """How one side answered the mirrored requests. errors: no answer, or one with status 429 or 5xx. refusals: another 4xx, or the model
    refused or a filter stopped it. seconds: of generating, from the first byte of a stream on. latency, first: durations by class, to the
    end of the answer and to the first byte of a stream."""

    answers: int = 0
    errors: int = 0
    refusals: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    latency: list[int] = field(default_factory=no_durations)
    first: list[int] = field(default_factory=no_durations)

    def add(self, other: Side) -> None:
        self.answers += other.answers
        self.errors += other.errors
        self.refusals += other.refusals
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.seconds += other.seconds
        self.latency = [mine + theirs for mine, theirs in zip(self.latency, other.latency, strict=True)]
        self.first = [mine + theirs for mine, theirs in zip(self.first, other.first, strict=True)]

    def since(self, before: Side) -> Side:
        """What was added since earlier figures of the same process."""
        return Side(
            self.answers - before.answers,
            self.errors - before.errors,
            self.refusals - before.refusals,
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
            self.seconds - before.seconds,
            [one - other for one, other in zip(self.latency, before.latency, strict=True)],
            [one - other for one, other in zip(self.first, before.first, strict=True)],
        )


class ShadowFigures(Struct):
    """Figures of one model and its candidate since the process began or the candidate changed. sampled: requests chosen to be mirrored.
    dropped, skipped: of these, by reason, for lack of room or time, or because they must not be mirrored. waiting, running: at the moment.
    likeness: compared pairs by tenths of their likeness; likeness_sum: over all pairs."""

    candidate: str
    sampled: int = 0
    mirrored: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0
    compared: int = 0
    likeness_sum: float = 0.0
    likeness: list[int] = field(default_factory=lambda: [0] * TENTHS)
    model: Side = field(default_factory=Side)
    shadow: Side = field(default_factory=Side)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def alike(self, value: float) -> None:
        self.compared += 1
        self.likeness_sum += value
        self.likeness[min(TENTHS - 1, int(value * TENTHS))] += 1

    def add(self, other: ShadowFigures) -> None:
        for name in ("sampled", "mirrored", "waiting", "running", "compared", "likeness_sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.dropped, other.dropped), (self.skipped, other.skipped)):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
        self.likeness = [one + more for one, more in zip(self.likeness, other.likeness, strict=True)]
        self.model.add(other.model)
        self.shadow.add(other.shadow)


class CanaryFigures(Struct):
    """Requests of one model since the process began or the engine on trial changed: those that it answered, and all others."""

    engine: str
    canary: Side = field(default_factory=Side)
    others: Side = field(default_factory=Side)


class RolloutsTold(Message, frozen=True):
    """By model."""

    shadows: dict[str, ShadowFigures] = field(default_factory=dict)
    canaries: dict[str, CanaryFigures] = field(default_factory=dict)


class RolloutsAsked(Ask[RolloutsTold], frozen=True):
    """Asks a process that serves for its figures."""


def summed(told: Iterable[RolloutsTold]) -> dict[str, ShadowFigures]:
    """Sums the figures of several processes. If they have different candidates, as during a change, only those of the last one count."""
    found: dict[str, ShadowFigures] = {}
    for one in told:
        for model, figures in one.shadows.items():
            known = found.get(model)
            if known is None or known.candidate != figures.candidate:
                known = found[model] = ShadowFigures(figures.candidate)
            known.add(figures)
    return dict(sorted(found.items()))


class RolloutControl(Protocol):
    """What the admin API sees of candidates in all processes of this gateway (gateway.app.engines.rollout_book)."""

    async def of_shadows(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What is known by model, and the workers that have not answered within some seconds."""
        ...

    def of_canaries(self) -> dict[str, dict[str, Any]]:
        """What is known by model."""
        ...

    async def resume(self, model: str, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Puts a withdrawn engine back on trial and returns why it had been withdrawn. Raises NotFound, StoreUnavailable."""
        ...


class Watch(Protocol):
    """Sees the attempts at one model's engines."""

    def watched(self, exchange: Any, attempt: Attempt) -> Attempt:
        """The attempt as the exchange is to use it. Never raises."""
        ...
