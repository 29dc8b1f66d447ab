"""A guardrail that another server decides: the texts are sent to it, and its answer is the verdict (gateway.guardrails.http_shapes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from gateway.core.deadlines import Patience
from gateway.core.errors import EngineError, PermissionDenied
from gateway.core.plugins import Context
from gateway.core.secret import Secret
from gateway.core.specs import ClientTlsSpec, Spec, Timeout
from gateway.core.types import ALLOW, Finding, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe
from gateway.guardrails import http_shapes as shapes
from gateway.guardrails.fair_turns import Party
from gateway.guardrails.http_shapes import Action
from gateway.guardrails.remote import MAX_ANSWER_BYTES, GuardBreakerSpec, Remote


class PresidioSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """language: of the texts. threshold: the least score that counts. entities: what is done with each type; others are left to `others`.
    only: the types that are asked for; without any, all that the server knows."""

    language: Annotated[str, Meta(pattern=r"^[a-z]{2,3}$")] = "en"
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    entities: Mapping[str, Action] = field(default_factory=dict)
    others: Action = "mask"
    only: tuple[str, ...] = ()


class HttpSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """url: where texts are posted to. shape: what is asked and answered. action: what is done with a flagged text (`openai_moderation`).
    timeout: for all questions about one request or answer, waiting for their turn included. concurrent: questions at a time. max_bytes: of
    all texts; longer ones cannot be inspected. model, token: sent where they are given. tls: towards the server. secret: signs questions.
    clearance: labels of data that the server may see, `*` for all."""

    url: Annotated[str, Meta(min_length=1)]
    shape: Literal["openai_moderation", "presidio", "generic"] = "openai_moderation"
    action: Literal["block", "annotate", "label"] = "block"
    timeout: Timeout = 1.0
    concurrent: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    model: str | None = None
    token: Secret | None = None
    tls: ClientTlsSpec | None = None
    secret: Secret | None = None
    breaker: GuardBreakerSpec = GuardBreakerSpec()
    presidio: PresidioSettings = PresidioSettings()
    clearance: tuple[str, ...] = ()


AT_ONCE: Final = 16
"""Texts of one request that a server of Presidio's is asked about at a time, at most."""
PART: Final = 4
"""And at most this part of all that it may be asked at a time, so that there are turns for others who come."""


class HttpGuardrail:
    """Asks for every set of texts. Streams are held until they end."""

    def __init__(self, name: str, settings: HttpSettings) -> None:
        if settings.model is not None and settings.shape != "openai_moderation":
            raise ValueError(f"model: the shape {settings.shape} has none")
        if settings.presidio != PresidioSettings() and settings.shape != "presidio":
            raise ValueError("presidio: only the shape presidio has these settings")
        self.name, self._settings = name, settings
        self._remote = Remote(
            name,
            settings.url,
            timeout=settings.timeout,
            concurrent=settings.concurrent,
            tls=settings.tls,
            token=settings.token,
            secret=settings.secret,
            breaker=settings.breaker,
        )
        self._clearance = None if "*" in settings.clearance else frozenset(settings.clearance)

    async def start(self) -> None:
        self._remote.start()

    async def aclose(self) -> None:
        await self._remote.aclose()

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        """Raises EngineError, EngineTimeout: the server did not say what the texts are."""
        return self.check_labelled(texts, UNLABELLED)

    def check_labelled(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict]:
        """The same for texts with data labels. Raises PermissionDenied if the server may not see them."""
        numbers = [number for number, text in enumerate(texts) if text]
        if not numbers:
            return ALLOW
        if self._clearance is not None and not labels <= self._clearance:
            raise PermissionDenied(f"the server is not cleared for data with the label {min(labels - self._clearance)}")
        if sum(map(len, texts)) > self._settings.max_bytes:  # before anything is encoded
            raise EngineError(f"the texts are longer than max_bytes ({self._settings.max_bytes})")
        return self._remote.tasks.wait(self._verdict(texts, numbers), name="check")

    def stream(self) -> None:
        return None

    async def _verdict(self, texts: Sequence[str], numbers: list[int]) -> Verdict:
        shape = self._settings.shape
        if shape == "presidio":
            return await self._analysed(texts, numbers)
        asked = [texts[number] for number in numbers]
        patience = self._remote.patience()
        if shape == "generic":
            most = MAX_ANSWER_BYTES + 4 * self._settings.max_bytes
            body = await self._remote.post(self._encoded(shapes.generic_question(self.name, asked)), patience, most)
            return _placed(shapes.generic_verdict(body, self.name, asked), texts, numbers)
        body = await self._remote.post(self._encoded(shapes.moderation_question(asked, self._settings.model)), patience)
        flagged = shapes.moderation_flagged(body, len(asked))
        if not flagged:
            return ALLOW
        findings = tuple(Finding("flagged", 0, len(asked[at]), asked[at], numbers[at]) for at in flagged[:8])
        action = self._settings.action
        return Verdict("block" if action == "block" else "annotate", self.name, shapes.REASON, (), findings, None, action == "label")

    async def _analysed(self, texts: Sequence[str], numbers: list[int]) -> Verdict:
        """One question for each text, several at a time."""
        settings = self._settings.presidio
        patience = self._remote.patience()
        party = Party()
        findings: list[Finding] = []
        most = min(AT_ONCE, max(1, self._settings.concurrent // PART))
        for first in range(0, len(numbers), most):
            batch = numbers[first : first + most]
            waiting = [self._remote.tasks.spawn(self._places(texts[number], number, patience, party), name="analyse") for number in batch]
            try:
                for one in waiting:
                    findings += await one
            finally:
                for one in waiting:
                    one.cancel()
        return shapes.acted(self.name, texts, findings, settings.entities, settings.others)

    async def _places(self, text: str, number: int, patience: Patience, party: Party) -> list[Finding]:
        settings = self._settings.presidio
        question = shapes.presidio_question(text, settings.language, settings.threshold, settings.only)
        body = await self._remote.post(self._encoded(question), patience, party=party)
        return shapes.presidio_found(body, text, number, settings.threshold)

    def _encoded(self, question: dict[str, object]) -> bytes:
        body = shapes.encoded(question)
        if len(body) > 2 * self._settings.max_bytes + 1024:
            raise EngineError(f"the texts are longer than max_bytes ({self._settings.max_bytes})")
        return body


def _placed(verdict: Verdict, texts: Sequence[str], numbers: list[int]) -> Verdict:
    """A verdict on the texts that were sent, for all of them."""
    if len(numbers) == len(texts):
        return verdict
    for finding in verdict.findings:
        finding.text = numbers[finding.text]
    passed = list(texts)
    for number, text in zip(numbers, verdict.texts, strict=False):
        passed[number] = text
    passing = tuple(passed) if verdict.texts else ()
    return Verdict(verdict.action, verdict.guardrail, verdict.reason, passing, verdict.findings, verdict.usage, verdict.label)


def build(settings: HttpSettings, context: Context) -> HttpGuardrail:
    """Raises ValueError; ConfigError for TLS files."""
    if not context.local:
        raise ValueError("a guardrail that calls a server belongs into the configuration file")
    return HttpGuardrail(context.name, settings)
