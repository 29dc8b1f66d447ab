"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from engines.chat import responses
from engines.chat.engine import Prompted, TextEngine, adapter_of
from engines.chat.generation import Delta, Generation, collect
from engines.chat.params import CompletionRequest, check_common, parse, prompts_of, sampling_params, unsupported
from engines.chat.responses import DONE, Envelope
from engines.sidecar.shell import ApiError, Request, Response, Stream


class CompletionHandler:
    """One instance for a loaded engine."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response | Stream:
        """POST /v1/completions"""
        body = parse(request.body, CompletionRequest)
        _check_completion(body)
        adapter_of(body.model, self._engine.adapters)
        prompts = prompts_of(body.prompt, "prompt")
        self._engine.check_room(len(prompts) * (body.n or 1), "prompt" if len(prompts) > 1 else "n")
        generation = await self._engine.prepare(lambda: self._prepare_completion(request, body, prompts), self._engine.discard)
        generation.submit()
        request.timed = generation.phases
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        envelope = Envelope("cmpl", "text_completion", body.model or self._engine.name, with_usage=wants_usage)
        if body.stream:
            return Stream(self._stream_text(generation, envelope, body, wants_usage), headers=responses.prompt_header(generation))
        return await self._whole_text(generation, envelope, body)

    async def count(self, request: Request) -> Response:
        """POST /v1/completions/input_tokens: how many tokens the prompts of this request have; generates nothing and needs no slot."""
        body = parse(request.body, CompletionRequest)
        _check_completion(body)
        prompts = prompts_of(body.prompt, "prompt")
        counted = await self._engine.prepare(lambda: [len(self._tokens(prompt)) for prompt in prompts], lambda made: None)
        return Response(msgspec.json.encode({"object": "completion.input_tokens", "input_tokens": sum(counted)}))

    def _prepare_completion(self, request: Request, body: CompletionRequest, prompts: list[str | list[int]]) -> Generation[Any]:
        engine = self._engine
        limit = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default
        prompted = []
        for prompt in prompts:
            if isinstance(prompt, str):
                engine.check_text(len(prompt), "prompt")
            tokens = self._tokens(prompt)
            room = engine.context_size - len(tokens)
            wanted = min(limit, room) if body.max_tokens is None and room > 0 else limit
            prompted.append(Prompted(tokens, body.n or 1, engine.check_length(len(tokens), wanted, "prompt")))
        params = sampling_params(
            body,
            engine.defaults,
            engine.vocabulary.n_vocab,
            body.seed or 0,
            engine.converser.constraints.form(body, engine.grammars.of(request.cache_salt)),
        )
        return engine.build(
            request, prompted, params, stops=body.stops(), seeded=body.seed is not None, logprobs=body.logprobs,
            ignore_eos=bool(body.ignore_eos), score_prompt=bool(body.echo) and body.logprobs is not None,
            adapter=adapter_of(body.model, engine.adapters),
        )  # fmt: skip

    def _tokens(self, prompt: str | list[int]) -> list[int]:
        vocabulary = self._engine.vocabulary
        if isinstance(prompt, str):
            tokens = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
        else:
            tokens = prompt
            if any(token >= vocabulary.n_vocab for token in tokens):
                raise ApiError(400, f"prompt: tokens must be below {vocabulary.n_vocab}", param="prompt")
        if not tokens:
            raise ApiError(400, "prompt must not be empty", param="prompt")
        return tokens

    async def _stream_text(
        self, generation: Generation[Any], envelope: Envelope, body: CompletionRequest, wants_usage: bool
    ) -> AsyncIterator[bytes]:  # fmt: skip
        offsets = {}
        async with aclosing(generation.deltas()) as deltas:
            async for news in deltas:
                out = []
                for delta in news:
                    if body.echo and delta.index not in offsets:
                        text, logprobs = self._echo(generation, delta.index, body)
                        offsets[delta.index] = len(text)
                        out.append(envelope.chunk({"index": delta.index, "text": text, "logprobs": logprobs, "finish_reason": None}))
                    offset = offsets.get(delta.index, 0)
                    out.append(self._text_delta(envelope, delta, offset))
                    offsets[delta.index] = offset + len(delta.text)
                yield b"".join(out)
        yield (envelope.usage(responses.usage(generation)) if wants_usage else b"") + DONE

    def _text_delta(self, envelope: Envelope, delta: Delta, offset: int) -> bytes:
        if not delta.scores and delta.finish is None:
            return envelope.text(delta.index, delta.text)
        logprobs = responses.text_logprobs(self._engine.vocabulary, delta.scores, offset) if delta.scores else None
        return envelope.chunk({"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish})

    async def _whole_text(self, generation: Generation[Any], envelope: Envelope, body: CompletionRequest) -> Response:
        choices = []
        for index, (text, scores, finish) in enumerate(await collect(generation)):
            all_scores: list[Any] = list(scores)
            if body.echo:
                text = self._prompt_text(generation, index) + text
                all_scores = self._prompt_scores(generation, index) + all_scores if body.logprobs is not None else []
            logprobs = responses.text_logprobs(self._engine.vocabulary, all_scores, 0) if body.logprobs is not None else None
            choices.append({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
        return Response(envelope.whole(choices, responses.usage(generation)))

    def _echo(self, generation: Generation[Any], index: int, body: CompletionRequest) -> tuple[str, dict[str, Any] | None]:
        text = self._prompt_text(generation, index)
        if body.logprobs is None:
            return text, None
        return text, responses.text_logprobs(self._engine.vocabulary, self._prompt_scores(generation, index), 0)

    def _prompt_text(self, generation: Generation[Any], index: int) -> str:
        tokens = generation.jobs[index].tokens
        return b"".join(map(self._engine.vocabulary.piece, tokens)).decode("utf-8", "replace")

    def _prompt_scores(self, generation: Generation[Any], index: int) -> list[Any]:
        job = generation.jobs[index]
        first = next(other for other in generation.jobs if other is job or other is job.after)  # choices share the first one's prompt
        return [(job.tokens[0], None), *zip(job.tokens[1:], first.prompt_scores, strict=True)]


def _check_completion(body: CompletionRequest) -> None:
    check_common(body)
    if body.suffix:
        raise unsupported("suffix", "this engine does not fill in the middle")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "only the value of n is possible")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens must be at least 1 without echo", param="max_tokens")
