"""Dynamic batching: requests that may share a batch run together, decided by a pure queue and carried out by a thread for each instance.

Who runs when
    A *job* is a request; it has one or more *units* (a text, a tensor request), each with a *key*. Units of one key may
    share a batch of up to `key.capacity` rows. A batch is ready when it is full, when its oldest unit has waited
    `max_delay`, or when it holds as many rows as the last batch of its key had: in a closed loop the clients that were just
    answered are the ones that come back, so a single client never waits and sixteen are collected again within microseconds.
    Among ready batches the one with the best first unit (priority, then arrival) runs.

Fairness
    A job enters the queue one window (the rows of a batch) at a time. Its first window is queued by its arrival; each later one lets
    pass what arrives within PATIENCE, and then has its turn: a request of 2,048 texts neither holds up one of a single text nor
    starves. So that a turn is short, a batch has only so many rows as take about STEP seconds, by what such rows took so far, but at
    least `key.least`, which keep the hardware busy. Requests of one caller are independent of one another, as HTTP's are: they share
    batches like all others, and one may overtake another.

Failure
    When a batch fails, its units run one by one, and only those that fail alone get the error.

Given up
    A request is given up when its deadline passes or its client leaves. A batch of nothing else is halted at once, if its runtime can
    be halted; one that others wait for, LEFT_SECONDS later, and then theirs run one by one. So a graph that does not end for one input
    holds its thread no longer than somebody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple

from engines.sidecar.shell import ApiError, Request, overloaded
from gateway.core.clock import Clock

REMEMBERED_KEYS = 256
"""For how many keys the size of the last batch, and the time of one of its rows, are remembered."""
STEP = 0.1
"""Seconds that a batch is to take at most: so long one that has just come waits for the device."""
PATIENCE = 1.0
"""Seconds for which newer jobs go ahead of the rest of a job that has had a batch."""
LEFT_SECONDS = 5.0
"""How long a batch goes on for others after one of its requests was given up."""
_NEWEST = 0.3
"""Weight of the newest batch in what a row takes."""


class Key(NamedTuple):
    """What units must have in common to share a batch, and how many rows and units that may have. least: so many rows it may have however
    long they take; 0: as many as fit."""

    group: Hashable
    capacity: int
    least: int = 0
    units: int = 1 << 20


class Unit:
    """The smallest thing that runs: `rows` rows of `payload`. `index` is its place in its job."""

    __slots__ = ("arrived", "index", "job", "key", "payload", "rank", "rows")

    def __init__(self, key: Key, payload: Any, rows: int = 1) -> None:
        self.key, self.payload, self.rows = key, payload, rows
        self.index = 0
        self.arrived = 0.0
        self.rank = (0, 0.0, 0)
        self.job: BatchJob


class BatchJob:
    """One request's units. `deadline` is absolute, in the clock's monotonic seconds; `done` is called once for each unit."""

    __slots__ = ("began", "deadline", "done", "ended", "later", "left", "priority", "queued", "submitted", "units")

    def __init__(
        self, units: Sequence[Unit], done: Callable[[Unit, Any, Exception | None], None], *, priority: int = 1,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        self.units, self.done = units, done
        self.priority, self.deadline = priority, deadline
        self.submitted, self.began, self.ended = time.perf_counter_ns(), 0, 0
        self.later: deque[Unit] = deque()
        self.queued = 0
        self.left = False
        """Nobody waits for it any more."""
        for index, unit in enumerate(units):
            unit.index, unit.job = index, self

    def phases(self) -> list[tuple[str, int]]:
        """For a trace: the units were made, the first of them began to run, the last one so far has run."""
        return [(name, at) for name, at in (("prepare", self.submitted), ("queue", self.began), ("run", self.ended)) if at]


class Full(Exception):
    """The queue has no room for another job."""


class RunFailed(Exception):
    """A unit failed when it ran alone; `cause` is what the runtime raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class BatchQueue:
    """Decides which units run together and when. No clock, no threads, no I/O: times are handed in."""

    def __init__(self, max_delay: float, limit: int) -> None:
        self.max_delay = max_delay
        self.limit = limit
        self.waiting = 0
        """Units in the queue, those of later windows not counted."""
        self._buckets: dict[Key, list[Unit]] = {}
        self._open: dict[BatchJob, None] = {}
        self._last: OrderedDict[Key, int] = OrderedDict()
        self._costs: OrderedDict[Key, float] = OrderedDict()
        self._sequence = 0

    @property
    def jobs(self) -> int:
        """Jobs with units that have not started."""
        return len(self._open)

    def add(self, job: BatchJob, now: float) -> None:
        """Take a job in. Raises Full."""
        if len(self._open) >= self.limit:
            raise Full
        self._open[job] = None
        job.later.extend(job.units)
        self._admit(job, now, now)

    def room(self, key: Key) -> int:
        """How many rows a batch of this key may have now."""
        if not 0 < key.least < key.capacity:
            return key.capacity
        cost = self._costs.get(key)
        return key.least if not cost else min(key.capacity, max(key.least, int(STEP / cost)))

    def took(self, key: Key, rows: int, seconds: float) -> None:
        """Learn from a batch that has run."""
        cost, known = seconds / rows, self._costs.get(key)
        self._costs[key] = cost if known is None else known + _NEWEST * (cost - known)
        _bounded(self._costs, key)

    def _admit(self, job: BatchJob, arrived: float, due: float) -> None:
        """Queue the job's next window: as many units of one key as may run together. due: it is ahead of what comes later than that."""
        key, rows = job.later[0].key, 0
        room = self.room(key)
        bucket = self._buckets.setdefault(key, [])
        while job.later and job.later[0].key == key and rows < room and job.queued < key.units:
            unit = job.later.popleft()
            rows += unit.rows
            self._sequence += 1
            unit.rank, unit.arrived = (job.priority, due, self._sequence), arrived
            insort(bucket, unit, key=_rank)
            job.queued += 1
            self.waiting += 1

    def remove(self, job: BatchJob) -> None:
        """Forget what has not started of a job (its client left, or it failed)."""
        if job not in self._open:
            return
        for key in {unit.key for unit in job.units}:
            bucket = self._buckets.get(key)
            if bucket is not None:
                kept = [unit for unit in bucket if unit.job is not job]
                self.waiting -= len(bucket) - len(kept)
                self._keep(key, kept)
        job.later.clear()
        job.queued = 0
        self._close(job)

    def clear(self) -> list[BatchJob]:
        """Remove and return all jobs that have not started entirely."""
        jobs = list(self._open)
        for job in jobs:
            self.remove(job)
        return jobs

    def take(self, now: float) -> tuple[list[Unit], float | None]:
        """(units to run now, None), or ([], seconds until the next look; None: not before something is added)."""
        best: list[Unit] = []
        wait: float | None = None
        for key, bucket in self._buckets.items():
            found, full = _collect(key, bucket, self.room(key))
            left = min(unit.arrived for unit in found) + self.max_delay - now
            if not full and left > 0 and sum(unit.rows for unit in found) < self._last.get(key, 0):
                wait = left if wait is None else min(wait, left)
            elif not best or found[0].rank < best[0].rank:
                best = found
        if not best:
            return [], wait
        self._start(best, now)
        return best, None

    def _start(self, units: list[Unit], now: float) -> None:
        key = units[0].key
        taken = set(map(id, units))
        self._keep(key, [unit for unit in self._buckets[key] if id(unit) not in taken])
        self.waiting -= len(units)
        self._last[key] = sum(unit.rows for unit in units)
        _bounded(self._last, key)
        for unit in units:
            job = unit.job
            job.queued -= 1
            if not job.queued:
                if job.later:
                    self._admit(job, now - self.max_delay, now + PATIENCE)  # it has waited for company already
                else:
                    self._close(job)

    def _keep(self, key: Key, units: list[Unit]) -> None:
        if units:
            self._buckets[key] = units
        else:
            self._buckets.pop(key, None)

    def _close(self, job: BatchJob) -> None:
        """All of it has started, or none of it is wanted any more."""
        self._open.pop(job, None)


def _collect(key: Key, bucket: list[Unit], room: int) -> tuple[list[Unit], bool]:
    """The units at the head of a bucket that may run together now, and whether they fill a batch of `room` rows."""
    rows = 0
    for count, unit in enumerate(bucket):
        if count and rows + unit.rows > room:
            return bucket[:count], True
        rows += unit.rows
        if rows >= room or count + 1 >= key.units:
            return bucket[: count + 1], True
    return list(bucket), False


def _bounded(known: OrderedDict[Key, Any], used: Key) -> None:
    """Forgets the key that was not used for longest if too many are known."""
    known.move_to_end(used)
    if len(known) > REMEMBERED_KEYS:
        known.popitem(last=False)


def _rank(unit: Unit) -> tuple[int, float, int]:
    return unit.rank


Outcome = tuple[Any, Exception | None]
Halting = Callable[[], AbstractContextManager[Callable[[], None]]]
"""Entered on the thread around a run; what it gives ends that run as soon as it can, and may be called on any thread."""


@contextmanager
def unstoppable() -> Iterator[Callable[[], None]]:
    """The halt of a runtime whose runs cannot be ended: it does nothing."""
    yield lambda: None


class _UnderWay:
    """A batch that runs. now: the units of the present run, all or one. halted: when its end was asked for, 0 if it was not."""

    def __init__(self, units: list[Unit]) -> None:
        self.units = self.now = units
        self.halted = 0.0
        self._halt: Callable[[], None] = lambda: None

    def begins(self, units: list[Unit], halt: Callable[[], None]) -> None:
        """On the thread. A request that is given up meanwhile sees either the new `halt` or, here, itself."""
        self.halted = 0.0
        self.now, self._halt = units, halt
        if self.unwanted:
            self.halt()

    @property
    def unwanted(self) -> bool:
        return all(unit.job.left for unit in self.now)

    def halt(self) -> None:
        self.halted = self.halted or time.monotonic()
        self._halt()


class Batcher:
    """Runs what the queue decides on `instances` threads, one batch each, and gives each job its results on the event loop.

    `run(payloads)` computes one result for each payload of a batch, on one of the threads; an exception fails the batch. `observe`
    is told of every batch on the loop: its units, the seconds it took, the time. `halting` ends runs that nobody waits for.
    """

    def __init__(
        self, queue: BatchQueue, run: Callable[[Sequence[Any]], Sequence[Any]], clock: Clock,
        observe: Callable[[Sequence[Unit], float, float], None] = lambda units, seconds, now: None, instances: int = 1,
        halting: Halting = unstoppable,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.running = 0
        """Units in the batches that are being computed."""
        self._idle = instances
        self._run, self._clock, self._observe, self._halting = run, clock, observe, halting
        self._under_way: set[_UnderWay] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._closed = False
        self._work: SimpleQueue[_UnderWay | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name=f"batches-{number}", daemon=True) for number in range(instances)]

    def start(self) -> None:
        """Start the threads; called on the event loop that `submit` runs on."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    async def aclose(self) -> None:
        """Let the batches under way finish, end the threads; what waits fails."""
        self._closed = True
        for job in self.queue.clear():
            job.done(job.units[0], None, overloaded("the engine is draining"))
        if self._loop is not None:
            for _ in self._threads:
                self._work.put(None)
            for thread in self._threads:
                await self._loop.run_in_executor(None, thread.join)

    async def submit(
        self, units: Sequence[Unit], *, priority: int = 1, deadline: float | None = None, request: Request | None = None
    ) -> list[Any]:
        """Results of the units, in their order. request: is told of its phases.

        Raises RunFailed, or ApiError (503 queue full, 504 too late)."""
        if self._loop is None or self._closed:
            raise overloaded("the engine is draining")
        future: asyncio.Future[None] = self._loop.create_future()
        results: list[Any] = [None] * len(units)
        left = len(units)

        def done(unit: Unit, result: Any, error: Exception | None) -> None:
            nonlocal left
            results[unit.index] = result
            left -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            elif not left:
                future.set_result(None)

        job = BatchJob(units, done, priority=priority, deadline=deadline)
        if request is not None:
            request.timed = job.phases
        try:
            self.queue.add(job, self._clock.monotonic())
        except Full:
            raise overloaded(f"the engine's queue is full ({self.queue.limit} requests)") from None
        self._schedule()
        try:
            await future
        finally:
            self.queue.remove(job)
            job.left = True
            if left:
                self._give_up(job)
        return results

    def _give_up(self, job: BatchJob) -> None:
        """Halt what runs for this job alone, and soon what runs for others, too."""
        for batch in self._under_way:
            if any(unit.job is job for unit in batch.now):
                if batch.unwanted:
                    batch.halt()
                elif self._loop is not None:
                    self._loop.call_later(LEFT_SECONDS, self._halt, batch, batch.now)

    def _halt(self, batch: _UnderWay, units: list[Unit]) -> None:
        if batch in self._under_way and batch.now is units:
            batch.halt()

    @property
    def stuck(self) -> float:
        """For how many seconds a run has gone on that was to end; 0 if there is none."""
        return max((time.monotonic() - batch.halted for batch in self._under_way if batch.halted), default=0.0)

    def _schedule(self) -> None:
        """Look at the queue at the end of this turn of the loop, when everything that came in this turn is in it."""
        if not self._scheduled and self._idle and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            return
        while self._idle:
            now = self._clock.monotonic()
            taken, wait = self.queue.take(now)
            if not taken:
                if wait is not None:
                    self._timer = self._loop.call_later(wait, self._dispatch)
                return
            units = self._in_time(taken, now)
            if units:
                self._idle -= 1
                self.running += len(units)
                began = time.perf_counter_ns()
                for unit in units:
                    unit.job.began = unit.job.began or began
                batch = _UnderWay(units)
                self._under_way.add(batch)
                self._work.put(batch)

    @staticmethod
    def _in_time(units: list[Unit], now: float) -> list[Unit]:
        """The requests whose deadline has not passed; nobody reads the results of others."""
        kept = []
        for unit in units:
            if unit.job.deadline is not None and unit.job.deadline <= now:
                error = ApiError(504, "the deadline passed in the engine's queue", kind="timeout_error", code="engine_timeout")
                unit.job.done(unit, None, error)
            else:
                kept.append(unit)
        return kept

    # -- on the threads ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            batch = self._work.get()
            if batch is None:
                return
            started = self._clock.monotonic()
            outcomes = self._outcomes(batch, batch.units)
            seconds = self._clock.monotonic() - started
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._finish, batch, outcomes, seconds)
            except RuntimeError:
                return  # the loop was closed: the process is ending

    def _outcomes(self, batch: _UnderWay, units: list[Unit]) -> list[Outcome]:
        """A result or an error for each unit."""
        try:
            with self._halting() as halt:
                batch.begins(units, halt)
                results = self._run([unit.payload for unit in units])
            return [(result, None) for result in results]
        except Exception as exc:  # noqa: BLE001 - boundary: a native runtime may raise anything; it becomes these units' answer
            failed = RunFailed(exc)
            if len(units) == 1:
                return [(None, failed)]
        return [(None, failed) if unit.job.left else self._outcomes(batch, [unit])[0] for unit in units]

    def _finish(self, batch: _UnderWay, outcomes: list[Outcome], seconds: float) -> None:
        units = batch.units
        self._under_way.discard(batch)
        self._idle += 1
        self.running -= len(units)
        ended = time.perf_counter_ns()
        for unit, (result, error) in zip(units, outcomes, strict=True):
            unit.job.ended = ended
            unit.job.done(unit, result, error)
        if all(error is None for _result, error in outcomes):
            self.queue.took(units[0].key, sum(unit.rows for unit in units), seconds)
        self._observe(units, seconds, self._clock.monotonic())
        self._schedule()
