"""Running jobs: a thread for each slot, which generates one sequence at a time; the event loop talks to clients.

onnxruntime-genai has two ways to run several sequences. Its `Engine` batches them continuously only where the graph has paged attention,
which ONNX Runtime computes on GPUs alone; without, it batches those that begin together, and the next wait until the last has
ended. So each slot has a `Generator` of its own. The slots' threads compute side by side; what they share are the weights.

Jobs wait in one queue: by priority, then in order of arrival. The loop appends, the threads take; what they produce goes to the loop
with `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams, TopLogprobs
from engines.genai.kept import Kept
from engines.genai.native import GenaiModel, GuidanceError, Text, searched
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.shell import ApiError, overloaded

BACKLOG = 256
"""Unread tokens after which a client's generation pauses until it reads."""
MAX_FAULTS = 3
"""Consecutive jobs that failed after which the engine reports itself as failed, and its supervisor restarts it."""
RATE_WINDOW = 2.0


@dataclass(slots=True, eq=False, kw_only=True)
class GenaiJob:
    """One sequence to generate (`engines.chat.events.Job`). cancelled, bell: set by the loop; the rest from `placed` on by the thread."""

    index: int
    tokens: list[int]
    prompt: int
    priority: int
    deadline: float
    max_tokens: int
    params: SamplingParams
    mailbox: Mailbox[GenaiJob]
    logprobs: int | None = None
    ignore_eos: bool = False
    markers: Mapping[int, bytes] = field(default_factory=dict)
    after: GenaiJob | None = None
    domain: bytes = b""
    seeded: bool = False
    cancelled: bool = False
    ended: bool = False
    bell: threading.Event = field(default_factory=threading.Event)
    reused: int = 0
    placed: int = 0
    read: int = 0
    produced: int = 0
    consumed: int = 0
    paused: bool = False
    prompt_scores: list[TopLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Stats:
    """Counters; changed under the runner's lock."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    kept: int = 0
    generated_tokens: int = 0
    requests: int = 0
    cancelled: int = 0
    faults: int = 0
    in_use: int = 0
    waiting: int = 0
    cells: int = 0
    window: deque[float] = field(default_factory=lambda: deque(maxlen=4096))

    def metrics(self) -> list[tuple[str, str, float]]:
        """(name, kind, value) of every counter and gauge."""
        return [
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("cached_prompt_tokens_total", "counter", self.cached_tokens),
            ("generated_tokens_total", "counter", self.generated_tokens),
            ("sequences_total", "counter", self.requests),
            ("cancelled_total", "counter", self.cancelled),
            ("faults_total", "counter", self.faults),
            ("slots_in_use", "gauge", self.in_use),
            ("waiting", "gauge", self.waiting),
            ("kv_cells_used", "gauge", self.cells),
            ("kept_sequences", "gauge", self.kept),
        ]

    def rate_at(self, now: float) -> float:
        """Tokens a second over the last two seconds."""
        return sum(1 for at in list(self.window) if now - at < RATE_WINDOW) / RATE_WINDOW


class Runner:
    """Runs jobs of one model. `slots` at once, `queue` more may wait. chunk: prompt tokens that are read at once. longest: tokens that a
    sequence can hold, if sequences of ended jobs are kept for those that begin alike (0: they are not). Running and kept ones together are
    never more than the slots."""

    def __init__(
        self, model: GenaiModel, vocabulary: GenaiVocabulary, *, slots: int, queue: int, chunk: int, longest: int = 0
    ) -> None:  # fmt: skip
        self._model, self._vocabulary, self._chunk, self._longest = model, vocabulary, chunk, longest
        self._kept = Kept()
        self.slots, self.queue = slots, queue
        self.stats = Stats()
        self.failed: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change = threading.Condition()
        self._waiting: list[tuple[int, int, GenaiJob]] = []
        self._running: set[GenaiJob] = set()
        self._arrivals = self._outstanding = self._faults = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"slot-{number}", daemon=True) for number in range(slots)]

    # -- the loop's side -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; events go to the running loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def warm_up(self) -> None:
        """Generate a few tokens, which brings the weights into memory, and find out whether sequences can be kept. Blocking, before
        `start`. Raises RuntimeError."""
        if not self._model.rewinds():
            self._longest = 0

    def check_room(self, count: int = 1) -> None:
        """Raises 503 if `count` more jobs do not fit into slots and queue."""
        if self.failed is not None:
            raise ApiError(503, f"the engine failed: {self.failed}", kind="engine_error", code="engine_failed")
        if self._outstanding + count > self.slots + self.queue:
            raise overloaded(f"{self._outstanding} requests are running or waiting; no more are taken")

    def submit(self, jobs: Sequence[GenaiJob], /) -> None:
        """Queue jobs that belong together. Raises ApiError 503 if they do not fit."""
        self.check_room(len(jobs))
        self._outstanding += len(jobs)
        with self._change:
            for job in jobs:
                self._arrivals += 1
                heapq.heappush(self._waiting, (job.priority, self._arrivals, job))
            self.stats.requests += len(jobs)
            self.stats.waiting = len(self._waiting)
            self._change.notify(len(jobs))

    def cancel(self, job: GenaiJob, /) -> None:
        """Stop a job: its slot is free after the token or the part of the prompt that is under way, and no more events come."""
        if job.cancelled or job.ended:
            return
        job.cancelled = True
        with self._change:
            self.stats.cancelled += 1
            left = [item for item in self._waiting if item[2] is not job]
            waited = len(left) < len(self._waiting)
            if waited:
                self._waiting = left
                heapq.heapify(self._waiting)
                self.stats.waiting = len(self._waiting)
        if waited:
            self._end(job)
        job.bell.set()

    def resume(self, job: GenaiJob, /) -> None:
        """The reader of a paused job has caught up."""
        job.paused = False
        job.bell.set()

    def close(self) -> None:
        """End the threads after the token that is under way, and wait for them; running jobs are dropped."""
        with self._change:
            self._closed = True
            running = list(self._running)
            self._change.notify_all()
        for job in running:
            job.cancelled = True
            job.bell.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _end(self, job: GenaiJob) -> None:
        if not job.ended:
            job.ended = True
            self._outstanding -= 1

    def _deliver(self, job: GenaiJob, event: Event | None) -> None:
        """On the loop: an event of a job; None: it has ended without one, because nobody reads it."""
        if event is None or event.finish is not None or event.error is not None:
            self._end(job)
        if event is not None and not job.cancelled:
            job.mailbox.put(job, event)

    # -- the threads' side -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._take()) is not None:
            try:
                last = self._run(job)
                self._faults = 0
            except GuidanceError as exc:
                message = f"the answer's form cannot be followed: {exc}"
                param = "response_format" if (job.params.grammar or "").startswith("{") else "grammar"
                last = Event(None, error=ApiError(400, message, param=param, code="unsupported_schema"))
            except Exception as exc:  # noqa: BLE001 - boundary: a fault ends this job, not the engine
                last = self._fault(exc)
            with self._change:
                self._running.discard(job)
                self.stats.in_use = len(self._running)
                self.stats.cells -= job.prompt + job.produced
            self._call(job, last)

    def _take(self) -> GenaiJob | None:
        """The next job; waits for one. None: the threads are to end. Jobs whose deadline has passed are answered."""
        while True:
            with self._change:
                while not self._waiting and not self._closed:
                    self._change.wait()
                if self._closed:
                    return None
                job = heapq.heappop(self._waiting)[2]
                self.stats.waiting = len(self._waiting)
                if time.monotonic() < job.deadline:
                    self._running.add(job)
                    self.stats.in_use = len(self._running)
                    self.stats.cells += job.prompt
                    self.stats.prompt_tokens += job.prompt
                    return job
            self._call(job, Event(None, error=ApiError(504, "the deadline has passed", kind="timeout_error", code="engine_timeout")))

    def _run(self, job: GenaiJob) -> Event | None:
        """Generates the job's sequence; its last event, or None if it was cancelled."""
        job.placed = time.perf_counter_ns()
        settings = searched(job.params)
        keeps = self._longest > 0 and job.params.grammar is None and not (job.seeded and settings["do_sample"])
        text = self._sequence(job, settings if keeps else None)
        last = self._read(job, text)
        if keeps:
            with self._change:
                self._kept.put(text, job.domain, settings)
                self._running.discard(job)
                gone = self._kept.shrink(self.slots - len(self._running))
                self.stats.kept = len(self._kept)
            del gone
        return last

    def _sequence(self, job: GenaiJob, settings: dict[str, Any] | None) -> Text:
        """A kept sequence with the beginning of the job's prompt, if it may have one (settings: how it chooses tokens), or a new one."""
        with self._change:
            running = len(self._running)
            found = None
            if settings is not None:
                found = self._kept.take(job.tokens, job.domain, settings, full=running + len(self._kept) > self.slots)
            gone = self._kept.shrink(self.slots - running)
            self.stats.kept = len(self._kept)
        del gone
        if found is not None:
            text, common = found
            try:
                text.again(job.params, common, ignore_eos=job.ignore_eos)
            except RuntimeError:  # the library would not go back: the job begins anew
                return self._model.sequence(job.params, self._longest, ignore_eos=job.ignore_eos)
            job.reused = common
            with self._change:
                self.stats.cached_tokens += common
            return text
        longest = self._longest if settings is not None else job.prompt + max(job.max_tokens, 1)
        return self._model.sequence(job.params, longest, ignore_eos=job.ignore_eos)

    def _read(self, job: GenaiJob, text: Text) -> Event | None:
        for start in range(job.reused, job.prompt, self._chunk):
            if job.cancelled:
                return None
            text.read(job.tokens[start : start + self._chunk])
        job.read = time.perf_counter_ns()
        if job.max_tokens == 0:
            return Event(None, finish="length")
        return self._generate(job, text)

    def _generate(self, job: GenaiJob, text: Text) -> Event | None:
        while not job.cancelled:
            token, scores = text.next(job.logprobs)
            if token in self._model.eos and not (job.ignore_eos and not text.guided):
                return Event(None, finish="stop")
            job.produced += 1
            with self._change:
                self.stats.generated_tokens += 1
                self.stats.cells += 1
                self.stats.window.append(time.monotonic())
            event = Event(token, job.markers.get(token) or self._vocabulary.piece(token), scores)
            if job.produced >= job.max_tokens or text.done:
                event.finish = "length" if job.produced >= job.max_tokens else "stop"
                return event
            self._call(job, event)
            if job.produced - job.consumed > BACKLOG:
                self._pause(job)
        return None

    def _pause(self, job: GenaiJob) -> None:
        """Waits until the reader has caught up or left."""
        job.bell.clear()
        job.paused = True
        if job.produced - job.consumed <= BACKLOG:  # it caught up before it could see that
            job.paused = False
        while job.paused and not job.cancelled:
            job.bell.wait()
            job.bell.clear()

    def _fault(self, exc: Exception) -> Event:
        """The event of a job that failed. The library's messages may quote what was computed: they are not logged."""
        frames = traceback.extract_tb(exc.__traceback__)
        print(f"a sequence failed: {type(exc).__name__} in {frames[-1].name}, line {frames[-1].lineno}", file=sys.stderr, flush=True)
        with self._change:
            self.stats.faults += 1
            self._faults += 1
            if self._faults >= MAX_FAULTS:
                self.failed = f"{self._faults} sequences failed one after the other, the last with {type(exc).__name__}"
        return Event(None, error=ApiError(500, "the engine failed in this step", kind="engine_error", code="engine_failed"))

    def _call(self, job: GenaiJob, event: Event | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, job, event)


def new_seed() -> int:
    """A random seed."""
    return random.SystemRandom().randrange(2**31 - 1)
