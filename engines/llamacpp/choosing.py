"""Choosing the next tokens of several sequences at once, on threads: with a large vocabulary and many streams it takes longer than a step.

llama.cpp releases Python's lock while it samples, and numpy while it works on logits. Each sequence's sampler is used by one thread at a
time, and the decode thread waits for all of them, so a text does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engines.chat.sampling import TopLogprobs, logprobs_of
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Context

WORTH = 65_536
"""Logits of a step below which one thread is as fast as several: waking others takes some 50 microseconds."""
MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """A sequence's next token, and the log-probabilities if they were asked for."""

    token: int
    scores: TopLogprobs | None


def thread_count(wanted: int | None, device: str) -> int:
    """Threads that choose tokens: as many as wanted; by default one on the CPU, whose cores compute the steps, else as many as the machine
    can spare."""
    if wanted is not None:
        return wanted
    return 1 if device == "cpu" else max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) - 2))


class Choosers:
    """Threads beside the decode thread, which is one of `threads` itself. With 1 there is no other."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "choose") if threads > 1 else None

    def choose(self, context: Context, jobs: Sequence[SequenceJob], vocabulary: int) -> dict[int, Choice]:
        """By the identity of a job, the next token after the last batch. Jobs without grammar and guesses; empty if it is not worth it."""
        if self._pool is None or len(jobs) < 2 or len(jobs) * vocabulary < WORTH:
            return {}
        context.logits(jobs[0].output)  # waits for the device, so that the threads find everything in place
        shares = [jobs[number :: self._threads] for number in range(min(self._threads, len(jobs)))]
        others = [self._pool.submit(_choose, context, share) for share in shares[1:]]
        found = dict(_choose(context, shares[0]))
        for other in others:
            found.update(other.result())
        return found

    def close(self) -> None:
        """End the threads. No step may be under way."""
        if self._pool is not None:
            self._pool.shutdown()


def choice(context: Context, job: SequenceJob) -> Choice:
    """The next token of one sequence. Raises GrammarError."""
    token = job.sampler.sample(context, job.output)
    scores = logprobs_of(context.logits(job.output), token, job.logprobs) if job.logprobs is not None else None
    return Choice(token, scores)


def _choose(context: Context, jobs: Sequence[SequenceJob]) -> list[tuple[int, Choice]]:
    return [(id(job), choice(context, job)) for job in jobs]
