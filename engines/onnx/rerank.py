"""POST /v1/rerank and /v1/score: how well documents answer a query, by a cross-encoder that reads both at once.

Requests and answers of `/v1/rerank` are those that Jina's and Cohere's APIs and vLLM's have in common; `/v1/score` is vLLM's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from engines.onnx.classification import logistic
from engines.onnx.session import Array, Port, Session
from engines.onnx.text import TextReader, Tokens
from engines.onnx.texttask import MAX_INPUTS, Read, TextTask
from engines.sidecar.shell import ApiError, Request, Response


class RerankRequest(Struct, forbid_unknown_fields=True):
    """return_documents: false leaves the documents out of the answer. use_activation: false gives the graph's own scores."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str = ""
    top_n: int | None = None
    return_documents: bool | None = None
    user: str | None = None
    truncate: bool | None = None
    use_activation: bool | None = None


class ScoreRequest(Struct, forbid_unknown_fields=True):
    """One text against one or many, or as many against as many."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str = ""
    user: str | None = None
    truncate: bool | None = None
    use_activation: bool | None = None


_RERANK = msgspec.json.Decoder(RerankRequest)
_SCORE = msgspec.json.Decoder(ScoreRequest)


class Scorer:
    """Computes one score (float32, before any activation) for each pair. Runs on the batcher's thread."""

    def __init__(self, session: Session, reader: TextReader, output: Port) -> None:
        self._session, self._reader, self._output = session, reader, output.name

    def run(self, batch: Sequence[Tokens]) -> list[Array]:
        """One array [1] for each pair of a batch."""
        feeds, _ = self._reader.feeds(batch)
        (logits,) = self._session.run(feeds, [self._output])
        return list(logits.astype(np.float32, copy=False))


class Rerank:
    """The endpoints. raw: scores stay as the graph gives them unless the request asks for the activation."""

    def __init__(self, task: TextTask, model: str, *, raw: bool) -> None:
        self._task, self._model, self._raw = task, model, raw

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: the documents by falling relevance; those with equal scores in the request's order."""
        body = await self._task.decode(request, _RERANK)
        documents = [_text_of(document, index) for index, document in enumerate(body.documents)]
        _check_count(len(documents), "documents")
        if body.top_n is not None and body.top_n < 1:
            raise ApiError(400, f"top_n: expected at least 1, received {body.top_n}", param="top_n")
        pairs = [(body.query, document) for document in documents]
        read, scores = await self._scores(request, pairs, body.truncate, body.use_activation, "documents")
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        shown = body.return_documents is not False
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scores[index], **({"document": {"text": documents[index]}} if shown else {})}
            for index in order
        ]
        answer = {"id": f"rerank-{request.request_id}", "object": "list", "model": body.model or self._model, "results": results}
        return self._answer(answer, read)

    async def score(self, request: Request) -> Response:
        """POST /v1/score: one score for each pair, in the request's order."""
        body = await self._task.decode(request, _SCORE)
        ones, twos = ([given] if isinstance(given, str) else given for given in (body.text_1, body.text_2))
        for name, given in (("text_1", ones), ("text_2", twos)):
            _check_count(len(given), name)
        if len(ones) == 1:
            ones = ones * len(twos)
        if len(ones) != len(twos):
            raise ApiError(400, f"text_1: expected one text, or {len(twos)} as in text_2, received {len(ones)}", param="text_1")
        pairs = list(zip(ones, twos, strict=True))
        read, scores = await self._scores(request, pairs, body.truncate, body.use_activation, "text_2")
        answer = {
            "id": f"score-{request.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or self._model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        }
        return self._answer(answer, read)

    async def _scores(
        self, request: Request, pairs: Sequence[tuple[str, str]], truncate: bool | None, activate: bool | None, name: str
    ) -> tuple[Read, list[float]]:
        read = await self._task.read_pairs(pairs, truncate, lambda index: f"{name}[{index}]")
        found = np.concatenate(await self._task.compute(request, read))
        if not np.isfinite(found).all():
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        if activate or (activate is None and not self._raw):
            found = logistic(found)
        return read, [float(score) for score in found]

    def _answer(self, answer: dict[str, Any], read: Read) -> Response:
        answer["usage"] = {"prompt_tokens": read.total, "total_tokens": read.total}
        if read.dropped:
            answer["truncated"] = read.truncated()
        return Response(msgspec.json.encode(answer), headers=read.headers())


def _check_count(count: int, name: str) -> None:
    if not 1 <= count <= MAX_INPUTS:
        raise ApiError(400, f"{name}: expected 1 to {MAX_INPUTS} texts, received {count}", param=name)


def _text_of(document: str | dict[str, Any], index: int) -> str:
    """A document's text: itself, or its field `text`."""
    if isinstance(document, str):
        return document
    text = document.get("text")
    if not isinstance(text, str):
        raise ApiError(400, f"documents[{index}]: expected a text, or an object with the field 'text'", param="documents")
    return text
