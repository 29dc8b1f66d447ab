"""Who shares the next step: pure decisions on a plain view, no model, no clock, no thread.

A step is one `llama_decode` over a batch. Every sequence that is generating puts one token in it; prompts that are still
being read ("prefill") fill the rest, in chunks so small that the step does not stall the streams under way: the chunk's
size follows from what steps and prompt tokens have cost so far (:class:`StepCosts`).

Admission to a free slot is by priority, then arrival. Fairness between tenants is the gateway's work, not this file's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MIN_CHUNK = 16
"""Smallest prefill chunk beside running streams, in tokens."""
FREE_STEP = 0.025
"""A step this short, in seconds, never counts as a stall (a fast device reads whole prompts in it)."""
FIRST_CHUNK = 32
"""Chunk beside running streams while nothing has been measured yet, in tokens."""
MIXED_FACTOR = 1.5
_SMOOTHING = 0.2


@dataclass(slots=True, eq=False)
class Work:
    """One sequence as the scheduler sees it.

    `prompt` counts the prompt's tokens, `done` those already in the KV memory. `decoding` means that the prompt is read and
    tokens are being generated. `paused`: its client does not read; it keeps its slot and generates nothing. `after` is
    work that must be decoding (or gone) first, because its prompt's KV will be shared. `largest_chunk` bounds how much of
    its prompt one step may read.
    """

    priority: int
    arrival: int
    prompt: int
    deadline: float = math.inf
    after: Work | None = None
    largest_chunk: int = 2**31
    done: int = 0
    decoding: bool = False
    paused: bool = False
    ended: bool = False


W = TypeVar("W", bound=Work)


@dataclass(slots=True)
class Plan(Generic[W]):
    """The next batch: one token each of `decode`, so many prompt tokens each of `prefill`."""

    decode: list[W] = field(default_factory=list)
    prefill: list[tuple[W, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill)


def admit(waiting: Iterable[W], free: int, now: float) -> tuple[list[W], list[W]]:
    """(admitted, expired) among those that wait: at most `free` of them, by priority, then arrival; past deadlines never."""
    admitted: list[W] = []
    expired: list[W] = []
    for work in sorted(waiting, key=lambda item: (item.priority, item.arrival)):
        if work.deadline <= now:
            expired.append(work)
        elif len(admitted) < free and (work.after is None or work.after.decoding or work.after.ended):
            admitted.append(work)
    return admitted, expired


def share(running: Sequence[W], capacity: int, budget: int) -> Plan[W]:
    """The next batch of at most `capacity` tokens, of which at most `budget` are prompt tokens when streams are under way.

    Prompts are read one after the other (priority, then arrival): the first is finished soonest, and none is later for it.
    """
    plan: Plan[W] = Plan()
    for work in running:
        if work.decoding and not work.paused and len(plan.decode) < capacity:
            plan.decode.append(work)
    left = capacity - len(plan.decode)
    if plan.decode:
        left = min(left, budget)
    for work in sorted((item for item in running if not item.decoding), key=lambda item: (item.priority, item.arrival)):
        if left <= 0:
            break
        count = min(work.prompt - work.done, left, work.largest_chunk)
        if count > 0:
            plan.prefill.append((work, count))
            left -= count
    return plan


class StepCosts:
    """What steps cost, smoothed: seconds of a step that only decodes, and seconds a prompt token adds to one.

    A token costs more in a small chunk beside streams than in a prompt that is read alone, so the two are kept apart; the second
    serves as a first guess (times `MIXED_FACTOR`). The cautious news are believed sooner, a cheaper step and a dearer token: too
    large a chunk stalls every stream, too small a one only the prompt, and a step that other processes delayed is not usual.
    `stall` is how much longer than a usual step one may become by prompt tokens in it.
    """

    def __init__(self, stall: float = 2.5) -> None:
        self.stall = stall
        self.step: float | None = None
        self._alone: float | None = None
        self._mixed: float | None = None

    @property
    def token(self) -> float | None:
        """Seconds that a prompt token adds to a step with streams; None while nothing is known."""
        if self._mixed is not None:
            return self._mixed
        return None if self._alone is None else self._alone * MIXED_FACTOR

    def observe(self, decode: int, prefill: int, seconds: float) -> None:
        """Learn from a step with so many decoded sequences and prompt tokens."""
        if prefill == 0:
            self.step = seconds if self.step is None else _smooth(self.step, seconds, 0.3 if seconds < self.step else 0.05)
        elif decode == 0:
            if prefill >= MIN_CHUNK:
                cost = seconds / prefill
                self._alone = cost if self._alone is None else _smooth(self._alone, cost, _SMOOTHING)
        elif self.step is not None and prefill >= MIN_CHUNK // 2:
            cost = max(seconds - self.step, seconds * 0.05) / prefill
            known = self.token
            self._mixed = cost if known is None else _smooth(known, cost, 0.5 if cost > known else 0.1)

    def budget(self, capacity: int, streams: int = 1, prompts: int = 1) -> int:
        """Prompt tokens that fit into a step beside so many running streams, while so many prompts wait to be read.

        A step may take `stall` times the usual; where more prompts wait than streams run, longer in that proportion, because each
        millisecond of it delays few and serves many.
        """
        token = self.token
        if self.step is None or token is None:
            return min(FIRST_CHUNK * max(1, prompts // max(1, streams)), capacity)
        extra = self.step * (self.stall - 1) * max(1.0, prompts / max(1, streams))
        return max(MIN_CHUNK, min(capacity, int(max(extra, FREE_STEP - self.step) / token)))


def _smooth(old: float, new: float, share: float) -> float:
    return old + share * (new - old)
