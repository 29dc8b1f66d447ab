"""A guardrail that a classification model decides: texts are classified through the fleet, and a label that is sure enough refuses them.

The question is /v1/classify in vLLM's shape, which our ONNX sidecar speaks too; it batches the texts of all requests. A model reads no
more than its own length, so texts are asked about in windows that overlap, and a window that the engine cut is asked about again in halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.core.asking import Answered, Asker
from gateway.core.deadlines import Patience
from gateway.core.decoding import answered
from gateway.core.errors import EngineError
from gateway.core.moderation import Judgement, Moderated
from gateway.core.plugins import GuardrailContext
from gateway.core.slices import Steps, portions
from gateway.core.specs import Spec, Timeout
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Principal, Usage, Verdict
from gateway.guardrails.model_guardrail import ModeratingGuardrail
from gateway.guardrails.pieces import AT_ONCE, Piece, bounded, found_as, in_turns, pieces, read_whole

REASON: Final = "The text is not allowed here."
PATH: Final = b"/v1/classify"
Source = Literal["system", "user", "assistant", "tool", "other"]


class ClassifierSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """model: the public name of the one that is asked. labels: those that count, with the least probability of each. action: what is done
    then. classes: the model's labels in its order, for an engine that does not name them. sources: whose texts of a chat are read: `system`
    (also the developer's), `user`, `assistant`, `tool` (results), `other` (names, tools and all else). timeout: for all questions about one
    request or answer, the wait for a slot included. window, overlap: characters of one text that the model gets. batch: windows of one
    question. max_bytes: characters of all texts together; longer ones cannot be inspected."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    labels: Annotated[dict[str, Annotated[float, Meta(gt=0, le=1)]], Meta(min_length=1, max_length=256)]
    action: Literal["block", "annotate", "label"] = "block"
    classes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ("user", "tool", "other")
    timeout: Timeout = 1.0
    window: Annotated[int, Meta(ge=64, le=1_000_000)] = 1000
    overlap: Annotated[int, Meta(ge=0, le=100_000)] = 200
    batch: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024


class _Item(Struct):
    index: int
    probs: list[float] = []
    label: str = ""


class _Cut(Struct):
    index: int


class _Answer(Struct):
    data: list[_Item]
    labels: list[str] = []
    truncated: list[_Cut] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Classifier(ModeratingGuardrail):
    """Acts on texts that the model gives one of the configured labels."""

    def __init__(self, name: str, settings: ClassifierSettings, asker: Asker) -> None:
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
        if missing := sorted(set(settings.labels) - set(settings.classes)) if settings.classes else []:
            raise ValueError(f"labels names {missing[0]!r}, which is not among the classes {list(settings.classes)}")

    async def _verdict(self, texts: Sequence[str], labels: frozenset[str]) -> Verdict:
        settings = self._settings
        asked = await in_turns(texts, pieces(texts, settings.window, settings.overlap))
        scored, usage = await self._scored(asked, settings.timeout, None, labels)
        findings = await in_turns(texts, self._found(scored))
        return found_as(settings.action, self.name, REASON, findings, usage) if findings else ALLOW

    def _found(self, scored: list[tuple[Piece, dict[str, float]]]) -> Steps[list[Finding]]:
        """What counts, the surest first, and of that no more than is recorded."""
        found: list[Finding] = []
        for some in portions(scored, AT_ONCE):
            found += [
                Finding(label, piece.start, piece.start + len(piece.text), piece.text, piece.number, round(scores[label], 4))
                for piece, scores in some
                for label, least in self._settings.labels.items()
                if scores[label] >= least
            ]
            found = sorted(found, key=lambda finding: -finding.score)[:MOST_FINDINGS]
            yield
        return found

    async def _moderated(self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str]) -> Moderated:
        settings = self._settings
        bounded(texts, settings.max_bytes)
        asked = await in_turns(texts, pieces(texts, settings.window, settings.overlap))
        worst = [dict.fromkeys(settings.labels, 0.0) for _ in texts]
        usage = Usage()
        if asked:
            scored, usage = await self._scored(asked, seconds, principal, labels)
            for piece, scores in scored:
                mine = worst[piece.number]
                for label in mine:
                    mine[label] = max(mine[label], scores[label])
        results = []
        for scores in worst:
            found = {label: scores[label] >= least for label, least in settings.labels.items()}
            results.append(Judgement(any(found.values()), found, scores))
        return Moderated(results, usage)

    async def _scored(
        self, asked: list[Piece], seconds: float, principal: Principal | None, labels: frozenset[str]
    ) -> tuple[list[tuple[Piece, dict[str, float]]], Usage]:
        """The probability of each label in `labels` for every piece, in any order."""
        settings = self._settings

        async def ask(question: dict[str, Any], left: float) -> Answered:
            return await self._asker.ask(self.model, PATH, question, left, principal, labels)

        return await read_whole(
            asked, ask, self._read, model=self.model, batch=settings.batch, overlap=settings.overlap, patience=Patience(seconds)
        )

    def _read(self, body: bytes, count: int) -> tuple[list[dict[str, float]], set[int]]:
        """The scores of each piece, and the numbers of those that were cut. Raises EngineError."""
        answer = answered(_ANSWER, body, f"The answer of {self.model!r} is not a classification")
        items = {item.index: item for item in answer.data}
        if sorted(items) != list(range(count)):
            raise EngineError(f"{self.model!r} classified {len(answer.data)} of {count} texts.")
        names = self._settings.classes or tuple(answer.labels)
        if not names:
            raise EngineError(f"{self.model!r} does not name its labels; name them in 'classes', in the model's order.")
        if unknown := [label for label in self._settings.labels if label not in names]:
            raise EngineError(f"{self.model!r} has no label {unknown[0]!r}; it has {', '.join(names)}.")
        found = []
        for index in range(count):
            probs = items[index].probs
            if len(probs) != len(names):
                raise EngineError(f"{self.model!r} gave {len(probs)} probabilities for {len(names)} labels.")
            found.append(dict(zip(names, probs, strict=True)))
        return found, {cut.index for cut in answer.truncated if cut.index < count}


def build(settings: ClassifierSettings, context: GuardrailContext) -> Classifier:
    """Raises ValueError."""
    if context.asker is None:
        raise ValueError("there is no gateway here whose models it could ask")
    return Classifier(context.name, settings, context.asker)
