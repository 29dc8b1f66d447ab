"""A loaded GGUF model with everything that serves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engines.chat.engine import Prompted, TextEngine
from engines.chat.events import Mailbox
from engines.chat.generation import Generation
from engines.chat.sampling import SamplingParams
from engines.llamacpp.batcher import Batcher, new_seed
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.native import Context, Model
from engines.llamacpp.options import SCORED_CHUNK, Speculation
from engines.llamacpp.sampling import GrammarError, Sampler
from engines.llamacpp.speculation import Guesser, Trust
from engines.sidecar.shell import ApiError, Request


@dataclass(slots=True, kw_only=True)
class Engine(TextEngine):
    """A model in llama.cpp with the batcher that runs it."""

    model: Model
    context: Context
    batcher: Batcher
    speculation: Speculation | None = None

    def check_now(self, count: int) -> None:
        self.batcher.check_room(count)

    def build(
        self, request: Request, prompts: Sequence[Prompted], params: SamplingParams, *, stops: tuple[str, ...], seeded: bool,
        logprobs: int | None = None, ignore_eos: bool = False, score_prompt: bool = False, markers: Mapping[int, bytes] | None = None,
        adapter: str = "",
    ) -> Generation[SequenceJob]:  # fmt: skip
        return build(
            self, request, prompts, params, stops=stops, seeded=seeded, logprobs=logprobs, ignore_eos=ignore_eos, score_prompt=score_prompt,
            markers=markers, adapter=adapter,
        )  # fmt: skip

    def discard(self, generation: Generation[SequenceJob]) -> None:
        discard(generation)


def build(
    engine: Engine, request: Request, prompts: Sequence[Prompted], params: SamplingParams, *, stops: tuple[str, ...], seeded: bool,
    logprobs: int | None = None, ignore_eos: bool = False, score_prompt: bool = False, markers: Mapping[int, bytes] | None = None,
    adapter: str = "",
) -> Generation[SequenceJob]:  # fmt: skip
    """Jobs with their samplers, not submitted yet. Blocking (grammars are compiled). Raises ApiError 400 for a bad grammar.

    Choices of one prompt share its KV: all but the first wait until the first has read the prompt.
    """
    mailbox: Mailbox[SequenceJob] = Mailbox()
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
                    trust=Trust() if engine.speculation is not None and engine.speculation.draft is not None else None,
                )  # fmt: skip
                jobs.append(job)
                first = first or job
    except GrammarError as exc:
        for job in jobs:
            job.sampler.close()
        raise ApiError(400, str(exc), param="grammar", code="invalid_grammar") from None
    return Generation(engine.batcher, mailbox, jobs, stops)


def discard(generation: Generation[SequenceJob]) -> None:
    """Free what `build` made for a request that is not submitted."""
    for job in generation.jobs:
        job.sampler.close()
