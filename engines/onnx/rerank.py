"""Cross-encoders: scores of pairs of texts for `/v1/rerank` and `/v1/score` (`engines.sidecar.rerank`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from engines.onnx.classification import logistic
from engines.onnx.session import Array, Port, Session
from engines.onnx.text import TextReader, Tokens
from engines.onnx.texttask import TextTask
from engines.sidecar.rerank import Asked, PairScorer, RerankRequest, ScoreRequest, Scores
from engines.sidecar.shell import ApiError, Request

B = TypeVar("B", bound=Struct)
_DECODERS: Final[Mapping[type[Any], Any]] = MappingProxyType({kind: msgspec.json.Decoder(kind) for kind in (RerankRequest, ScoreRequest)})


class Scorer:
    """Computes one score (float32, before any activation) for each pair. Runs on the batcher's thread."""

    def __init__(self, session: Session, reader: TextReader, output: Port) -> None:
        self._session, self._reader, self._output = session, reader, output.name

    def run(self, batch: Sequence[Tokens]) -> list[Array]:
        """One array [1] for each pair of a batch."""
        feeds, _ = self._reader.feeds(batch)
        (logits,) = self._session.run(feeds, [self._output])
        return list(logits.astype(np.float32, copy=False))


class OnnxPairs(PairScorer):
    """A loaded graph. raw: scores stay as the graph gives them unless the request asks for the activation."""

    def __init__(self, task: TextTask, *, raw: bool) -> None:
        self._task, self._raw = task, raw

    async def decode(self, request: Request, kind: type[B]) -> B:
        decoder: msgspec.json.Decoder[B] = _DECODERS[kind]
        return await self._task.decode(request, decoder)

    async def score(self, request: Request, pairs: Sequence[tuple[str, str]], asked: Asked) -> Scores:
        first = "query" if asked.parameter == "documents" else "text_1"
        read = await self._task.read_pairs(pairs, asked.truncate, first, lambda index: f"{asked.parameter}[{index}]")
        found = np.concatenate(await self._task.compute(request, read))
        if not np.isfinite(found).all():
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        if asked.activate or (asked.activate is None and not self._raw):
            found = logistic(found)
        return Scores([float(score) for score in found], read.total, read.truncated(), read.headers())
