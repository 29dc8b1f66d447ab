"""POST /v1/embeddings, complete: texts and token arrays, float and base64, dimensions, truncation, usage (OpenAI API reference)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from engines.onnx.offload import NUMBERS_PER_COST, Offload
from engines.onnx.options import Pooling
from engines.onnx.prompts import NONE, Prompts
from engines.onnx.session import Array, Port, Session
from engines.onnx.text import TextReader, Tokens
from engines.onnx.texttask import EmbeddingsRequest, Read, TextTask, has_texts
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError, Request, Response

FLOATS = ("FP32", "FP16", "FP64")
POOLED = ("sentence_embedding", "sentence_embeddings", "embedding", "embeddings", "pooled_output", "text_embeds")
PER_TOKEN = ("last_hidden_state", "token_embeddings", "hidden_states", "output")
MIN_NORM = 1e-12

_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def find_output(session: Session, wanted: str | None) -> Port | None:
    """The output an embedding is made of: the one named, else by its usual name, else the only floating one of rank 2 or 3."""
    fitting = {port.name: port for port in session.outputs if port.datatype in FLOATS and len(port.shape) in (2, 3)}
    if wanted is not None:
        if wanted not in fitting:
            raise LoadError(
                "invalid_options", f"output {wanted!r}: expected one of {', '.join(fitting) or 'none'} (floating, of rank 2 or 3)"
            )
        return fitting[wanted]
    for name in (*PER_TOKEN, *POOLED):
        if name in fitting:
            return fitting[name]
    return next(iter(fitting.values())) if len(fitting) == 1 else None


class Embedder:
    """Computes one vector (float32) a text. Runs on the batcher's thread."""

    def __init__(self, session: Session, reader: TextReader, output: Port, pooling: Pooling | Literal["auto"], normalize: bool) -> None:
        rank = len(output.shape)
        if (pooling == "none") != (rank == 2) and pooling != "auto":
            raise LoadError("invalid_options", f"pooling {pooling} does not fit output {output.name!r} of rank {rank}")
        self.pooling: Pooling = "none" if rank == 2 else "mean" if pooling == "auto" else pooling
        self.normalize = normalize
        self._session, self._reader, self._output = session, reader, output.name

    def run(self, batch: Sequence[Tokens]) -> list[Array]:
        """One vector for each text of a batch."""
        feeds, mask = self._reader.feeds(batch)
        (hidden,) = self._session.run(feeds, [self._output])
        hidden = hidden.astype(np.float32, copy=False)
        if self.pooling == "mean":
            weights = mask.astype(np.float32)
            vectors = (weights[:, None, :] @ hidden)[:, 0] / weights.sum(axis=1, keepdims=True)
        elif self.pooling == "cls":
            vectors = hidden[:, 0]
        elif self.pooling == "last":
            vectors = hidden[np.arange(len(batch)), mask.sum(axis=1) - 1]
        else:
            vectors = hidden
        return list(_unit(vectors) if self.normalize else vectors)


def _unit(vectors: Array) -> Array:
    """Vectors of length 1 (those of length 0 stay as they are)."""
    found: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), MIN_NORM)
    return found


class Embeddings:
    """The endpoint."""

    def __init__(
        self, task: TextTask, offload: Offload, size: int, allowed: tuple[int, ...] | Literal["any"], normalize: bool, model: str,
        prompts: Prompts = NONE,
    ) -> None:  # fmt: skip
        self._prompts = prompts
        self._task, self._offload, self.size = task, offload, size
        self._allowed, self._normalize, self._model = allowed, normalize, model

    async def handle(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = await self._task.decode(request, _DECODER)
        size = self._size(body.dimensions)
        prompt = self._prompts.choose(body.prompt_name, body.input_type, texts=has_texts(body.input))
        read = await self._task.read(body, prompt)
        vectors = await self._task.compute(request, read)
        encoded = body.encoding_format == "base64"
        cost = len(vectors) * size / NUMBERS_PER_COST / (8 if encoded else 1)
        answer = await self._offload.call(cost, self._answer, vectors, size, encoded, read, body.model or self._model)
        return Response(answer, headers=read.headers())

    async def count(self, request: Request) -> Response:
        """POST /v1/embeddings/input_tokens: how many tokens the model reads of the texts of this request; embeds nothing."""
        body = await self._task.decode(request, _DECODER)
        read = await self._task.read(body)
        return Response(msgspec.json.encode({"object": "embedding.input_tokens", "input_tokens": read.total}))

    def _size(self, wanted: int | None) -> int:
        """The size of the vectors to return. Raises ApiError for one that the model was not trained for."""
        if wanted is None or wanted == self.size:
            return self.size
        if self._allowed == "any" and 0 < wanted <= self.size:
            return wanted
        if self._allowed != "any" and wanted in self._allowed and wanted <= self.size:
            return wanted
        sizes = f"1 to {self.size}" if self._allowed == "any" else ", ".join(map(str, sorted({*self._allowed, self.size})))
        raise ApiError(400, f"dimensions: expected {sizes}, received {str(wanted)[:20]}", param="dimensions")

    def _answer(self, vectors: list[Array], size: int, encoded: bool, read: Read, model: str) -> bytes:
        if size != self.size:
            vectors = [_unit(vector[:size]) if self._normalize else vector[:size] for vector in vectors]
        if not all(np.isfinite(vector).all() for vector in vectors):
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": _base64(vector) if encoded else vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": read.total, "total_tokens": read.total}
        answer: dict[str, Any] = {"object": "list", "data": data, "model": model, "usage": usage}
        if read.dropped:
            answer["truncated"] = read.truncated()
        return msgspec.json.encode(answer)


def _base64(vector: Array) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
