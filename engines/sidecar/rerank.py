"""POST /v1/rerank and /v1/score: how well documents answer a query, by a cross-encoder that reads both at once. For every runtime.

Requests and answers of `/v1/rerank` are those that Jina's and Cohere's APIs and vLLM's have in common; `/v1/score` is vLLM's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from engines.sidecar.shell import ApiError, Request, Response

MAX_PAIRS = 2048
"""Pairs in one request, as many as OpenAI allows texts for embeddings."""


class RerankRequest(Struct, forbid_unknown_fields=True):
    """return_documents: false leaves the documents out of the answer. use_activation: false gives the model's own scores."""

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


class Asked(NamedTuple):
    """How a request wants its pairs scored; None: as the model does. parameter: the name of the texts, for errors."""

    truncate: bool | None
    activate: bool | None
    parameter: str


class Scores(NamedTuple):
    """One score a pair, in order, and what they cost. truncated: which pairs were cut, for the answer's field of that name."""

    scores: list[float]
    tokens: int
    truncated: list[dict[str, int]]
    headers: tuple[tuple[bytes, bytes], ...] = ()


B = TypeVar("B", bound=Struct)


class PairScorer(ABC):
    """A loaded cross-encoder."""

    @abstractmethod
    async def decode(self, request: Request, kind: type[B]) -> B:
        """The request's body. Raises ApiError 400."""

    @abstractmethod
    async def score(self, request: Request, pairs: Sequence[tuple[str, str]], asked: Asked) -> Scores:
        """Scores of the pairs. Raises ApiError."""


class Rerank:
    """The endpoints of one model."""

    def __init__(self, scorer: PairScorer, model: str) -> None:
        self._scorer, self._model = scorer, model

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: the documents by falling relevance; those with equal scores in the request's order."""
        body = await self._scorer.decode(request, RerankRequest)
        documents = [_text_of(document, index) for index, document in enumerate(body.documents)]
        _check_count(len(documents), "documents")
        if body.top_n is not None and body.top_n < 1:
            raise ApiError(400, f"top_n: expected at least 1, received {body.top_n}", param="top_n")
        pairs = [(body.query, document) for document in documents]
        found = await self._scorer.score(request, pairs, Asked(body.truncate, body.use_activation, "documents"))
        scores = found.scores
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        shown = body.return_documents is not False
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scores[index], **({"document": {"text": documents[index]}} if shown else {})}
            for index in order
        ]
        answer = {"id": f"rerank-{request.request_id}", "object": "list", "model": body.model or self._model, "results": results}
        return _answer(answer, found)

    async def score(self, request: Request) -> Response:
        """POST /v1/score: one score for each pair, in the request's order."""
        body = await self._scorer.decode(request, ScoreRequest)
        ones, twos = ([given] if isinstance(given, str) else given for given in (body.text_1, body.text_2))
        for name, given in (("text_1", ones), ("text_2", twos)):
            _check_count(len(given), name)
        if len(ones) == 1:
            ones = ones * len(twos)
        if len(ones) != len(twos):
            raise ApiError(400, f"text_1: expected one text, or {len(twos)} as in text_2, received {len(ones)}", param="text_1")
        pairs = list(zip(ones, twos, strict=True))
        found = await self._scorer.score(request, pairs, Asked(body.truncate, body.use_activation, "text_2"))
        answer = {
            "id": f"score-{request.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or self._model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(found.scores)],
        }
        return _answer(answer, found)


def _answer(answer: dict[str, Any], found: Scores) -> Response:
    answer["usage"] = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    if found.truncated:
        answer["truncated"] = found.truncated
    return Response(msgspec.json.encode(answer), headers=found.headers)


def _check_count(count: int, name: str) -> None:
    if not 1 <= count <= MAX_PAIRS:
        raise ApiError(400, f"{name}: expected 1 to {MAX_PAIRS} texts, received {count}", param=name)


def _text_of(document: str | dict[str, Any], index: int) -> str:
    """A document's text: itself, or its field `text`."""
    if isinstance(document, str):
        return document
    text = document.get("text")
    if not isinstance(text, str):
        raise ApiError(400, f"documents[{index}]: expected a text, or an object with the field 'text'", param="documents")
    return text
