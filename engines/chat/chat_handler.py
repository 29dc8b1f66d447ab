"""`POST /v1/chat/completions`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from engines.chat import responses
from engines.chat.engine import Prompted, TextEngine, adapter_of
from engines.chat.formats.source import Part
from engines.chat.generation import Delta, Generation, collect
from engines.chat.output import Dialect, OutputParser
from engines.chat.params import ChatRequest, check_common, parse, sampling_params
from engines.chat.responses import DONE, Envelope
from engines.sidecar.shell import ApiError, Request, Response, Stream


class _Reader:
    """Reads one choice's text: parts, and whether calls were among them."""

    __slots__ = ("_idents", "_parser", "_short", "calls", "opened")

    def __init__(self, dialect: Dialect, parallel: bool) -> None:
        self._parser = None if dialect.plain else OutputParser(dialect, parallel=parallel)
        self._short = dialect.format is not None and dialect.format.ids == "short"
        self._idents: set[str] = set()
        self.calls = 0
        self.opened = False

    def read(self, text: str, *, last: bool) -> list[Part]:
        """Parts of the next text."""
        if self._parser is None:
            return [Part("content", text)] if text else []
        return self._parser.feed(text) + (self._parser.finish() if last else [])

    def call(self, part: Part) -> dict[str, Any]:
        """The beginning of a call, as OpenAI writes it."""
        self.calls += 1
        given = part.ident if part.ident not in self._idents else ""  # a client tells calls apart by their ids; a model may repeat one
        self._idents.add(given)
        ident = given or (uuid.uuid4().hex[:9] if self._short else f"call_{uuid.uuid4().hex[:24]}")
        return {"id": ident, "type": "function", "function": {"name": part.name, "arguments": ""}}

    def finish(self, reason: str | None) -> str | None:
        """OpenAI's finish reason."""
        return "tool_calls" if self.calls and reason == "stop" else reason


class ChatHandler:
    """One instance for a loaded engine."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    async def chat(self, request: Request) -> Response | Stream:
        """POST /v1/chat/completions"""
        body = parse(request.body, ChatRequest)
        _check(body)
        adapter_of(body.model, self._engine.adapters)
        self._engine.check_room(body.n or 1, "n")
        generation, readers = await self._engine.prepare(lambda: self._prepare(request, body), lambda made: self._engine.discard(made[0]))
        generation.submit()
        request.timed = generation.phases
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        envelope = Envelope("chatcmpl", "chat.completion", body.model or self._engine.name, with_usage=wants_usage)
        if body.stream:
            return Stream(self._stream(generation, readers, envelope, wants_usage), headers=responses.prompt_header(generation))
        return await self._whole(generation, readers, envelope)

    async def count(self, request: Request) -> Response:
        """POST /v1/chat/completions/input_tokens: how many tokens the prompt of this chat has; generates nothing and needs no slot."""
        body = parse(request.body, ChatRequest)
        _check(body)
        converser, check = self._engine.converser, self._engine.grammars.of(request.cache_salt)
        conversation = await self._engine.prepare(lambda: converser.prepare(body, check), lambda made: None)
        return Response(msgspec.json.encode({"object": "chat.completion.input_tokens", "input_tokens": len(conversation.tokens)}))

    def _prepare(self, request: Request, body: ChatRequest) -> tuple[Generation[Any], list[_Reader]]:
        engine = self._engine
        conversation = engine.converser.prepare(body, engine.grammars.of(request.cache_salt), engine.check_text)
        choices = body.n or 1
        limit = engine.check_length(len(conversation.tokens), body.max_completion_tokens or body.max_tokens, "messages")
        params = sampling_params(body, engine.defaults, engine.vocabulary.n_vocab, body.seed or 0, conversation.grammar)
        readers = [_Reader(conversation.dialect, conversation.parallel) for _ in range(choices)]
        generation = engine.build(
            request, [Prompted(conversation.tokens, choices, limit)], params, stops=body.stops(), seeded=body.seed is not None,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None, ignore_eos=bool(body.ignore_eos),
            markers=engine.converser.markers, adapter=adapter_of(body.model, engine.adapters),
        )  # fmt: skip
        return generation, readers

    async def _stream(
        self, generation: Generation[Any], readers: list[_Reader], envelope: Envelope, wants_usage: bool
    ) -> AsyncIterator[bytes]:  # fmt: skip
        async with aclosing(generation.deltas()) as deltas:
            async for news in deltas:
                yield b"".join(self._chunks(envelope, delta, readers[delta.index]) for delta in news)
        yield (envelope.usage(responses.usage(generation)) if wants_usage else b"") + DONE

    def _chunks(self, envelope: Envelope, delta: Delta, reader: _Reader) -> bytes:
        """The SSE events of one delta: usually one, from the pre-encoded template."""
        index = delta.index
        out = b""
        if not reader.opened:
            reader.opened = True
            out = envelope.chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})
        logprobs = responses.chat_logprobs(self._engine.vocabulary, delta.scores) if delta.scores else None
        for part in reader.read(delta.text, last=delta.finish is not None):
            if part.kind == "content" and logprobs is None:
                out += envelope.content(index, part.text)
                continue
            out += envelope.chunk({"index": index, "delta": _news(part, reader), "logprobs": logprobs, "finish_reason": None})
            logprobs = None
        if logprobs is not None:
            out += envelope.chunk({"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": None})
        if delta.finish is not None:
            out += envelope.chunk({"index": index, "delta": {}, "logprobs": None, "finish_reason": reader.finish(delta.finish)})
        return out

    async def _whole(self, generation: Generation[Any], readers: list[_Reader], envelope: Envelope) -> Response:
        choices = []
        for index, (text, scores, finish) in enumerate(await collect(generation)):
            reader = readers[index]
            message = _message(reader.read(text, last=True), reader)
            logprobs = responses.chat_logprobs(self._engine.vocabulary, scores) if scores else None
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reader.finish(finish)})
        return Response(envelope.whole(choices, responses.usage(generation)))


def _news(part: Part, reader: _Reader) -> dict[str, Any]:
    """A part as a chunk's `delta`."""
    if part.kind == "call":
        return {"tool_calls": [{"index": reader.calls, **reader.call(part)}]}
    if part.kind == "arguments":
        return {"tool_calls": [{"index": reader.calls - 1, "function": {"arguments": part.text}}]}
    return {"reasoning_content" if part.kind == "reasoning" else "content": part.text}


def _message(parts: list[Part], reader: _Reader) -> dict[str, Any]:
    """Parts as a whole message."""
    content = "".join(part.text for part in parts if part.kind == "content")
    reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.kind == "call":
            calls.append(reader.call(part))
        elif part.kind == "arguments":
            calls[-1]["function"]["arguments"] += part.text
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _check(body: ChatRequest) -> None:
    check_common(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if body.max_tokens == 0:
        raise ApiError(400, "max_tokens must be at least 1", param="max_tokens")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise ApiError(400, "max_tokens is the old name of max_completion_tokens; send one", param="max_tokens")
    if body.parallel_tool_calls is not None and not body.tools:
        raise ApiError(400, "parallel_tool_calls needs tools", param="parallel_tool_calls")
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
