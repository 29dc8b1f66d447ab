"""Cross-encoders (pooling `rank`): pairs of texts for `/v1/rerank` and `/v1/score`, batched as embeddings are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TypeVar

import llama_cpp
from msgspec import Struct

from engines.chat.params import parse
from engines.llamacpp.embedder import Embedder
from engines.llamacpp.native import Model
from engines.sidecar.loading import LoadError
from engines.sidecar.rerank import Asked, PairScorer, Scores
from engines.sidecar.shell import ApiError, Request

B = TypeVar("B", bound=Struct)
TRUNCATED_HEADER = b"x-gatehouse-truncated"
"""Tokens that were cut off in all pairs together; absent when none were."""
QUERY, DOCUMENT = "{query}", "{document}"


class PairReader:
    """Makes a pair's tokens, as the file's template `rerank` says, else with the vocabulary's own marks: BOS query EOS SEP document EOS.

    What a client sends never becomes a control token. Raises LoadError for a template without both places.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        raw = llama_cpp.llama_model_chat_template(model.handle, b"rerank")
        template = raw.decode("utf-8", "replace") if raw else f"{QUERY}{DOCUMENT}"
        before, found, rest = template.partition(QUERY)
        between, also, after = rest.partition(DOCUMENT)
        if not (found and also):
            raise LoadError("model_invalid", f"the file's template for reranking lacks {QUERY} before {DOCUMENT}")
        pieces = [model.tokenize(piece, add_special=False, parse_special=True) if piece else [] for piece in (before, between, after)]
        if not raw:
            pieces = self._marks()
        self._before, self._between, self._after = pieces

    def _marks(self) -> list[list[int]]:
        vocab = self._model.vocab
        separator = llama_cpp.llama_vocab_sep(vocab)
        end = self._model.eos if self._model.eos >= 0 else separator
        ends = [end] if llama_cpp.llama_vocab_get_add_eos(vocab) and end >= 0 else []
        between = [separator] if llama_cpp.llama_vocab_get_add_sep(vocab) and separator >= 0 else []
        return [[self._model.bos] if self._model.add_bos and self._model.bos >= 0 else [], ends + between, ends]

    def tokens(self, text: str) -> list[int]:
        """Of one text of a pair."""
        return self._model.tokenize(text, add_special=False, parse_special=False)

    def read(self, query: list[int], document: str, limit: int, truncate: bool, place: str) -> tuple[list[int], int]:
        """The tokens of a pair, those of its query given (`tokens`), and how many of the document's were cut off to fit into `limit`.
        Raises ApiError 400 if it must not be cut, or if there is no room for it beside the query."""
        left, right = query, self.tokens(document)
        room = limit - len(self._before) - len(left) - len(self._between) - len(self._after)
        over = len(right) - room
        if over > 0 and (not truncate or room < 1):
            message = f"{place} has {limit + over} tokens together with the query; at most {limit} are possible"
            raise ApiError(400, message, param=place.partition("[")[0], code="context_length_exceeded")
        right = right[: max(room, 0)]
        return [*self._before, *left, *self._between, *right, *self._after], max(over, 0)


class LlamaPairs(PairScorer):
    """A loaded reranker. probabilities: its scores are between 0 and 1 already."""

    def __init__(self, reader: PairReader, embedder: Embedder, *, probabilities: bool) -> None:
        self._reader, self._embedder, self._probabilities = reader, embedder, probabilities

    async def decode(self, request: Request, kind: type[B]) -> B:
        return parse(request.body, kind)

    async def score(self, request: Request, pairs: Sequence[tuple[str, str]], asked: Asked) -> Scores:
        if asked.activate is False and self._probabilities:
            raise ApiError(400, "use_activation: this model gives probabilities only", param="use_activation", code="unsupported_parameter")
        read = await asyncio.get_running_loop().run_in_executor(None, self._read, pairs, asked)
        vectors = await self._embedder.embed([tokens for tokens, _cut in read], request)
        scores = [float(vector[0]) for vector in vectors]
        if not all(map(math.isfinite, scores)):
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        if not self._probabilities and asked.activate is not False:
            scores = [_logistic(score) for score in scores]
        dropped = sum(cut for _tokens, cut in read)
        truncated = [{"index": index, "tokens": len(tokens) + cut, "used": len(tokens)} for index, (tokens, cut) in enumerate(read) if cut]
        headers = ((TRUNCATED_HEADER, str(dropped).encode()),) if dropped else ()
        return Scores(scores, sum(len(tokens) for tokens, _cut in read), truncated, headers)

    def _read(self, pairs: Sequence[tuple[str, str]], asked: Asked) -> list[tuple[list[int], int]]:
        limit, truncate = self._embedder.limit, asked.truncate is True
        found, before, tokens = [], "", self._reader.tokens("")
        for index, (query, document) in enumerate(pairs):
            if query != before:  # in most requests all pairs have one query
                before, tokens = query, self._reader.tokens(query)
            found.append(self._reader.read(tokens, document, limit, truncate, f"{asked.parameter}[{index}]"))
        return found


def _logistic(score: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * score))
