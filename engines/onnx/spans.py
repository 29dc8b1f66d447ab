"""POST /v1/classify of a model that labels tokens: which parts of each text are names, places and the like.

It reads the usual export of a token classifier (BERT-NER and its kin): logits [batch, tokens, labels], labels in config.json such as
B-PER, I-PER and O (also BIOES, or without a prefix). A word has the label of its first token, as in Hugging Face's `aggregation_strategy:
first`; neighbouring words of one kind are one entity. Texts longer than the model are read in windows that overlap, so nothing is cut.
Offsets are in characters of the text as it came.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from engines.onnx.offload import CHARACTERS_PER_COST, Offload
from engines.onnx.session import Array, Port, Session
from engines.onnx.text import Grouping, LongText, TextReader, Tokens
from engines.onnx.texttask import TextRequest, TextTask, inputs_of
from engines.sidecar.batcher import Batcher
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError, Request, Response

FLOATS: Final = ("FP32", "FP16", "FP64")
OUTSIDE: Final = "O"
_DECODER: Final = msgspec.json.Decoder(TextRequest)


class Span(NamedTuple):
    """One entity: its kind, where it begins and ends, and the mean probability of its words."""

    entity: str
    start: int
    end: int
    score: float


def find_output(session: Session, wanted: str | None) -> Port:
    """The logits: the output named, else `logits`, else the only floating one of rank 3. Raises LoadError."""
    fitting = {port.name: port for port in session.outputs if port.datatype in FLOATS and len(port.shape) == 3}
    name = wanted or "logits"
    if wanted is None and name not in fitting and len(fitting) == 1:
        name = next(iter(fitting))
    if name not in fitting:
        raise LoadError(
            "invalid_options", f"output {name!r}: expected a floating output of rank 3, the graph has {list(fitting) or 'none'}"
        )
    return fitting[name]


def split_label(label: str) -> tuple[str, bool]:
    """(kind, whether an entity begins here); "" for tokens that are part of none."""
    prefix, dash, kind = label.partition("-")
    if not dash or prefix not in ("B", "I", "E", "S", "L", "U", "M"):
        return ("" if label == OUTSIDE else label), False
    return kind, prefix in ("B", "S", "U")


class Tagger:
    """Computes the probabilities (float32) of each label for every token of a text. Runs on the batcher's thread."""

    def __init__(self, session: Session, reader: TextReader, output: Port) -> None:
        self._session, self._reader, self._output = session, reader, output.name

    def run(self, batch: Sequence[Tokens]) -> list[Array]:
        """One array [tokens, labels] for each text of a batch, special tokens included."""
        feeds, _ = self._reader.feeds(batch)
        (logits,) = self._session.run(feeds, [self._output])
        logits = logits.astype(np.float32, copy=False)
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        shares = powers / powers.sum(axis=2, keepdims=True)
        return [shares[row, : len(tokens.ids)] for row, tokens in enumerate(batch)]


class Entities:
    """The endpoint. `labels` name the probabilities in the model's order."""

    def __init__(self, task: TextTask, batcher: Batcher, grouping: Grouping, offload: Offload, labels: tuple[str, ...], model: str) -> None:
        self._task, self._batcher, self._grouping, self._offload = task, batcher, grouping, offload
        self._kinds = [split_label(label) for label in labels]
        self._named = list(dict.fromkeys(kind for kind, _ in self._kinds if kind))
        self._model = model

    async def handle(self, request: Request) -> Response:
        """POST /v1/classify."""
        body = await self._task.decode(request, _DECODER)
        given = inputs_of(body.input)
        texts = [text for text in given if isinstance(text, str)]
        if len(texts) < len(given):
            raise ApiError(400, "input: expected texts, received token ids, which have no places in a text", param="input")
        cost = sum(len(text) for text in texts) / CHARACTERS_PER_COST
        read = await self._offload.call(cost, self._read, texts)
        units = [self._grouping.unit(window) for text in read for window in text.windows]
        found = await self._batcher.submit(units, priority=request.priority, deadline=request.deadline, request=request) if units else []
        spans = await self._offload.call(cost, self._decoded, texts, read, list(found))
        total = sum(len(window.ids) for text in read for window in text.windows)
        answer: dict[str, Any] = {
            "id": f"classify-{request.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or self._model,
            "labels": self._named,
            "data": [{"index": index, "entities": [span._asdict() for span in each]} for index, each in enumerate(spans)],
            "usage": {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None},
        }
        return Response(msgspec.json.encode(answer))

    def _read(self, texts: Sequence[str]) -> list[LongText]:
        return self._task.reader.all_windows(texts, "input")

    def _decoded(self, texts: Sequence[str], read: Sequence[LongText], found: list[Array]) -> list[list[Span]]:
        spans, at = [], 0
        for text, long in zip(texts, read, strict=True):
            mine = found[at : at + len(long.windows)]
            at += len(long.windows)
            if not all(np.isfinite(each).all() for each in mine):
                raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
            spans.append(spans_of(text, long, long.joined(mine), self._kinds) if mine else [])
        return spans


def spans_of(text: str, read: LongText, shares: Array, kinds: Sequence[tuple[str, bool]]) -> list[Span]:
    """The entities of a text. shares: the probabilities [tokens, labels] of its own tokens."""
    spans: list[Span] = []
    scores: list[float] = []
    kind, start, end = "", 0, 0

    def close() -> None:
        if kind:
            spans.append(Span(kind, start, end, round(sum(scores) / len(scores), 4)))

    best = shares.argmax(axis=1)
    for first, last in read.words():
        left, right = read.offsets[first][0], read.offsets[last][1]
        while left < right and text[left].isspace():
            left += 1
        if left >= right:
            continue
        found, begins = kinds[int(best[first])]
        if not found or found != kind or begins:
            close()
            kind, start, scores = found, left, []
        end = right
        scores.append(float(shares[first, best[first]]))
    close()
    return spans
