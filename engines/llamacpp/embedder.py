"""`POST /v1/embeddings`: texts of several requests share a batch (`engines.sidecar.batcher`); one thread runs llama.cpp."""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from engines.chat.engine import MOST_CHARACTERS
from engines.chat.params import EmbeddingRequest, parse, prompts_of
from engines.llamacpp.native import Batch, Context, Model, NativeError
from engines.sidecar.batcher import Batcher, BatchQueue, Key, RunFailed, Unit
from engines.sidecar.shell import ApiError, Request, Response
from gateway.core.clock import SystemClock

Vector = NDArray[numpy.float32]
LEAST_TOKENS: Final = 256
"""Tokens of a batch that keep a processor's cores busy: a batch has them however long they take."""


class Embedder:
    """Batches texts. A text must fit into one batch; `limit` is the longest, in tokens. sequences: texts of a batch. queue: requests that
    wait. raw: vectors stay as the model gives them."""

    def __init__(self, model: Model, context: Context, *, sequences: int, batch: int, queue: int, raw: bool = False) -> None:
        self._raw = raw
        self._model = model
        self._context = context
        self._batch = Batch(batch)
        self._key = Key("text", batch, LEAST_TOKENS, sequences)
        self.limit = min(batch, context.cells, model.n_ctx_train or batch)  # a BERT has no position beyond those it was trained with
        self.tokens = 0
        self._batcher = Batcher(BatchQueue(0.0, queue), self._compute, SystemClock())

    @property
    def running(self) -> int:
        """Texts that are being computed."""
        return self._batcher.running

    @property
    def waiting(self) -> int:
        """Requests with texts that wait."""
        return self._batcher.queue.jobs

    def warm_up(self, tokens: Sequence[int]) -> None:
        """Embed a text before the thread is started: what ends llama.cpp does so at the load. Raises NativeError."""
        self._compute([list(tokens[: self.limit])])
        self.tokens = 0

    def start(self) -> None:
        """Start the thread; results go to the running loop."""
        self._batcher.start()

    async def embed(self, prompts: Sequence[list[int]], request: Request) -> list[Vector]:
        """Vectors of the prompts, of length 1 unless raw. request: is told of its phases. Raises ApiError."""
        units = [Unit(self._key, tokens, len(tokens)) for tokens in prompts]
        try:
            return await self._batcher.submit(units, priority=request.priority, deadline=request.deadline, request=request)
        except RunFailed as failed:
            traceback.print_exception(failed.cause, file=sys.stderr)
            raise ApiError(500, "the engine failed on this text", kind="engine_error", code="engine_failed") from None

    async def aclose(self) -> None:
        """End the thread after its batch."""
        await self._batcher.aclose()

    def _compute(self, texts: Sequence[list[int]]) -> list[Vector]:
        """Runs on the thread. Raises NativeError."""
        batch = self._batch
        batch.clear()
        last = [batch.add(seq, 0, tokens, output_last=True) for seq, tokens in enumerate(texts)]
        batch.output[: batch.count] = 1
        encoder = self._model.has_encoder and not self._model.has_decoder
        if self._context.memory:
            self._context.clear()
        status = self._context.encode(batch) if encoder else self._context.decode(batch)
        if status != 0:
            raise NativeError(f"llama.cpp returned {status} for a batch of embeddings")
        self.tokens += batch.count
        vectors = [self._context.embedding_of(seq, last[seq]) for seq in range(len(texts))]
        return vectors if self._raw else [normalised(vector) for vector in vectors]


def normalised(vector: Vector) -> Vector:
    """The vector with length 1 (one of zeros, or with infinity, stays as it is)."""
    length = float(numpy.linalg.norm(vector))
    return vector / numpy.float32(length) if 0 < length < math.inf else vector


class EmbeddingHandler:
    """The path `/v1/embeddings` for one loaded embedding model."""

    def __init__(self, model: Model, embedder: Embedder, name: str) -> None:
        self._model = model
        self._embedder = embedder
        self._name = name

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        body = parse(request.body, EmbeddingRequest)
        if body.dimensions is not None and body.dimensions > self._model.n_embd:
            raise ApiError(400, f"dimensions: this model has {self._model.n_embd}", param="dimensions")
        prompts = await asyncio.get_running_loop().run_in_executor(None, self._tokens, body)
        vectors = await self._embedder.embed(prompts, request)
        if not all(numpy.isfinite(vector).all() for vector in vectors):
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        if body.dimensions is not None:
            vectors = [normalised(vector[: body.dimensions]) for vector in vectors]
        total = sum(map(len, prompts))
        data = [{"object": "embedding", "index": at, "embedding": _encoded(vector, body)} for at, vector in enumerate(vectors)]
        usage = {"prompt_tokens": total, "total_tokens": total}
        return Response(msgspec.json.encode({"object": "list", "data": data, "model": body.model or self._name, "usage": usage}))

    async def count(self, request: Request) -> Response:
        """POST /v1/embeddings/input_tokens: how many tokens the texts of this request have; embeds nothing."""
        body = parse(request.body, EmbeddingRequest)
        prompts = await asyncio.get_running_loop().run_in_executor(None, self._tokens, body)
        return Response(msgspec.json.encode({"object": "embedding.input_tokens", "input_tokens": sum(map(len, prompts))}))

    def _tokens(self, body: EmbeddingRequest) -> list[list[int]]:
        result = []
        for at, prompt in enumerate(prompts_of(body.input, "input")):
            if isinstance(prompt, str):
                if len(prompt) > MOST_CHARACTERS * self._embedder.limit:
                    message = f"input[{at}] has {len(prompt)} characters; at most {self._embedder.limit} tokens are possible"
                    raise ApiError(400, message, param="input", code="context_length_exceeded")
                tokens = self._model.tokenize(prompt, add_special=True, parse_special=False)
            else:
                tokens = prompt
            if not prompt or not tokens or max(tokens) >= self._model.n_vocab:
                raise ApiError(400, f"input[{at}] must not be empty, tokens must be below {self._model.n_vocab}", param="input")
            if len(tokens) > self._embedder.limit:
                message = f"input[{at}] has {len(tokens)} tokens; at most {self._embedder.limit} are possible"
                raise ApiError(400, message, param="input", code="context_length_exceeded")
            result.append(tokens)
        return result


def _encoded(vector: Vector, body: EmbeddingRequest) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
