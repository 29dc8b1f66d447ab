"""Who shares the next step: pure decisions on a plain view, no model, no clock, no thread.

A step is one `llama_decode` over a batch. Every sequence that is generating puts one token in it; prompts that are still
being read ("prefill") share what is left, so little that the step does not stall the streams under way: how many tokens that is
follows from what steps and prompt tokens have cost so far (:class:`StepCosts`). Short prompts go first, because their clients expect
an answer soonest and they delay the others least; the one that has waited longest always gets its part, so that none starves.

Admission to a free slot is by priority, then arrival. Fairness between tenants is the gateway's work, not this file's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MIN_CHUNK = 2
"""Smallest prefill chunk beside running streams, in tokens, unless configured: every prompt must make progress."""
EVEN = 2
"""Tokens that llama.cpp's CPU kernels multiply at once: a single one left over costs as much as three or four others."""
CROWD = 1.0
"""Weight of each of several waiting prompts against a running stream."""
TILE = 64
"""Tokens of a step, those of the streams among them, that llama.cpp's attention on processors takes together, if a step has so many. Each
of fewer costs up to four times as much deep in a prompt, and a started tile costs as much as a full one."""
FILLED = 0.75
"""A step tells what a token in tiles costs if its tiles are as full as this."""
STALL = 2.1
"""How much longer than usual a step may take when it reads prompts beside streams, unless configured."""
OLDEST = 0.2
"""Share of what prompts may take of a step that goes to the one that has waited longest."""
PATIENCE = 0.5
"""Seconds that a step may take when nothing but prompts is read: a prompt that arrives meanwhile waits for the end of the step."""
FREE_STEP = 0.025
"""A step this short, in seconds, never counts as a stall (a fast device reads whole prompts in it)."""
FIRST_CHUNK = 16
"""Chunk size beside running streams, in tokens, while nothing has been measured."""
GROWTH = 1.5
"""A chunk is at most this many times as large as those measured, or a tile larger: small chunks do not tell what large ones cost."""
SUDDEN = 2.0
"""The most that one step may raise the estimated cost of a token: most outliers are caused by other processes and pass."""
_NEWS, _NEWS_OF_STEPS = 0.25, 0.15
_OF_ALL = 0.8
"""How much of what a step without prompt tokens teaches is believed of any number of streams, and not only of as many."""
"""How much of a difference is believed at once. Rises as much as falls: where other processes slow the machine at random, an estimate that
believed rises sooner would shrink every chunk to the least, and a long prompt would take three times as long (see the simulation)."""
_FORGET = 0.98
_SPREAD = 64.0
_ENOUGH = 8


@dataclass(slots=True, eq=False)
class Work:
    """One sequence as the scheduler sees it.

    `prompt` counts the prompt's tokens, `done` those already in the KV memory. `decoding` means that the prompt is read and
    tokens are being generated. `paused`: its client does not read; it keeps its slot and generates nothing. `after` is
    work that must be decoding (or gone) first, because its prompt's KV will be shared. `largest_chunk` bounds how much of
    its prompt one step may read. `due` is when its last token is to be handed out (see `pacing`); 0 before the first.
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
    due: float = 0.0


W = TypeVar("W", bound=Work)


@dataclass(slots=True)
class Plan(Generic[W]):
    """The next batch: one token for each of `decode`, and a number of prompt tokens for each of `prefill`."""

    decode: list[W] = field(default_factory=list)
    prefill: list[tuple[W, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill)


def admit(waiting: Iterable[W], free: int, now: float) -> tuple[list[W], list[W]]:
    """(admitted, expired) of the waiting: at most `free`, by priority, then arrival; never past their deadline."""
    admitted: list[W] = []
    expired: list[W] = []
    for work in sorted(waiting, key=lambda item: (item.priority, item.arrival)):
        if work.deadline <= now:
            expired.append(work)
        elif len(admitted) < free and (work.after is None or work.after.decoding or work.after.ended):
            admitted.append(work)
    return admitted, expired


def reading(running: Iterable[W]) -> list[W]:
    """Those whose prompts are not read yet, in the order of reading: priority, then what is left to read, then arrival."""
    return sorted((item for item in running if not item.decoding), key=lambda item: (item.priority, item.prompt - item.done, item.arrival))


@dataclass(slots=True, frozen=True)
class Allowance:
    """What prompts may take of the next step: `tokens` at most and `seconds` at most, by what a token costs `at` its depth, but at least
    `least` tokens whatever they cost."""

    tokens: int
    seconds: float = math.inf
    at: Callable[[float], float] = lambda _depth: 0.0
    least: int = 1

    def fit(self, seconds: float, depth: int, most: int) -> int:
        """How many tokens, the first of them with `depth` before it and at most `most`, can be read in this time."""
        if seconds == math.inf:
            return most
        seconds, first = max(0.0, seconds), self.at(depth)
        reach = most if first <= 0 else min(most, seconds / first)
        middle = self.at(depth + reach / 2)
        return most if middle <= 0 else min(most, int(seconds / middle))

    def spent(self, depth: int, count: int) -> float:
        """Seconds that so many tokens take from this depth on."""
        return count * self.at(depth + count / 2)


class _Grants(Generic[W]):
    """What each prompt has been given of an allowance."""

    def __init__(self, allowance: Allowance, room: int) -> None:
        self._allowance = allowance
        self._tokens = min(room, allowance.tokens)
        self._seconds = allowance.seconds
        self.counts: dict[int, int] = {}
        self.total = 0

    def give(self, work: W, share: float = 1.0) -> None:
        """Give this prompt what it can use of a share of what is left. A smaller share is never rounded down to nothing."""
        had = self.counts.get(id(work), 0)
        wanted = min(work.prompt - work.done, work.largest_chunk) - had
        most = min(wanted, self._tokens if share == 1 else math.ceil(self._tokens * share))
        count = self._allowance.fit(self._seconds * share, work.done + had, most)
        if share < 1:
            count = max(count, min(most, 1))
        self._take(work, had, count)

    def force(self, work: W, count: int) -> None:
        """Give this prompt up to so many tokens, whatever they cost."""
        had = self.counts.get(id(work), 0)
        self._take(work, had, min(count, self._tokens, min(work.prompt - work.done, work.largest_chunk) - had))

    def _take(self, work: W, had: int, count: int) -> None:
        if count > 0:
            self.counts[id(work)] = had + count
            self.total += count
            self._tokens -= count
            self._seconds -= self._allowance.spent(work.done + had, count)


def share(running: Sequence[W], capacity: int, allowance: Allowance) -> Plan[W]:
    """The next batch of at most `capacity` tokens: one of each stream, and of prompts what is allowed.

    The prompt that has waited longest gets its part (`OLDEST`); all else goes to the prompts in the order of `reading`, the shortest first.
    """
    plan: Plan[W] = Plan()
    for work in running:
        if work.decoding and not work.paused and len(plan.decode) < capacity:
            plan.decode.append(work)
    prompts = reading(running)
    if not prompts:
        return plan
    grants: _Grants[W] = _Grants(allowance, capacity - len(plan.decode))
    if len(prompts) > 1:
        grants.give(min(prompts, key=lambda item: item.arrival), OLDEST)
    for work in prompts:
        grants.give(work)
    for work in prompts:
        if grants.total < allowance.least:
            grants.force(work, allowance.least - grants.total)
    plan.prefill = [(work, grants.counts[id(work)]) for work in prompts if id(work) in grants.counts]
    _make_even(plan, allowance.least, capacity - len(plan.decode))
    return plan


def _make_even(plan: Plan[W], least: int, room: int) -> None:
    """Where the number of tokens is odd: one less of the last prompt that this step does not finish, or one more if few are left."""
    total = sum(count for _work, count in plan.prefill)
    if (len(plan.decode) + total) % EVEN == 0:
        return
    change = -1 if total > least else 1
    if change > room - total:
        return
    for place in range(len(plan.prefill) - 1, -1, -1):
        work, count = plan.prefill[place]
        if 0 < count + change <= min(work.prompt - work.done, work.largest_chunk) and count < work.prompt - work.done:
            plan.prefill[place] = (work, count + change)
            return


class TokenCost:
    """Seconds that a prompt token adds to a step, by how deep in its prompt it stands: attention looks at all that came before.

    A straight line through what steps have cost, older ones counting less and less, times a factor that follows the
    last few steps. The line keeps its slope while all that comes is equally deep; the factor believes a few tokens,
    whose share of a step is mostly noise, less than many.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0
        self._factor = 1.0

    def at(self, depth: float) -> float | None:
        """Seconds for a token with `depth` tokens before it; None if unknown."""
        line = self._line(depth)
        return None if line is None else line * self._factor

    def _line(self, depth: float) -> float | None:
        if not self._weight:
            return None
        mean = self._y / self._weight
        return max(mean + self._slope * (depth - self._x / self._weight), mean * 0.1)

    def learn(self, depth: float, seconds: float, count: int) -> None:
        """Learns that `count` prompt tokens have added this many seconds each."""
        believed = self.at(depth)
        if believed is not None:
            seconds = min(seconds, believed * SUDDEN)
            believed += (seconds - believed) * _NEWS * min(1.0, count / _ENOUGH)
        self._weight = self._weight * _FORGET + count
        self._x = self._x * _FORGET + count * depth
        self._y = self._y * _FORGET + count * seconds
        self._xx = self._xx * _FORGET + count * depth * depth
        self._xy = self._xy * _FORGET + count * depth * seconds
        spread = self._xx * self._weight - self._x * self._x
        if spread > (_SPREAD * self._weight) ** 2:
            self._slope = max(0.0, (self._xy * self._weight - self._x * self._y) / spread)
        line = self._line(depth)
        if believed is not None and line is not None:
            self._factor = believed / line


class UsualSteps:
    """Seconds of a step that only decodes, by the number of streams.

    What slows the machine down slows all of them: most of a difference goes into a factor that all share. So a number of streams that was
    last seen while something else had the machine is not judged by that.
    """

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}
        self._factor = 1.0

    def at(self, streams: int) -> float | None:
        """Seconds with this many streams; None if unknown. Never overestimates what was not measured."""
        known = self._steps.get(streams)
        if known is None and self._steps:
            fewer = [known for known in self._steps if known < streams]
            more = min(self._steps)
            known = self._steps[max(fewer)] if fewer else self._steps[more] * streams / more
        return None if known is None else known * self._factor

    def learn(self, streams: int, seconds: float) -> None:
        """Learns from a step."""
        if streams not in self._steps:
            self._steps[streams] = seconds / self._factor
            return
        change = (min(seconds / (self._steps[streams] * self._factor), SUDDEN) - 1) * _NEWS_OF_STEPS
        self._factor *= 1 + change * _OF_ALL
        self._steps[streams] *= (1 + change) / (1 + change * _OF_ALL)


class StepCosts:
    """What steps cost: seconds of a step that only decodes, by the number of streams, and what a prompt token adds to one: one of few
    (`token`), and one of those that fill tiles (`tiled`).

    News count for what they are, good or bad, but no single step raises an estimate much. `stall` is how much longer than a usual step one
    may become by prompt tokens in it, `least` how many of them every step takes whatever that costs.
    """

    def __init__(self, stall: float = STALL, least: int = MIN_CHUNK) -> None:
        self.stall = stall
        self.least = least
        self.token = TokenCost()
        self.tiled = TokenCost()
        self._usual = UsualSteps()
        self._measured = 0.0
        self._alone = 0.0

    def step(self, streams: int) -> float | None:
        """Seconds of a step with this many streams and nothing else; None if unknown. Never overestimates what was not measured."""
        return self._usual.at(streams)

    def observe(self, decode: int, prefill: int, seconds: float, depth: float = 0.0) -> None:
        """Learns from a step with this many decoded sequences and prompt tokens, the latter with `depth` tokens before them on average."""
        if prefill == 0:
            self._usual.learn(decode, seconds)
            return
        usual = self.step(max(1, decode))
        if decode == 0:
            usual = usual or 0.0
            if prefill >= FIRST_CHUNK:
                self._alone += (seconds / prefill - self._alone) * (0.5 if self._alone else 1.0)
        elif prefill >= self.least and usual is not None:
            self._measured = max(prefill, self._measured * 0.9)
        else:
            return
        added = max(seconds - usual, seconds * 0.05) / prefill
        if decode + prefill >= TILE:
            if decode + prefill >= FILLED * _whole_tiles(decode + prefill):
                self.tiled.learn(depth, added, prefill)
        elif decode or (prefill >= FIRST_CHUNK and self._few(0) is None):
            self.token.learn(depth, added, prefill)

    def _few(self, depth: float) -> float | None:
        """Seconds of a token among few; as long as none were read, of one in tiles."""
        known = self.token.at(depth)
        return self.tiled.at(depth) if known is None else known

    def piece(self, streams: int) -> int:
        """The fewest prompt tokens that fill tiles, together with those of so many streams."""
        return _whole_tiles(streams + TILE // 2) - streams

    def pieces(self, capacity: int, streams: int, depth: float, seconds: float) -> int:
        """How many prompt tokens, `depth` tokens deep, fill tiles in a step beside so many streams and make it longer by at most so many
        seconds; 0 if not even `piece`."""
        cost = self.tiled.at(depth + TILE / 2)
        if cost is None:
            cost = self.token.at(depth + TILE / 2)
        if cost is None:
            return 0
        read = int(self._measured) + streams
        most = min(capacity, max(int(GROWTH * read), read + TILE, self.piece(streams) + streams))
        rows = most if cost <= 0 else min(most, int(max(0.0, seconds) / cost) + streams)
        count = rows // TILE * TILE - streams
        return count if count >= self.piece(streams) else 0

    def extra(self, streams: int, prompts: int = 1) -> float | None:
        """Seconds by which prompts may make a step longer beside so many running streams, while so many prompts wait; None if unknown.

        A step may take `stall` times the usual; where more prompts wait than streams run, longer in that
        proportion, because each millisecond of it delays few and serves many, and short steps with few streams are the dearest.
        """
        step = self.step(streams)
        if step is None or self._few(0) is None:
            return None
        return max(step * (self.stall - 1) * _crowd(streams, prompts), FREE_STEP - step)

    def allowance(self, capacity: int, streams: int, prompts: int = 1, depth: int = 0, left: float = math.inf) -> Allowance:
        """How many prompt tokens a step may read: as many as fit into `extra` (whole tiles if one fits), or into `PATIENCE` while nothing
        streams.

        depth: tokens already read of the prompt that is furthest. left: prompt tokens that are still to be read.
        """
        if streams == 0:
            known = self._alone or self._few(0)
            if not known:
                return Allowance(capacity)
            count = PATIENCE / known
            return Allowance(max(FIRST_CHUNK, min(capacity, int(count) if count < TILE else round(count / TILE) * TILE)))
        extra = self.extra(streams, prompts)
        few = int(FIRST_CHUNK * _crowd(streams, prompts))
        if extra is None:
            return Allowance(min(few, capacity), least=self.least)
        if left >= self.piece(streams) and (count := self.pieces(capacity, streams, depth, extra)):
            return Allowance(max(self.least, count), least=self.least)
        most = min(capacity, max(few, int(GROWTH * self._measured)), max(self.least, self.piece(streams)))
        return Allowance(max(self.least, most), extra, lambda depth: self._few(depth) or 0.0, self.least)


def _whole_tiles(rows: int) -> int:
    return -(-rows // TILE) * TILE


def _crowd(streams: int, prompts: int) -> float:
    return max(1.0, CROWD * prompts / streams) if prompts > 1 else 1.0
