"""A guardrail for names and places: a token classifier on our own ONNX sidecar finds them; they are blocked, masked, hashed or given
pseudonyms.

Patterns cannot find a name, so this stands beside `pii`. The sidecar reads texts of any length and gives places in the text as it came.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from secrets import token_bytes
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from gateway.core.asking import Asker, summed
from gateway.core.deadlines import Patience
from gateway.core.decoding import answered
from gateway.core.errors import EngineError, EngineTimeout, GuardrailViolation
from gateway.core.plugins import GuardrailContext
from gateway.core.pseudonyms import Layer, Pseudonyms, PseudonymSettings, Replace
from gateway.core.secret import Secret
from gateway.core.slices import Steps, portions
from gateway.core.specs import Spec, Timeout
from gateway.core.tasks import TaskOwner
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Principal, Usage, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe
from gateway.guardrails.pieces import AT_ONCE, bounded, in_turns, readable, sendable

PATH: Final = b"/v1/classify"
NAMES: Final = {
    "PER": "person", "PERSON": "person", "LOC": "location", "LOCATION": "location", "GPE": "location", "FAC": "location",
    "ORG": "organisation", "ORGANIZATION": "organisation", "MISC": "misc",
}  # fmt: skip
"""What the labels of the usual models mean."""
_ENDS: Final = frozenset('"\\\n\r{}[]<>')
"""An entity ends before them: they are the structure of JSON and of markup around it."""
_MIN_KEY: Final = 16
_NAME: Final = re.compile(r"[a-z0-9_]{1,40}")
QUESTION: Final = 512 * 1024
"""Bytes of the texts of one question, where it has several: our sidecar reads no more."""
Action = Literal["block", "mask", "hash", "pseudonym", "annotate", "label", "allow"]


class EntitiesSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """model: the public name of the one that is asked, on our own sidecar. entities: what is done with each. labels: what the model's
    labels mean, beside those that are known (PER, LOC, GPE, ORG, ...). threshold: the least probability of an entity that counts. allow:
    texts that pass, in any case. hash_key: for `hash`. pseudonyms: of the action `pseudonym`. timeout: for all questions about one request
    or answer. batch: texts of one question. max_bytes: characters of all texts together."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    entities: dict[str, Action] = field(default_factory=lambda: {"person": "mask", "location": "mask", "organisation": "mask"})
    labels: dict[str, str] = field(default_factory=dict)
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.6
    allow: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    hash_key: Secret | None = None
    pseudonyms: PseudonymSettings = PseudonymSettings()
    timeout: Timeout = 1.0
    batch: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024


class _Entity(Struct):
    entity: str
    start: int
    end: int
    score: float


class _Item(Struct):
    index: int
    entities: list[_Entity]


class _Answer(Struct):
    data: list[_Item]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Entities:
    """Asks about every set of texts. A stream is held until it ends."""

    def __init__(self, name: str, settings: EntitiesSettings, asker: Asker) -> None:
        self.name, self.model = name, settings.model
        self._settings, self._asker = settings, asker
        self._names = {**NAMES, **settings.labels}
        self._actions = {entity: action for entity, action in settings.entities.items() if action != "allow"}
        self._allowed = frozenset(text.casefold() for text in settings.allow)
        self._key = _key(settings)
        self._tasks = TaskOwner(f"guardrail {name}")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        """Allow, annotate, rewrite or block. Raises EngineError: the model did not say what is in the texts."""
        return self.check_labelled(texts, UNLABELLED)

    def check_labelled(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict]:
        """The same for texts with data labels."""
        return self.read(texts, None, labels, None)

    def read(
        self, came: Sequence[str], own: Steps[Sequence[str]] | None, labels: frozenset[str], replace: Replace | None
    ) -> Maybe[Verdict]:
        """As gateway.core.pseudonyms.Reader; without `own` the texts are read as they came, without `replace` a pseudonym is a mask."""
        bounded(came, self._settings.max_bytes)
        return self._tasks.wait(self._verdict(came, own, labels, replace), name="check") if readable(came) and self._actions else ALLOW

    def stream(self) -> None:
        return None

    async def _verdict(
        self, came: Sequence[str], own: Steps[Sequence[str]] | None, labels: frozenset[str], replace: Replace | None
    ) -> Verdict:
        try:
            texts = came if own is None else await in_turns(came, own)
        except GuardrailViolation as error:
            return Verdict("block", self.name, error.message)
        asked = [number for number, text in enumerate(texts) if text and not text.isspace()]
        findings: list[Finding] = []
        usages: list[Usage] = []
        patience = Patience(self._settings.timeout)
        for batch in questions(texts, asked, self._settings.batch):
            left = patience.left()
            if left <= 0:
                raise EngineTimeout(f"The model {self.model!r} did not answer within {self._settings.timeout:g} s.")
            question = {"input": [sendable(texts[number]) for number in batch]}
            answered = await self._asker.ask(self.model, PATH, question, left, None, labels)
            usages.append(answered.usage)
            for number, entities in zip(batch, self._read(answered.body, [texts[number] for number in batch]), strict=True):
                findings += self._wanted(number, texts[number], entities)
        if not findings and came is texts:
            return ALLOW
        kept = tuple(findings[:MOST_FINDINGS])
        names = ", ".join(sorted({finding.entity for finding in findings}))
        reason = f"Names found: {names}." if names else "Text in the form of a pseudonym was renamed."
        if refused := sorted({finding.entity for finding in findings if self._actions[finding.entity] == "block"}):
            message = f"The text contains what must not pass here: {', '.join(refused)}."
            return Verdict("block", self.name, message, (), kept, summed(usages))
        passed = await in_turns(texts, self._replaced(texts, findings, replace))
        label = any(self._actions[finding.entity] == "label" for finding in findings)
        return Verdict("rewrite" if passed != list(came) else "annotate", self.name, reason, tuple(passed), kept, summed(usages), label)

    def _read(self, body: bytes, texts: list[str]) -> list[list[_Entity]]:
        answer = answered(_ANSWER, body, f"The answer of {self.model!r} does not say what is in the texts")
        items = {item.index: item.entities for item in answer.data}
        if sorted(items) != list(range(len(texts))):
            raise EngineError(f"{self.model!r} answered for {len(answer.data)} of {len(texts)} texts.")
        for index, entities in items.items():
            at = 0
            for entity in entities:
                if not at <= entity.start < entity.end <= len(texts[index]):
                    raise EngineError(f"{self.model!r} gave a place that is not in the text.")
                at = entity.end
        return [items[index] for index in range(len(texts))]

    def _wanted(self, number: int, text: str, entities: list[_Entity]) -> list[Finding]:
        """Those that count, each up to the first character that cannot be part of one."""
        found = []
        for given in entities:
            kind = self._names.get(given.entity, given.entity.lower())
            if given.score < self._settings.threshold or kind not in self._actions:
                continue
            start = given.start
            while start < given.end and text[start] in _ENDS:
                start += 1
            end = next((place for place in range(start, given.end) if text[place] in _ENDS), given.end)
            value = text[start:end]
            if value.strip() and value.casefold() not in self._allowed:
                found.append(Finding(kind, start, end, value, number, given.score))
        return found

    def _replaced(self, texts: Sequence[str], findings: list[Finding], replace: Replace | None) -> Steps[list[str]]:
        """The texts after the actions."""
        marks: dict[int, list[tuple[Finding, str]]] = {}
        for some in portions(findings, AT_ONCE):
            for finding in some:
                action = self._actions[finding.entity]
                if action in ("annotate", "label"):
                    continue
                shown = finding.entity.upper() if action != "hash" else f"{finding.entity.upper()}:{self._hashed(finding)}"
                mark = "" if action == "pseudonym" and replace is not None else f"[{shown}]"
                marks.setdefault(finding.text, []).append((finding, mark))
            yield
        passed = list(texts)
        for numbers in portions(list(marks), AT_ONCE):
            for number in numbers:
                passed[number] = (replace or _marked)(texts[number], marks[number])
            yield
        return passed

    def _hashed(self, finding: Finding) -> str:
        """Keyed; upper and lower case are the same."""
        data = f"{finding.entity}\x00{finding.value.casefold()}".encode("utf-8", "replace")
        return hmac.digest(self._key, data, "sha256").hex()[:16]


class PseudonymEntities(Entities):
    """Entities some of which get pseudonyms. Implements gateway.core.pseudonyms.Pseudonymous."""

    def __init__(self, name: str, settings: EntitiesSettings, asker: Asker, pseudonyms: Pseudonyms) -> None:
        super().__init__(name, settings, asker)
        self._pseudonyms = pseudonyms

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Layer:
        return self._pseudonyms.layer(principal, secret, now, self.read)

    def sweep(self, now: float) -> None:
        """Drops the sessions that are over."""
        self._pseudonyms.sweep(now)

    async def aclose(self) -> None:
        self._pseudonyms.clear()
        await super().aclose()


def questions(texts: Sequence[str], asked: Sequence[int], most: int) -> Iterator[list[int]]:
    """The numbers of the texts that are asked about together."""
    batch, size = list[int](), 0
    for number in asked:
        length = len(texts[number].encode("utf-8", "replace"))
        if batch and (len(batch) == most or size + length > QUESTION):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch


def _marked(text: str, marks: Sequence[tuple[Finding, str]]) -> str:
    pieces, done = list[str](), 0
    for finding, mark in marks:
        pieces += (text[done : finding.start], mark)
        done = finding.end
    return "".join([*pieces, text[done:]])


def _key(settings: EntitiesSettings) -> bytes:
    """Raises ValueError."""
    if settings.hash_key is None:
        if "hash" in settings.entities.values():
            raise ValueError("hash_key: the action hash needs one, so that every worker makes the same hashes")
        return token_bytes(32)
    key = settings.hash_key.reveal().encode()
    if len(key) < _MIN_KEY:
        raise ValueError(f"hash_key: {len(key)} bytes are too few; {_MIN_KEY} are the least")
    return key


def build(settings: EntitiesSettings, context: GuardrailContext) -> Entities:
    """Raises ValueError."""
    if context.asker is None:
        raise ValueError("there is no gateway here whose models it could ask")
    given = [entity for entity, action in settings.entities.items() if action == "pseudonym"]
    if not given:
        return Entities(context.name, settings, context.asker)
    if context.pseudonyms is None:
        raise ValueError("entities: nothing here gives pseudonyms")
    if wrong := next((entity for entity in given if not _NAME.fullmatch(entity)), None):
        raise ValueError(f"entities.{wrong}: the name of what gets a pseudonym has up to 40 small letters, digits and underscores")
    return PseudonymEntities(context.name, settings, context.asker, context.pseudonyms(given, settings.pseudonyms))
