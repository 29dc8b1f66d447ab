"""A loaded model with everything that serves it, and the preparation of requests in a thread beside the event loop."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from engines.llamacpp.batcher import Batcher, new_seed
from engines.llamacpp.conversation import Converser
from engines.llamacpp.gbnf import Refusals
from engines.llamacpp.generation import Generation
from engines.llamacpp.jobs import Mailbox, SequenceJob
from engines.llamacpp.native import Context, Model
from engines.llamacpp.options import SCORED_CHUNK, Defaults, Speculation
from engines.llamacpp.sampling import GrammarError, Sampler, SamplingParams
from engines.llamacpp.speculation import Guesser
from engines.sidecar.shell import ApiError, Request

T = TypeVar("T")

BYTES_A_THREAD = 16 * 1024 * 1024
"""Bytes of weights per thread: with less, a further thread costs more in barriers than it gains."""


@dataclass(slots=True)
class Engine:
    """What the handlers work with. `context_size` is the most tokens of one request, prompt and answer together."""

    name: str
    model: Model
    context: Context
    batcher: Batcher
    converser: Converser
    defaults: Defaults
    context_size: int
    executor: ThreadPoolExecutor
    grammars: Refusals = field(default_factory=Refusals)
    speculation: Speculation | None = None
    adapters: tuple[str, ...] = ()

    async def prepare(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Run blocking work in the executor. If the caller is cancelled meanwhile, `undo` receives the result."""
        future = asyncio.get_running_loop().run_in_executor(self.executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: undo(done.result()) if not done.cancelled() and done.exception() is None else None)
            raise

    def check_room(self, count: int, param: str) -> None:
        """Raises 400 if a request asks for more sequences than can ever run or wait, 503 if they do not fit now. Runs on the loop."""
        most = self.batcher.slots + self.batcher.queue
        if count > most:
            raise ApiError(400, f"{param}: {count} sequences in one request; this engine takes at most {most}", param=param)
        self.batcher.check_room(count)

    def check_length(self, prompt: int, max_tokens: int | None, param: str) -> int:
        """The most tokens to generate. Raises ApiError 400 if prompt and answer do not fit into the context."""
        limit = self.context_size
        if prompt >= limit:
            message = f"the prompt has {prompt} tokens; this model's context is {limit} tokens, prompt and answer together"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        if max_tokens is None:
            return limit - prompt
        if prompt + max_tokens > limit:
            message = f"{prompt} prompt tokens and max_tokens {max_tokens} are more than this model's context of {limit} tokens"
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        return max_tokens


@dataclass(slots=True)
class Prompted:
    """One prompt's share of a request: its tokens and how many choices to generate from it."""

    tokens: list[int]
    choices: int
    max_tokens: int


def build(
    engine: Engine, request: Request, prompts: Sequence[Prompted], params: SamplingParams, *, stops: tuple[str, ...], seeded: bool,
    logprobs: int | None = None, ignore_eos: bool = False, score_prompt: bool = False, markers: Mapping[int, bytes] | None = None,
    adapter: str = "",
) -> Generation:  # fmt: skip
    """Jobs with their samplers, not submitted yet. Blocking (grammars are compiled). Raises ApiError 400 for a bad grammar.

    Choices of one prompt share its KV: all but the first wait until the first has read the prompt.
    """
    mailbox = Mailbox()
    jobs: list[SequenceJob] = []
    try:
        for prompt in prompts:
            first: SequenceJob | None = None
            for number in range(prompt.choices):
                seed = (params.seed + number) % (2**32 - 1) if seeded else new_seed()
                job = SequenceJob(
                    priority=request.priority, arrival=0, prompt=len(prompt.tokens), deadline=request.deadline or math.inf, after=first,
                    index=len(jobs), tokens=prompt.tokens, max_tokens=prompt.max_tokens, mailbox=mailbox, logprobs=logprobs,
                    ignore_eos=ignore_eos, markers=markers or {}, prompt_logprobs=score_prompt and first is None,
                    domain=request.cache_salt, adapter=adapter, largest_chunk=SCORED_CHUNK if score_prompt else 2**31,
                    sampler=Sampler(engine.model, replace(params, seed=seed), prompt.tokens),
                    guesser=Guesser(prompt.tokens, engine.speculation.match) if engine.speculation is not None else None,
                )  # fmt: skip
                jobs.append(job)
                first = first or job
    except GrammarError as exc:
        for job in jobs:
            job.sampler.close()
        raise ApiError(400, str(exc), param="grammar", code="invalid_grammar") from None
    return Generation(engine.batcher, mailbox, jobs, stops)


def discard(generation: Generation) -> None:
    """Free what `build` made for a request that is not submitted."""
    for job in generation.jobs:
        job.sampler.close()


def thread_count(weights: int) -> int:
    """Threads for a model of this many bytes: small models lose more in barriers than they gain."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(cores, weights // BYTES_A_THREAD))
