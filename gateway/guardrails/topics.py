"""A guardrail for topics, which example sentences describe: an embedding model of this gateway says how near a text is to them.

The examples are embedded once, with the first text, and kept for as long as the settings are. Whether the model is still the one that
embedded them is checked every minute: an engine may be replaced behind the same name.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from base64 import b64decode
from collections.abc import Sequence
from math import dist, fsum, isfinite, sqrt
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from gateway.core.asking import Answered, Asker
from gateway.core.deadlines import Patience, within
from gateway.core.errors import EngineError, EngineTimeout
from gateway.core.plugins import GuardrailContext
from gateway.core.slices import Steps, portions
from gateway.core.specs import Spec, Timeout
from gateway.core.types import ALLOW, Finding, Usage, Verdict
from gateway.core.values import UNLABELLED
from gateway.guardrails.model_guardrail import ModelGuardrail
from gateway.guardrails.pieces import AT_ONCE, Piece, found_as, in_turns, pieces, read_whole

DENIED: Final = "The text is about something that is not allowed here."
OFF: Final = "off_topic"
PATH: Final = b"/v1/embeddings"
CHECKED_EVERY: Final = 60.0
SAME: Final = 0.999
"""Two embeddings of one sentence by one model are at least as similar."""
MOST_EXAMPLES: Final = 512
SLICE: Final = 64
"""Comparisons between two turns of the loop: less than a millisecond."""
Examples = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=2000)], ...], Meta(min_length=1)]
Least = Annotated[float, Meta(gt=-1, le=1)]
Vector = tuple[float, ...]


class TopicsSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """model: the public name of the embedding model. deny: topics that a text must not be about. allow: with any, every text must be about
    one of them. Both by name, each with example sentences. threshold: the cosine similarity from which on a text is about a topic;
    thresholds: others for some topics. shortest: texts with fewer characters need not be about an allowed topic. The rest is as for
    `classifier`."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    deny: dict[str, Examples] = field(default_factory=dict)
    allow: dict[str, Examples] = field(default_factory=dict)
    threshold: Least = 0.7
    thresholds: dict[str, Least] = field(default_factory=dict)
    action: Literal["block", "annotate", "label"] = "block"
    sources: tuple[Literal["system", "user", "assistant", "tool", "other"], ...] = ("user", "tool", "other")
    shortest: Annotated[int, Meta(ge=0, le=10_000)] = 16
    timeout: Timeout = 1.0
    window: Annotated[int, Meta(ge=64, le=100_000)] = 600
    overlap: Annotated[int, Meta(ge=0, le=50_000)] = 100
    batch: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 256 * 1024


class _Item(Struct):
    index: int
    embedding: str | list[float]


class _Cut(Struct):
    index: int


class _Answer(Struct):
    data: list[_Item]
    truncated: list[_Cut] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class _Topic(NamedTuple):
    """One topic with its embedded examples."""

    name: str
    least: float
    denied: bool
    vectors: list[Vector]


class _Known(NamedTuple):
    """Everything embedded. anchor: a sentence with its vector, by which a change of the model shows."""

    topics: list[_Topic]
    anchor: tuple[str, Vector]


class Topics(ModelGuardrail):
    """Acts on texts about a denied topic, or about none of the allowed ones."""

    def __init__(self, name: str, settings: TopicsSettings, asker: Asker) -> None:
        super().__init__(
            name,
            asker,
            model=settings.model,
            sources=settings.sources,
            window=settings.window,
            overlap=settings.overlap,
            max_bytes=settings.max_bytes,
        )
        self._settings = settings
        if not settings.deny and not settings.allow:
            raise ValueError("it has no topic; name one under 'deny' or 'allow', with example sentences")
        if both := sorted(settings.deny.keys() & settings.allow.keys()):
            raise ValueError(f"allow.{both[0]}: deny has a topic of this name too")
        if unknown := sorted(settings.thresholds.keys() - settings.deny.keys() - settings.allow.keys()):
            raise ValueError(f"thresholds.{unknown[0]}: there is no such topic; known: {', '.join((*settings.deny, *settings.allow))}")
        if (count := sum(map(len, (*settings.deny.values(), *settings.allow.values())))) > MOST_EXAMPLES:
            raise ValueError(f"it has {count} examples; {MOST_EXAMPLES} are the most")
        self._known: _Known | None = None
        self._learning: asyncio.Task[_Known] | None = None
        self._checked = 0.0

    def _long(self, piece: Piece, texts: Sequence[str]) -> bool:
        return len(texts[piece.number].strip()) >= self._settings.shortest

    def _asked(self, texts: Sequence[str]) -> Steps[list[Piece]]:
        """What the model is asked about."""
        window, every = self._settings.window, bool(self._settings.deny)
        found = yield from pieces(texts, window, self._settings.overlap)
        asked: list[Piece] = []
        for some in portions(found, AT_ONCE):
            asked += [_whole(piece, texts[piece.number], window) for piece in some if every or self._long(piece, texts)]
            yield
        return asked

    async def _verdict(self, texts: Sequence[str], labels: frozenset[str]) -> Verdict:
        settings = self._settings
        asked = await in_turns(texts, self._asked(texts))
        if not asked:
            return ALLOW
        patience = Patience(settings.timeout)
        known = await self._examples(patience)
        embedded, usage = await self._embedded(asked, patience, labels)
        if time.monotonic() - self._checked > CHECKED_EVERY:
            known = await self._still(known, patience)
        findings: list[Finding] = []
        compared = 0
        for piece, vector in embedded:
            nearest = -1.0
            on_topic = not settings.allow or not self._long(piece, texts)
            for topic in known.topics:
                compared += len(topic.vectors)
                if compared > SLICE:
                    await asyncio.sleep(0)
                    compared = 0
                near = max(_similarity(vector, example) for example in topic.vectors)
                if topic.denied and near >= topic.least:
                    findings.append(_finding(topic.name, piece, near))
                elif not topic.denied:
                    nearest = max(nearest, near)
                    on_topic = on_topic or near >= topic.least
            if not on_topic:
                findings.append(_finding(OFF, piece, nearest))
        if not findings:
            return ALLOW
        findings.sort(key=lambda finding: -finding.score)
        return found_as(settings.action, self.name, DENIED, findings, usage)

    # --- the examples

    async def _examples(self, patience: Patience) -> _Known:
        """The embedded examples. However many texts wait for them, they are embedded once."""
        if self._known is not None:
            return self._known
        if self._learning is None or self._learning.done():
            self._learning = self._tasks.spawn(self._learn(), name="examples")
        try:
            async with within(patience.left()):
                return await asyncio.shield(self._learning)
        except TimeoutError:
            raise EngineTimeout(f"The model {self.model!r} has not embedded the examples yet.") from None

    async def _learn(self) -> _Known:
        settings = self._settings
        topics = []
        for denied, given in ((True, settings.deny), (False, settings.allow)):
            for name, examples in given.items():
                asked = [Piece(number, 0, example) for number, example in enumerate(examples)]
                found, _ = await self._embedded(asked, Patience(max(30.0, settings.timeout)), UNLABELLED)
                least = settings.thresholds.get(name, settings.threshold)
                topics.append(_Topic(name, least, denied, [vector for _, vector in found]))
        if len({len(vector) for topic in topics for vector in topic.vectors}) > 1:
            raise EngineError(f"The embeddings of {self.model!r} differ in size.")
        first = next(iter((*settings.deny.values(), *settings.allow.values())))[0]
        (_, anchor), *_ = (await self._embedded([Piece(0, 0, first)], Patience(30.0), UNLABELLED))[0]
        self._known, self._checked = _Known(topics, (first, anchor)), time.monotonic()
        return self._known

    async def _still(self, known: _Known, patience: Patience) -> _Known:
        """The same, unless another model answers by now."""
        sentence, before = known.anchor
        (_, after), *_ = (await self._embedded([Piece(0, 0, sentence)], patience, UNLABELLED))[0]
        if len(after) == len(before) and _similarity(before, after) >= SAME:
            self._checked = time.monotonic()
            return known
        if self._known is known:
            self._known = None
        return await self._examples(patience)

    # --- the model

    async def _embedded(self, asked: list[Piece], patience: Patience, labels: frozenset[str]) -> tuple[list[tuple[Piece, Vector]], Usage]:
        """A unit vector of every piece, in any order; of one that the model cannot read whole, one of each part."""
        settings = self._settings

        async def ask(question: dict[str, Any], left: float) -> Answered:
            return await self._asker.ask(self.model, PATH, {**question, "encoding_format": "base64"}, left, None, labels)

        return await read_whole(asked, ask, self._read, model=self.model, batch=settings.batch, overlap=settings.overlap, patience=patience)

    def _read(self, body: bytes, count: int) -> tuple[list[Vector], set[int]]:
        """The unit vector of each piece, and the numbers of those that were cut. Raises EngineError."""
        try:
            answer = _ANSWER.decode(body)
            items = {item.index: _floats(item.embedding) for item in answer.data}
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise EngineError(f"The answer of {self.model!r} has no embeddings: {error}") from None
        if sorted(items) != list(range(count)):
            raise EngineError(f"{self.model!r} embedded {len(answer.data)} of {count} texts.")
        vectors = [_unit(items[index]) for index in range(count)]
        size = len(vectors[0])
        known = self._known
        if any(len(vector) != size for vector in vectors) or (known is not None and len(known.anchor[1]) != size):
            self._known = None  # another model answers: the examples are embedded anew
            raise EngineError(f"The embeddings of {self.model!r} differ in size.")
        return vectors, {cut.index for cut in answer.truncated if cut.index < count}


def _whole(piece: Piece, text: str, window: int) -> Piece:
    """The last piece of a text reaches back for a whole window: a few words say little."""
    short = piece.start > 0 and len(piece.text) < window
    return piece._replace(start=len(text) - window, text=text[-window:]) if short else piece


def _finding(name: str, piece: Piece, near: float) -> Finding:
    return Finding(name, piece.start, piece.start + len(piece.text), piece.text, piece.number, round(near, 4))


def _floats(given: str | list[float]) -> Sequence[float]:
    """Raises ValueError."""
    if isinstance(given, list):
        return given
    numbers = array("f")
    numbers.frombytes(b64decode(given, validate=True))
    return numbers


def _unit(vector: Sequence[float]) -> Vector:
    """Raises EngineError for one that has no direction."""
    length = sqrt(fsum(number * number for number in vector))
    if not vector or not isfinite(length) or length < 1e-12:
        raise EngineError("An embedding is not a direction.")
    return tuple([number / length for number in vector])


def _similarity(one: Vector, other: Vector) -> float:
    """The cosine of two unit vectors: a sixth of the time of a sum of products."""
    apart = dist(one, other)
    return 1.0 - apart * apart / 2.0


def build(settings: TopicsSettings, context: GuardrailContext) -> Topics:
    """Raises ValueError."""
    if context.asker is None:
        raise ValueError("there is no gateway here whose models it could ask")
    return Topics(context.name, settings, context.asker)
