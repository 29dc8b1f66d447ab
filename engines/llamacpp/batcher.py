"""Continuous batching: one decode thread runs llama.cpp, one event loop talks to clients.

They meet in two places only. The loop appends to an inbox (new jobs, cancellations) and rings a bell; the decode thread empties it between
steps and never waits for the loop. After each step the decode thread hands over all new tokens of all sequences with one
`call_soon_threadsafe`. Text, stop strings and HTTP are the loop's work, done while the decode thread is inside llama.cpp, which releases
the GIL.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

from engines.chat.events import Event, Mailbox
from engines.chat.sampling import SamplingParams, logprobs_of
from engines.llamacpp.adapters import Turns
from engines.llamacpp.choosing import Choice, Choosers, choice
from engines.llamacpp.delivery import Delivery, Made
from engines.llamacpp.drafting import Drafter
from engines.llamacpp.guessing import Guessing
from engines.llamacpp.jobs import SequenceJob, Stats
from engines.llamacpp.native import Batch, Context, LoraAdapter, Model
from engines.llamacpp.pacing import HOLD, Pacer
from engines.llamacpp.prefix import Line, Lines
from engines.llamacpp.sampling import GrammarError, Sampler
from engines.llamacpp.scheduler import TILE, Plan, StepCosts, admit
from engines.sidecar.shell import ApiError, overloaded

BACKLOG = 256
"""Unread tokens after which a client's generation pauses until it reads."""
MAX_FAULTS = 3
"""Consecutive failed steps after which the engine reports itself as failed, and its supervisor restarts it."""
STUCK_SECONDS = 30.0
"""If a grammar takes this long to choose a token it never will. The engine then reports itself as failed: nothing can stop the search."""
PIN_PRIORITY = -(2**31)
"""Pinned prompts are read before all others."""
WARM_UP = 16
"""Tokens of the largest warm-up step but those of a tile, few enough for every batch size."""
WARM_UP_SECONDS = 1.0
"""No warm-up step is repeated, and none of a whole tile made, that would end later."""


class Batcher:
    """Runs jobs on one context. `slots` sequences at once, `queue` more may wait. drafts: most guessed tokens of a sequence in a step."""

    def __init__(
        self, model: Model, context: Context, *, slots: int, queue: int, batch: int, lines: int, costs: StepCosts, drafts: int = 0,
        adapters: Mapping[str, LoraAdapter] | None = None, outputs: int | None = None, choosers: int = 1,
        drafter: Drafter | None = None, hold: float = HOLD,
    ) -> None:  # fmt: skip
        """outputs: the most logits that a step may ask for; default: as many as its tokens. choosers: threads that choose tokens. drafter:
        a draft model that guesses as well. hold: seconds that a token may be held back."""
        self._model = model
        self._context = context
        self.slots = slots
        self.queue = queue
        self.stats = Stats()
        self.costs = costs
        self._pacer = Pacer(costs, 0.0 if adapters else hold)  # the streams of several adapters take turns: they have no pace
        self._delivery = Delivery()
        self._adapters = adapters or {}
        self._turns = Turns() if adapters else None
        self._adapter = ""
        self._guessing = Guessing(drafts, self.stats, drafter) if drafts else None
        self._choosers = Choosers(choosers)
        self.failed: str | None = None
        self._batch = Batch(batch)
        self._outputs = batch if outputs is None else outputs
        self._lines = Lines(lines, context.cells, partial=context.partial)
        self._inbox: deque[tuple[Literal["add", "cancel", "wake", "close"], SequenceJob | None]] = deque()
        self._bell = threading.Event()
        self._waiting: list[SequenceJob] = []
        self._running: list[SequenceJob] = []
        self._outbox: list[Made] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outstanding = 0
        self._arrivals = 0
        self._closed = False
        self._faults = 0
        self._choosing_since = math.inf
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the decode thread; events go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def warm_up(self) -> None:
        """Read a few tokens and forget them: this brings the weights into memory and measures what steps cost. Blocking, before `start`.

        Raises RuntimeError if llama.cpp cannot run the model.
        """
        costs: dict[int, float] = {}
        began = time.monotonic()
        whole = TILE if min(self._batch.capacity, self._context.cells) >= TILE else WARM_UP
        for count in (1, 1, WARM_UP, WARM_UP, 1, WARM_UP, 1, WARM_UP, whole, whole):
            if WARM_UP in costs and time.monotonic() - began + costs[WARM_UP] * (count // WARM_UP) > WARM_UP_SECONDS:
                break
            self._batch.clear()
            last = self._batch.add(0, 0, [max(self._model.bos, 0)] * count, output_last=True)
            if self._guessing is not None and count <= WARM_UP:  # each guess needs logits
                self._batch.output[:count] = 1
            started = time.monotonic()
            self._decode()
            self._context.logits(last)  # waits for an asynchronous device
            # The first pays for one-time setup; of the others the shortest counts, which nothing else delayed.
            costs[count] = min(costs.get(count, math.inf), time.monotonic() - started)
            self._context.clear()
        for count, seconds in costs.items():
            self.costs.observe(1, count - 1, seconds)
            if self._guessing is not None and count <= WARM_UP:
                self._guessing.prices.observe(count, seconds)
        if self._guessing is not None and self._guessing.drafter is not None:
            self._guessing.drafter.warm_up(WARM_UP)

    def stuck(self) -> bool:
        """Whether the decode thread has followed a grammar for longer than any sensible one takes."""
        return time.monotonic() - self._choosing_since > STUCK_SECONDS

    def check_room(self, count: int = 1) -> None:
        """Raises 503 if `count` more jobs do not fit into slots and queue. Runs on the loop."""
        if self.failed is not None:
            raise ApiError(503, f"the engine failed: {self.failed}", kind="engine_error", code="engine_failed")
        if self._outstanding + count > self.slots + self.queue:
            raise overloaded(f"{self._outstanding} requests are running or waiting; no more are taken")

    def submit(self, jobs: Sequence[SequenceJob]) -> None:
        """Queue jobs that belong together. Runs on the loop. Raises 503 if they do not fit, and closes their samplers."""
        try:
            self.check_room(len(jobs))
        except ApiError:
            for job in jobs:
                job.sampler.close()
            raise
        self._enqueue(jobs)

    def _enqueue(self, jobs: Sequence[SequenceJob]) -> None:
        self._outstanding += len(jobs)
        for job in jobs:
            self._arrivals += 1
            job.arrival = self._arrivals
            self._inbox.append(("add", job))
        self._bell.set()

    async def pin(self, prompts: Sequence[list[int]]) -> None:
        """Read these beginnings of prompts (system prompts) and keep their KV for good. Runs on the loop, before anything else."""
        for tokens in prompts:
            reading = self._reading(tokens)
            self._enqueue([reading])
            for _job, event in await reading.mailbox.get():
                if event.error is not None:
                    raise event.error

    def _reading(self, tokens: list[int]) -> SequenceJob:
        """The job that reads a pinned prompt, before any other that waits."""
        sampler = Sampler(self._model, SamplingParams(), tokens)
        return SequenceJob(
            priority=PIN_PRIORITY, arrival=0, prompt=len(tokens), tokens=tokens, sampler=sampler, max_tokens=0, mailbox=Mailbox(), pin=True
        )  # fmt: skip

    def _pin_again(self, prompts: Sequence[list[int]]) -> None:
        """Reads the pinned prompts again after the memory was cleared, without a request that waits for it. Runs on the loop."""
        if not self._closed:
            self._enqueue([self._reading(tokens) for tokens in prompts])

    def cancel(self, job: SequenceJob) -> None:
        """Stop a job; its slot is free at the next step, and no more events come. Runs on the loop; harmless if the job has ended."""
        self._delivery.drop(job)
        if not job.ended:
            self._inbox.append(("cancel", job))
            self._bell.set()

    def resume(self, job: SequenceJob) -> None:
        """The reader has caught up. Runs on the loop."""
        if job.paused:
            self._inbox.append(("wake", job))
            self._bell.set()

    def close(self) -> None:
        """End the decode thread after its step and wait for it; running jobs are dropped."""
        self._inbox.append(("close", None))
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def _deliver(self, events: list[Made]) -> None:
        self._outstanding -= sum(event.finish is not None or event.error is not None for _job, event, _due in events)
        self._delivery.deliver(events)

    def _released(self) -> None:
        self._outstanding -= 1

    # -- the decode thread's side -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                self._turn()
            except Exception as exc:  # noqa: BLE001 - boundary: a fault ends the jobs of this step, not the engine
                self._fault(exc)
        for job in (*self._running, *self._waiting):
            job.sampler.close()
        self._choosers.close()

    def _turn(self) -> None:
        """Empty the inbox, admit, run one step or sleep until the bell rings."""
        self._bell.clear()
        self._read_inbox()
        self._admit()
        running = self._running if self._turns is None else self._turn_of(self._turns)
        plan = self._pacer.plan(running, self._batch.capacity, time.monotonic())
        self._bound_outputs(plan)
        self.stats.in_use, self.stats.waiting = len(self._running), len(self._waiting)
        self.stats.cells_used, self.stats.cells_held = self._lines.used(), self._lines.held()
        if plan:
            self._step(plan)
            self._flush()
        elif not self._closed:
            self._flush()
            self._bell.wait(self._until_deadline())

    def _bound_outputs(self, plan: Plan[SequenceJob]) -> None:
        """Leaves out of the step what would ask for more logits than llama.cpp has room for: prompts of which each token is scored take
        turns, the oldest first."""
        scored = [job for job, _count in plan.prefill if job.prompt_logprobs]
        if not scored:
            return
        counts = {id(job): count for job, count in plan.prefill}
        left = self._outputs - len(plan.decode) - (len(plan.prefill) - len(scored))
        for job in sorted(scored, key=lambda job: job.arrival):
            counts[id(job)] = min(counts[id(job)], left)
            left -= counts[id(job)]
        plan.prefill = [(job, counts[id(job)]) for job, _count in plan.prefill if counts[id(job)] > 0]

    def _turn_of(self, turns: Turns) -> Sequence[SequenceJob]:
        """The jobs of the adapter whose turn it is; llama.cpp computes with it from now on."""
        running = turns.of(self._running)
        if turns.adapter != self._adapter:
            self._context.use(self._adapters.get(turns.adapter))
            self._adapter = turns.adapter
            self.stats.adapter_changes += 1
        return running

    def _until_deadline(self) -> float | None:
        soonest = min((job.deadline for job in self._waiting), default=math.inf)
        return None if soonest == math.inf else max(0.001, soonest - time.monotonic())

    def _read_inbox(self) -> None:
        while self._inbox:
            kind, job = self._inbox.popleft()
            if job is None:
                self._closed = True
            elif kind == "add":
                self._waiting.append(job)
                self.stats.requests += 1
            elif kind == "wake":
                job.paused = False
            elif not job.ended:
                self.stats.cancelled += 1
                self._end(job)
                self._call(self._released)

    def _admit(self) -> None:
        if not self._waiting:
            return
        admitted, expired = admit(self._waiting, self.slots - len(self._running), time.monotonic())
        for job in expired:
            self._end(job, Event(None, error=ApiError(504, "the deadline has passed", kind="timeout_error", code="engine_timeout")))
        for job in admitted:
            self._waiting.remove(job)
            self._running.append(job)  # first, so that a fault in placing it is reported to its client
            self._place(job)

    def _place(self, job: SequenceJob) -> None:
        """Give the job a line and the reusable part of the KV memory."""
        if job.prompt_logprobs:
            placement = self._lines.place(job.tokens[:1], job.domain, job.adapter)
        else:
            placement = self._lines.place(job.tokens, job.domain, job.adapter)
        line, reuse = placement.line, placement.reuse
        if placement.source is not None:
            self._context.trim(line.seq, 0)
            self._context.copy(placement.source.seq, line.seq, reuse)
        elif not self._context.trim(line.seq, reuse):
            self._context.trim(line.seq, 0)
            del line.tokens[:]
            reuse = 0
        if self._guessing is not None:
            self._guessing.place(line, reuse, placement.source)
        job.line, job.done, job.reused, job.placed = line, reuse, reuse, time.perf_counter_ns()
        self.stats.prompt_tokens += len(job.tokens)
        self.stats.cached_tokens += reuse

    def _step(self, plan: Plan[SequenceJob]) -> None:
        batch = self._batch
        batch.clear()
        prefilled = depths = 0
        drafted = 0
        if self._guessing is not None and not plan.prefill:
            drafted = self._guessing.make(plan.decode, min(batch.capacity, self._outputs) - len(plan.decode))
        for job in plan.decode:
            line = _line(job)
            job.output = batch.add_one(line.seq, len(line.tokens), job.last)
            line.tokens.append(job.last)
            for ahead, token in enumerate(job.drafts, start=len(line.tokens)):
                batch.add_one(line.seq, ahead, token)
        for job, count in plan.prefill:
            line = _line(job)
            piece = job.tokens[job.done : job.done + count]
            last = job.done + count == job.prompt
            start = batch.count
            job.output = batch.add(line.seq, job.done, piece, output_last=last)
            if job.prompt_logprobs:
                batch.output[start : batch.count] = 1
            line.tokens.extend(piece)
            prefilled += count
            depths += count * (job.done + count // 2)
        started = time.monotonic()
        self._decode(drafted)
        self._faults = 0
        self.stats.steps += 1
        produced = self._harvest(plan)
        now = time.monotonic()
        if not drafted:
            self.costs.observe(len(plan.decode), prefilled, now - started, depths / max(1, prefilled))
        if self._guessing is not None and not prefilled:
            self._guessing.observe(len(plan.decode), batch.count, now - started, produced)
            self._guessing.settle()
        self.stats.decode_seconds += now - started
        self.stats.longest_step = max(self.stats.longest_step, now - started)

    def _decode(self, drafted: int = 0) -> None:
        """Run the batch. Makes room among the cached lines first (also for guesses), and once more if llama.cpp finds none."""
        self._make_room(drafted)
        status = self._context.decode(self._batch)
        if status == 1:
            self._make_room(self._context.cells)
            status = self._context.decode(self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _make_room(self, need: int) -> None:
        for line in self._lines.room(need):
            self._context.trim(line.seq, 0)
            if self._guessing is not None:
                self._guessing.cut(line, 0)

    def _harvest(self, plan: Plan[SequenceJob]) -> int:
        """Sample one token for every sequence that has logits; how many were produced."""
        produced = 0
        chosen = self._choose(plan)
        for job in plan.decode:
            produced += self._sample(job, chosen.get(id(job))) if not job.drafts else self._verify(job)
        for job, count in plan.prefill:
            if job.prompt_logprobs:
                self._score_prompt(job, count)
            job.done += count
            if job.done == job.prompt:
                job.decoding, job.read = True, time.perf_counter_ns()
                produced += self._sample(job, chosen.get(id(job)))
        self.stats.produced(produced, time.monotonic())
        return produced

    def _choose(self, plan: Plan[SequenceJob]) -> Mapping[int, Choice]:
        """What several threads choose at once. Grammars stay with the decode thread, whose time at them is watched; of a sequence with
        guesses, what is drawn depends on what was drawn before."""
        jobs = [job for job in plan.decode if not job.drafts]
        jobs += [job for job, count in plan.prefill if job.done + count == job.prompt and job.max_tokens]
        return self._choosers.choose(self._context, [job for job in jobs if not job.sampler.constrained], self._model.n_vocab)

    def _verify(self, job: SequenceJob) -> int:
        """Sample after the job's token and after its guesses, as long as what is drawn is what was guessed; how many were produced."""
        line, drafts, first, produced = _line(job), job.drafts, job.output, 0
        job.drafts = []
        for at in range(len(drafts) + 1):
            job.output = first + at
            produced += self._sample(job)
            if job.ended or at == len(drafts) or job.last != drafts[at]:
                break
            line.tokens.append(job.last)
            self.stats.accepted += 1
            self.stats.model_accepted += job.by_model
        self._context.trim(line.seq, len(line.tokens))
        return produced

    def _score_prompt(self, job: SequenceJob, count: int) -> None:
        """Log-probabilities of the prompt's tokens that follow those of this chunk (`echo` with `logprobs`)."""
        first = job.output - count + 1
        for offset in range(count):
            following = job.done + offset + 1
            if following < job.prompt:
                scores = logprobs_of(self._context.logits(first + offset), job.tokens[following], job.logprobs or 0)
                job.prompt_scores.append(scores)

    def _sample(self, job: SequenceJob, chosen: Choice | None = None) -> int:
        """Sample, note and queue one token; how many were produced (0 or 1). chosen: what it is, if that is known."""
        if job.max_tokens == 0:
            self._end(job, Event(None, finish="length"))
            return 0
        try:
            if job.sampler.constrained:
                self._choosing_since = time.monotonic()
            if chosen is None:
                chosen = choice(self._context, job)
        except GrammarError as exc:
            self._end(job, Event(None, error=ApiError(400, str(exc), param="grammar", code="invalid_grammar")))
            return 0
        finally:
            self._choosing_since = math.inf
        token = chosen.token
        if self._model.is_end(token) and not (job.ignore_eos and not job.sampler.constrained):  # nothing can follow a grammar's end
            self._end(job, Event(None, finish="stop"))
            return 0
        job.generated += 1
        job.produced += 1
        job.last = token
        if job.guesser is not None:
            job.guesser.add(token)
        if job.trust is not None:
            job.trust.add(token)
        event = Event(token, job.markers.get(token) or self._model.piece(token), chosen.scores)
        if job.generated >= job.max_tokens:
            event.finish = "length"
            self._end(job, event)
        else:
            self._outbox.append((job, event, self._pacer.due(job, time.monotonic())))
            job.paused = job.produced - job.consumed > BACKLOG
        return 1

    def _end(self, job: SequenceJob, event: Event | None = None) -> None:
        """The job leaves its slot; its line keeps what was computed."""
        job.ended = True
        if job.line is not None:
            if job.pin and job.decoding:
                self._lines.pin(job.line)
                if self._guessing is not None:
                    self._guessing.pinned(job.line, job.line.tokens)
            else:
                self._lines.release(job.line)
            job.line = None
            self._running.remove(job)
        elif job in self._waiting:
            self._waiting.remove(job)
        job.sampler.close()
        if event is not None:
            self._outbox.append((job, event, 0.0))

    def _fault(self, exc: Exception) -> None:
        """End every running job with an error after a failed step, and start over with an empty memory; pinned prompts are read again."""
        traceback.print_exception(exc, file=sys.stderr)
        self.stats.faults += 1
        self._faults += 1
        lost = self._lines.pinned() + [job.tokens for job in self._running if job.pin]
        for job in list(self._running):
            error = ApiError(500, "the engine failed in this step", kind="engine_error", code="engine_failed")
            job.line = None  # the memory is cleared below: nothing to keep
            self._running.remove(job)
            self._end(job, Event(None, error=error))
        self._context.clear()
        if self._guessing is not None:
            self._guessing.clear()
        self._lines.forget()
        self._flush()
        if lost:
            self._call(self._pin_again, lost)
        if self._faults >= MAX_FAULTS:
            self.failed = f"{type(exc).__name__}: {exc}"

    def _flush(self) -> None:
        """Hand everything new to the loop in one call."""
        if self._outbox:
            events, self._outbox = self._outbox, []
            self._call(self._deliver, events)

    def _call(self, function: object, *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]


def _line(job: SequenceJob) -> Line:
    if job.line is None:
        raise RuntimeError("a job without a line was planned")
    return job.line


def new_seed() -> int:
    """A random seed."""
    return random.SystemRandom().randrange(2**32 - 1)
