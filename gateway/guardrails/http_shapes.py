"""What guardrail servers are asked and what they answer: one class a shape. Whatever is not exactly an answer raises EngineError.

- `openai_moderation`: OpenAI's API reference, "Create moderation": all texts in one question, one result for each.
- `presidio`: `POST /analyze` of Presidio's analyzer: one question for each text; places in characters.
- `generic`: ours (docs/guardrails.md): all texts in one question, one verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from gateway.core.decoding import answered
from gateway.core.errors import EngineError
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from gateway.guardrails.pieces import sendable

REASON: Final = "The text is not allowed here."
MOST_REASON: Final = 256
MOST_RESULTS: Final = 10_000
Action = Literal["block", "mask", "annotate", "label", "allow"]


def encoded(question: dict[str, Any]) -> bytes:
    """As JSON. Halves of surrogate pairs, which UTF-8 cannot hold, become question marks."""
    try:
        return msgspec.json.encode(question)
    except UnicodeEncodeError:
        return msgspec.json.encode(_sendable(question))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, list):
        return [_sendable(one) for one in value]
    return {key: _sendable(one) for key, one in value.items()} if isinstance(value, dict) else value


# --- openai_moderation


class _Result(Struct):
    flagged: bool


class _Results(Struct):
    results: list[_Result]


_RESULTS: Final = msgspec.json.Decoder(_Results)


def moderation_question(texts: list[str], model: str | None) -> dict[str, Any]:
    return {"input": texts} if model is None else {"input": texts, "model": model}


def moderation_flagged(body: bytes, count: int) -> list[int]:
    """The numbers of the texts that were flagged."""
    results = answered(_RESULTS, body, "the server's answer is not a moderation").results
    if len(results) != count:
        raise EngineError(f"the server answered for {len(results)} of {count} texts")
    return [number for number, result in enumerate(results) if result.flagged]


# --- presidio


class _Place(Struct):
    entity_type: str
    start: int
    end: int
    score: float


_PLACES: Final = msgspec.json.Decoder(list[_Place])


def presidio_question(text: str, language: str, threshold: float, entities: Sequence[str]) -> dict[str, Any]:
    asked: dict[str, Any] = {"text": text, "language": language, "score_threshold": threshold}
    return {**asked, "entities": list(entities)} if entities else asked


def presidio_found(body: bytes, text: str, number: int, threshold: float) -> list[Finding]:
    """What stands in one text, from left to right; places may overlap."""
    places = answered(_PLACES, body, "the server's answer is not an analysis")
    if len(places) > MOST_RESULTS:
        raise EngineError(f"the server found {len(places)} places in one text")
    if any(not 0 <= place.start < place.end <= len(text) for place in places):
        raise EngineError("the server gave a place that is not in the text")
    counted = sorted((place for place in places if place.score >= threshold), key=lambda place: (place.start, -place.end))
    return [Finding(one.entity_type, one.start, one.end, text[one.start : one.end], number, round(one.score, 4)) for one in counted]


def acted(name: str, texts: Sequence[str], findings: list[Finding], actions: Mapping[str, Action], default: Action) -> Verdict:
    """What is done with entities in texts."""
    found = [(finding, actions.get(finding.entity, default)) for finding in findings]
    found = [(finding, action) for finding, action in found if action != "allow"]
    if not found:
        return ALLOW
    kept = tuple(finding for finding, _ in found[:MOST_FINDINGS])
    if refused := sorted({finding.entity for finding, action in found if action == "block"}):
        return Verdict("block", name, f"The text contains what must not pass here: {', '.join(refused)}.", (), kept)
    passed = list(texts)
    for number, start, end, entity in reversed(_merged([finding for finding, action in found if action == "mask"])):
        passed[number] = f"{passed[number][:start]}[{entity}]{passed[number][end:]}"
    label = any(action == "label" for _, action in found)
    reason = f"Found: {', '.join(sorted({finding.entity for finding, _ in found}))}."
    if passed == list(texts):
        return Verdict("annotate", name, reason, (), kept, None, label)
    return Verdict("rewrite", name, reason, tuple(passed), kept, None, label)


def _merged(findings: list[Finding]) -> list[tuple[int, int, int, str]]:
    """(text, start, end, entity) of what is masked. Places that overlap are one, of the kind that is surest: no part of either is left."""
    merged: list[tuple[int, int, int, str]] = []
    score = 0.0
    for one in findings:
        if merged and merged[-1][0] == one.text and one.start < merged[-1][2]:
            number, start, end, entity = merged[-1]
            merged[-1] = (number, start, max(end, one.end), one.entity if one.score > score else entity)
            score = max(score, one.score)
        else:
            merged.append((one.text, one.start, one.end, one.entity))
            score = one.score
    return merged


# --- generic


class _Span(Struct):
    text: int
    start: int
    end: int
    entity: str = "finding"
    score: float = 0.0


class _Verdict(Struct):
    action: Literal["allow", "annotate", "label", "rewrite", "block"]
    reason: str = ""
    texts: list[str] = []
    findings: list[_Span] = []


_VERDICT: Final = msgspec.json.Decoder(_Verdict)


def generic_question(name: str, texts: list[str]) -> dict[str, Any]:
    return {"guardrail": name, "texts": texts}


def generic_verdict(body: bytes, name: str, texts: Sequence[str]) -> Verdict:
    said = answered(_VERDICT, body, "the server's answer is not a verdict")
    for span in said.findings:
        if not 0 <= span.text < len(texts) or not 0 <= span.start < span.end <= len(texts[span.text]):
            raise EngineError("the server gave a place that is not in the texts")
    if said.action == "rewrite" and len(said.texts) != len(texts):
        raise EngineError(f"the server rewrote {len(said.texts)} of {len(texts)} texts")
    if said.action != "rewrite" and said.texts:
        raise EngineError(f"the server gave texts with the action {said.action}")
    if said.action == "allow":
        return ALLOW
    findings = tuple(
        Finding(one.entity[:64], one.start, one.end, texts[one.text][one.start : one.end], one.text, round(one.score, 4))
        for one in said.findings[:MOST_FINDINGS]
    )
    reason = "".join(sign for sign in said.reason[:MOST_REASON] if sign.isprintable()) or REASON
    action = "annotate" if said.action == "label" else said.action
    return Verdict(action, name, reason, tuple(said.texts), findings, None, said.action == "label")
