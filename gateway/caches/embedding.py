"""Asks an embedding model of this gateway for the vector of a question, for the cache of answers to similar requests.

A request waits for it for a moment at most, and nothing here raises: without a vector it is a miss. After an error, or an answer that did
not come in time, nobody asks for a second, so that a model that is slow or away costs the first few requests once.
"""

from __future__ import annotations

import logging
from array import array
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.caches.near import Vector, unit
from gateway.core.asking import Asker
from gateway.core.errors import GatehouseError
from gateway.core.tasks import TaskOwner
from gateway.core.waiting import Signal

log = logging.getLogger("gatehouse.caches")
PATH: Final = b"/v1/embeddings"
PAUSE: Final = 1.0
"""Seconds for which nobody asks a model that has failed."""
MOST: Final = 64
"""Questions under way at once."""
MOST_NUMBERS: Final = 16_384
"""The most numbers of a vector: more than any model in use has."""
OPERATION: Final = "cache"
"""The operation under which the metrics of the embedding model count these requests."""


class _Item(Struct):
    embedding: str | list[float]


class _Answer(Struct):
    data: list[_Item]
    truncated: list[Any] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Embedder:
    """asker: of this process. tasks: own what is under way. now: monotonic seconds."""

    def __init__(self, asker: Asker, tasks: TaskOwner, now: Callable[[], float]) -> None:
        self._asker, self._tasks, self._now = asker, tasks, now
        self._asked = 0
        self._paused: dict[str, float] = {}
        """Until when a model is not asked."""
        self._sizes: dict[str, tuple[int, float]] = {}
        """Model -> (how many numbers its last vector had, when a different count was logged)."""

    def ask(self, model: str, text: str, labels: frozenset[str], seconds: float) -> Signal[Vector | None] | None:
        """The text's unit vector, or None, within the time; None where the model cannot be asked now. labels: of the text."""
        if self._asked >= MOST or self._now() < self._paused.get(model, 0.0):
            return None
        found: Signal[Vector | None] = Signal()
        try:
            self._tasks.spawn(self._vector(model, text, labels, seconds, found), name="embedding")
        except RuntimeError:  # the process ends
            return None
        self._asked += 1
        return found

    async def _vector(self, model: str, text: str, labels: frozenset[str], seconds: float, found: Signal[Vector | None]) -> None:
        vector: Vector | None = None
        question = {"input": [text], "encoding_format": "base64"}
        try:
            answered = await self._asker.ask(model, PATH, question, seconds, None, labels, OPERATION)
            vector = _read(answered.body)
            self._measure(model, vector)
        except GatehouseError as error:
            if error.type != "permission_error":  # of this text's labels alone
                self._fails(model, error)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            self._fails(model, error)
        finally:
            self._asked -= 1
            found.set(vector)

    def _measure(self, model: str, vector: Vector | None) -> None:
        if vector is None:
            return
        size, now = len(vector), self._now()
        before, told = self._sizes.get(model, (size, now - 60.0))
        if before != size and now - told >= 60.0:
            told = now
            log.warning("vectors of the model %r have %d numbers and had %d: they are not compared with each other", model, size, before)
        self._sizes[model] = size, told

    def _fails(self, model: str, error: Exception) -> None:
        if self._now() - self._paused.get(model, 0.0) > 60.0:
            log.warning("the model %r embeds no questions at the moment (%s): similar answers are not looked for", model, error)
        self._paused[model] = self._now() + PAUSE


def _read(body: bytes) -> Vector | None:
    """None for a vector of a text that was cut, or without a direction. Raises ValueError, DecodeError."""
    answer = _ANSWER.decode(body)
    if len(answer.data) != 1:
        raise ValueError(f"it embedded {len(answer.data)} texts of one")
    if answer.truncated:
        return None
    given = answer.data[0].embedding
    if isinstance(given, str):
        numbers = array("f")
        numbers.frombytes(b64decode(given, validate=True))
        return unit(_few(numbers))
    return unit(_few(given))


def _few(numbers: Sequence[float]) -> Sequence[float]:
    if len(numbers) > MOST_NUMBERS:
        raise ValueError(f"its vector has {len(numbers)} numbers; {MOST_NUMBERS} are read")
    return numbers
