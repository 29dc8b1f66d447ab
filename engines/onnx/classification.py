"""POST /v1/classify: a label and the probabilities for each text, in the shape of vLLM's classification API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from engines.onnx.session import Array, Port, Session
from engines.onnx.text import TextReader, Tokens
from engines.onnx.texttask import TextRequest, TextTask
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError, Request, Response

FLOATS = ("FP32", "FP16", "FP64")

_DECODER = msgspec.json.Decoder(TextRequest)


def find_output(session: Session, wanted: str | None) -> Port:
    """The logits: the output named, else `logits`, else the only floating one of rank 2. Raises LoadError."""
    fitting = {port.name: port for port in session.outputs if port.datatype in FLOATS and len(port.shape) == 2}
    name = wanted or "logits"
    if wanted is None and name not in fitting and len(fitting) == 1:
        name = next(iter(fitting))
    if name not in fitting:
        raise LoadError(
            "invalid_options", f"output {name!r}: expected a floating output of rank 2, the graph has {list(fitting) or 'none'}"
        )
    return fitting[name]


class Classifier:
    """Computes the probabilities (float32) of each label for a text. Runs on the batcher's thread.

    One score a text, or several that do not exclude one another (`multi_label`), go through the logistic function, others
    through softmax, as in Hugging Face's text-classification pipeline.
    """

    def __init__(self, session: Session, reader: TextReader, output: Port, multi_label: bool) -> None:
        self._session, self._reader, self._output = session, reader, output.name
        self._multi_label = multi_label

    def run(self, batch: Sequence[Tokens]) -> list[Array]:
        """One array [labels] for each text of a batch."""
        feeds, _ = self._reader.feeds(batch)
        (logits,) = self._session.run(feeds, [self._output])
        logits = logits.astype(np.float32, copy=False)
        if self._multi_label or logits.shape[1] == 1:
            return list(logistic(logits))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return list(powers / powers.sum(axis=1, keepdims=True))


def logistic(logits: Array) -> Array:
    """The logistic function, without overflow."""
    found: Array = 0.5 * (1 + np.tanh(0.5 * logits))
    return found


class Classification:
    """The endpoint. `labels` name the probabilities in the model's order. logits: the head gives these; they are scores of one class."""

    def __init__(self, task: TextTask, labels: tuple[str, ...], model: str, *, logits: bool = False) -> None:
        self._task, self._labels, self._model, self._logits = task, labels, model, logits

    async def handle(self, request: Request) -> Response:
        """POST /v1/classify."""
        body = await self._task.decode(request, _DECODER)
        read = await self._task.read(body)
        scores = await self._task.compute(request, read)
        if self._logits:
            scores = [logistic(logits) for logits in scores]
        answer: dict[str, Any] = {
            "id": f"classify-{request.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or self._model,
            "labels": self._labels,
            "data": [self._item(index, probabilities) for index, probabilities in enumerate(scores)],
            "usage": {"prompt_tokens": read.total, "total_tokens": read.total, "completion_tokens": 0, "prompt_tokens_details": None},
        }
        if read.dropped:
            answer["truncated"] = read.truncated()
        return Response(msgspec.json.encode(answer), headers=read.headers())

    def _item(self, index: int, probabilities: Array) -> dict[str, Any]:
        if not np.isfinite(probabilities).all():
            raise ApiError(502, "the model's output is not finite", kind="engine_error", code="engine_failed")
        best = int(probabilities.argmax())
        return {
            "index": index,
            "label": self._labels[best],
            "score": float(probabilities[best]),
            "probs": probabilities.tolist(),
            "num_classes": len(self._labels),
        }
