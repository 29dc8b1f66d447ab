"""A loaded model with everything that serves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engines.chat.engine import Prompted, TextEngine
from engines.chat.events import Mailbox
from engines.chat.generation import Generation
from engines.chat.params import unsupported
from engines.chat.sampling import SamplingParams
from engines.genai.runner import GenaiJob, Runner, new_seed
from engines.sidecar.shell import Request


@dataclass(slots=True, kw_only=True)
class GenaiEngine(TextEngine):
    """`engines.chat.engine.TextEngine` for onnxruntime-genai."""

    runner: Runner

    def check_now(self, count: int) -> None:
        self.runner.check_room(count)

    def build(
        self, request: Request, prompts: Sequence[Prompted], params: SamplingParams, *, stops: tuple[str, ...], seeded: bool,
        logprobs: int | None = None, ignore_eos: bool = False, score_prompt: bool = False, markers: Mapping[int, bytes] | None = None,
        adapter: str = "",
    ) -> Generation[GenaiJob]:  # fmt: skip
        if score_prompt:
            raise unsupported("echo", "this runtime has no log probabilities of a prompt's tokens; leave out echo or logprobs")
        if params.typical_p != 1:
            raise unsupported("typical_p", "this runtime does not have it")
        if params.repeat_last_n != self.defaults.repeat_last_n:
            raise unsupported("repeat_last_n", "this runtime's penalty looks at the whole text")
        if params.grammar is not None and params.min_p > 0:
            if params.min_p != self.defaults.min_p:
                raise unsupported("min_p", "this runtime cannot combine it with an answer's form; use top_p")
            params = replace(params, min_p=0.0)
        params = replace(params, top_k=min(params.top_k, self.vocabulary.n_vocab))
        mailbox: Mailbox[GenaiJob] = Mailbox()
        jobs: list[GenaiJob] = []
        for prompt in prompts:
            for number in range(prompt.choices):
                seed = params.seed + number if seeded else new_seed()
                jobs.append(
                    GenaiJob(
                        index=len(jobs), tokens=prompt.tokens, prompt=len(prompt.tokens), priority=request.priority,
                        deadline=request.deadline or math.inf, max_tokens=prompt.max_tokens, params=replace(params, seed=seed),
                        mailbox=mailbox, logprobs=logprobs, ignore_eos=ignore_eos, markers=markers or {},
                        after=jobs[-number] if number else None, domain=request.cache_salt, seeded=seeded,
                    )
                )  # fmt: skip
        return Generation(self.runner, mailbox, jobs, stops)

    def discard(self, generation: Generation[GenaiJob]) -> None:
        """Nothing is held before a job runs."""
