"""`POST /v1/embeddings`: texts of several requests share a batch; one thread runs llama.cpp, as in `batcher`."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy
from numpy.typing import NDArray

from engines.chat.engine import MOST_CHARACTERS
from engines.chat.params import EmbeddingRequest, parse, prompts_of
from engines.llamacpp.native import Batch, Context, Model, NativeError
from engines.sidecar.shell import ApiError, Request, Response, overloaded

Vector = NDArray[numpy.float32]


@dataclass(slots=True, eq=False)
class _Item:
    tokens: list[int]
    future: asyncio.Future[Vector]
    began: int = 0
    ended: int = 0


class Embedder:
    """Batches texts. A text must fit into one batch; `limit` is the longest, in tokens. raw: vectors stay as the model gives them."""

    def __init__(self, model: Model, context: Context, *, sequences: int, batch: int, queue: int, raw: bool = False) -> None:
        self._raw = raw
        self._model = model
        self._context = context
        self._batch = Batch(batch)
        self._sequences = sequences
        self._queue = queue
        self.limit = min(batch, context.cells, model.n_ctx_train or batch)  # a BERT has no position beyond those it was trained with
        self._inbox: deque[_Item | None] = deque()
        self._bell = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outstanding = 0
        self.tokens = 0
        self.failed: str | None = None
        self._thread = threading.Thread(target=self._run, name="embed", daemon=True)

    @property
    def outstanding(self) -> int:
        """Texts that run or wait."""
        return self._outstanding

    def start(self) -> None:
        """Start the thread; results go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def embed(self, prompts: Sequence[list[int]], request: Request | None = None) -> list[Vector]:
        """Vectors of the prompts, of length 1 unless raw. request: is told of its phases. Raises ApiError."""
        if self._outstanding and self._outstanding + len(prompts) > self._queue:
            raise overloaded(f"{self._outstanding} texts are waiting; no more are taken")
        loop = asyncio.get_running_loop()
        items = [_Item(tokens, loop.create_future()) for tokens in prompts]
        if request is not None:
            request.timed = partial(_phases, items, time.perf_counter_ns())
        self._outstanding += len(items)
        self._inbox.extend(items)
        self._bell.set()
        return list(await asyncio.gather(*(item.future for item in items)))

    def close(self) -> None:
        """End the thread after its batch."""
        self._inbox.append(None)
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._bell.wait()
            self._bell.clear()
            while self._inbox:
                items = self._take()
                if items is None:
                    return
                self._serve(items)

    def _take(self) -> list[_Item] | None:
        """As many waiting texts as fit into one batch; None at the end."""
        items: list[_Item] = []
        room = self._batch.capacity
        while self._inbox and len(items) < self._sequences:
            item = self._inbox[0]
            if item is None:
                return items or None
            if len(item.tokens) > room:
                break
            self._inbox.popleft()
            room -= len(item.tokens)
            items.append(item)
        return items

    def _serve(self, items: list[_Item]) -> None:
        wanted = [item for item in items if not item.future.cancelled()]
        results: list[Vector] | ApiError
        began = time.perf_counter_ns()
        try:
            results = self._compute(wanted)
        except Exception as exc:  # noqa: BLE001 - boundary: a fault ends the texts of this batch, not the engine
            traceback.print_exception(exc, file=sys.stderr)
            results = ApiError(500, "the engine failed on this batch", kind="engine_error", code="engine_failed")
        for item in wanted:
            item.began, item.ended = began, time.perf_counter_ns()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, wanted, results, len(items))

    def _compute(self, items: list[_Item]) -> list[Vector]:
        if not items:
            return []
        batch = self._batch
        batch.clear()
        last = []
        for seq, item in enumerate(items):
            last.append(batch.add(seq, 0, item.tokens, output_last=True))
        batch.output[: batch.count] = 1
        encoder = self._model.has_encoder and not self._model.has_decoder
        if self._context.memory:
            self._context.clear()
        status = self._context.encode(batch) if encoder else self._context.decode(batch)
        if status != 0:
            raise NativeError(f"llama.cpp returned {status} for a batch of embeddings")
        self.tokens += batch.count
        vectors = [self._context.embedding_of(seq, last[seq]) for seq in range(len(items))]
        return vectors if self._raw else [normalised(vector) for vector in vectors]

    def _deliver(self, items: list[_Item], results: list[Vector] | ApiError, count: int) -> None:
        self._outstanding -= count
        for at, item in enumerate(items):
            if item.future.done():
                continue
            if isinstance(results, ApiError):
                item.future.set_exception(results)
            else:
                item.future.set_result(results[at])


def _phases(items: list[_Item], prepared: int) -> list[tuple[str, int]]:
    """Of one request's texts, which may have been in several batches."""
    return [("prepare", prepared), ("queue", min(item.began for item in items)), ("run", max(item.ended for item in items))]


def normalised(vector: Vector) -> Vector:
    """The vector with length 1 (zero stays zero)."""
    length = float(numpy.linalg.norm(vector))
    return vector / numpy.float32(length) if length > 0 else vector


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
