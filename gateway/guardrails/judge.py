"""A guardrail that a chat model decides by a policy: Llama Guard, gpt-oss-safeguard and their kin, or any chat model that is told how.

A template says how the model is asked and how its verdict is read (gateway.guardrails.verdicts). A verdict that cannot be read is a
failure of the guardrail, never a pass. What is judged cannot speak to the model: the marks of chat templates are broken up in it, and where
the template is ours it stands between two lines that nobody can foresee.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from secrets import token_hex
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from gateway.core.asking import Asker, summed
from gateway.core.deadlines import Patience
from gateway.core.errors import EngineError, EngineTimeout, RequestError
from gateway.core.moderation import Judgement, Moderated
from gateway.core.plugins import GuardrailContext
from gateway.core.slices import Steps
from gateway.core.specs import Spec, Timeout
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Principal, Usage, Verdict
from gateway.guardrails.model_guardrail import ModeratingGuardrail
from gateway.guardrails.pieces import AT_ONCE, Piece, bounded, found_as, in_turns, pieces, sendable
from gateway.guardrails.verdicts import SCHEMA, TEMPLATES, Found, Template

REASON: Final = "The text is not allowed here."
PATH: Final = b"/v1/chat/completions"
UNSAFE: Final = "unsafe"
"""The category where none is configured."""
BETWEEN: Final = "\n\n"
"""Stands between two texts of one question, and counts as of the second."""
_MARKS: Final = re.compile(
    r"<(?=[|\uff5c]|/?(?:s|bos|eos|sop|eop|pad)>|/?(?:start|end)_of_turn|/?think|/?(?:BEGIN|END) [A-Z]|<SYS|</SYS)"
    r"|\[(?=/?[A-Z_]{3,24}\]|gMASK\])"
)


class JudgeSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """model: the public name of the chat model that is asked. template: how: `llama_guard` (its own policy; answers safe or unsafe and
    codes), `safeguard` (gpt-oss-safeguard: the policy as system message, JSON or 0 and 1 as answer), `json` (any chat model), `yes_no` (any
    chat model; Yes: the text violates the policy). policy, policy_file: the text of the policy, or a file with it; all but `llama_guard`
    need one. categories: the codes or names that count, each with the name for people and for /v1/moderations; empty: every violation.
    action: what is done then. sources: whose texts of a chat are read. timeout: for all questions about one request or answer. window,
    overlap: characters of one question, and of a long text by which two overlap. concurrent: questions about one request at a time.
    max_tokens: of one verdict, reasoning included. constrained: whether the engine is told the verdict's JSON schema (`json` only).
    max_bytes: characters of all texts together. moderation_questions: about one request for moderation, in which no two texts share
    one."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    template: Literal["llama_guard", "safeguard", "json", "yes_no"]
    policy: Annotated[str, Meta(max_length=100_000)] = ""
    policy_file: str | None = None
    categories: dict[str, str] = field(default_factory=dict)
    action: Literal["block", "annotate", "label"] = "block"
    sources: tuple[Literal["system", "user", "assistant", "tool", "other"], ...] = ("user", "assistant", "tool", "other")
    timeout: Timeout = 10.0
    window: Annotated[int, Meta(ge=256, le=1_000_000)] = 12_000
    overlap: Annotated[int, Meta(ge=0, le=100_000)] = 400
    concurrent: Annotated[int, Meta(ge=1, le=64)] = 4
    max_tokens: Annotated[int, Meta(ge=1, le=32_768)] = 256
    constrained: bool = True
    max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 256 * 1024
    moderation_questions: Annotated[int, Meta(ge=1, le=100_000)] = 128


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Answer(Struct):
    choices: list[_Choice]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Judge(ModeratingGuardrail):
    """Acts on texts that violate the policy, as the model judges them. policy: its text; "" where the template has its own."""

    def __init__(self, name: str, settings: JudgeSettings, policy: str, asker: Asker) -> None:
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
        self._template: Template = TEMPLATES[settings.template]
        if self._template.own_policy and policy:
            raise ValueError(f"policy: {settings.template} has a policy of its own; remove the setting, or use another template")
        if not self._template.own_policy and not policy.strip():
            raise ValueError(f"policy is missing: {settings.template} needs to be told what is not allowed")
        self._policy = policy.strip()

    def _packed(self, texts: Sequence[str]) -> Steps[list[list[Piece]]]:
        """What one question is about: as many texts as fit, so that a conversation is read as one."""
        asked = yield from pieces(texts, self._settings.window, self._settings.overlap)
        packed: list[list[Piece]] = []
        room = 0
        for done, piece in enumerate(asked, 1):
            size = len(piece.text) + len(BETWEEN)
            if not packed or size > room:
                packed.append([])
                room = self._settings.window + len(BETWEEN)
            packed[-1].append(piece)
            room -= size
            if done % AT_ONCE == 0:
                yield
        return packed

    async def _verdict(self, texts: Sequence[str], labels: frozenset[str]) -> Verdict:
        packed = await in_turns(texts, self._packed(texts))
        judged, usage = await self._judged(packed, self._settings.timeout, None, labels)
        findings: list[Finding] = []
        for group, found in zip(packed, judged, strict=True):
            for category in self._counted(found):
                findings += [
                    Finding(category, piece.start, piece.start + len(piece.text), piece.text, piece.number, found.score)
                    for piece in group[: MOST_FINDINGS - len(findings)]
                ]
        if not findings:
            return ALLOW
        return found_as(self._settings.action, self.name, REASON, findings, usage)

    def _counted(self, found: Found) -> list[str]:
        """The names of the categories that count; one that is violated without saying which counts too."""
        if not found.flagged:
            return []
        named = self._settings.categories
        if not named or not found.categories:
            return list(found.categories[:8]) or [UNSAFE]
        return list(dict.fromkeys(named[code] for code in found.categories if code in named))

    async def _moderated(self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str]) -> Moderated:
        settings = self._settings
        bounded(texts, settings.max_bytes)
        asked = [[piece] for piece in await in_turns(texts, pieces(texts, settings.window, settings.overlap))]
        if len(asked) > settings.moderation_questions:
            most = settings.moderation_questions
            message = f"input: these texts take {len(asked)} questions to the model; {most} are the most. Send fewer at a time."
            raise RequestError(message, param="input", code="too_many_texts")
        judged, usage = await self._judged(asked, seconds, principal, labels) if asked else ([], Usage())
        names = list(dict.fromkeys(settings.categories.values())) or [UNSAFE]
        scores = [dict.fromkeys(names, 0.0) for _ in texts]
        categories = [dict.fromkeys(names, False) for _ in texts]
        for (piece,), found in zip(asked, judged, strict=True):
            for category in self._counted(found):
                name = category if category in names else UNSAFE
                categories[piece.number][name] = True
                scores[piece.number][name] = max(scores[piece.number].get(name, 0.0), found.score)
        results = [Judgement(any(named.values()), named, mine) for named, mine in zip(categories, scores, strict=True)]
        return Moderated(results, usage)

    async def _judged(
        self, asked: list[list[Piece]], seconds: float, principal: Principal | None, labels: frozenset[str]
    ) -> tuple[list[Found], Usage]:
        """A verdict for each question, in their order."""
        turns = asyncio.Semaphore(self._settings.concurrent)
        patience = Patience(seconds)
        waiting = [self._tasks.spawn(self._asked(group, turns, patience, principal, labels), name="ask") for group in asked]
        try:
            answers = [await one for one in waiting]
        finally:
            for one in waiting:
                one.cancel()
        return [found for found, _ in answers], summed([usage for _, usage in answers])

    async def _asked(
        self, group: list[Piece], turns: asyncio.Semaphore, patience: Patience, principal: Principal | None, labels: frozenset[str]
    ) -> tuple[Found, Usage]:
        async with turns:
            left = patience.left()
            if left <= 0:
                raise EngineTimeout(f"The model {self.model!r} did not answer in time.")
            answered = await self._asker.ask(self.model, PATH, self._question(group), left, principal, labels)
        try:
            content = _ANSWER.decode(answered.body).choices[0].message.content
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            raise EngineError(f"The answer of {self.model!r} is not a chat completion.") from None
        found = self._template.read(content or "")
        if found is None:  # what it said may quote the text, so it is not shown
            raise EngineError(f"The verdict of {self.model!r} cannot be read: expected {self._template.expects}.")
        return found, answered.usage

    def _question(self, group: list[Piece]) -> dict[str, Any]:
        text = BETWEEN.join(_MARKS.sub(lambda mark: f"{mark[0]} ", sendable(piece.text)) for piece in group)
        question: dict[str, Any] = {
            "messages": self._template.messages(self._policy, text, token_hex(8), list(self._settings.categories)),
            "temperature": 0,
            "max_tokens": self._settings.max_tokens,
        }
        if self._settings.template == "json" and self._settings.constrained:
            question["response_format"] = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}
        return question


def build(settings: JudgeSettings, context: GuardrailContext) -> Judge:
    """Raises ValueError; OSError for the policy's file."""
    if context.asker is None:
        raise ValueError("there is no gateway here whose models it could ask")
    if settings.policy and settings.policy_file is not None:
        raise ValueError("policy and policy_file: give one of them")
    policy = settings.policy if settings.policy_file is None else context.read(settings.policy_file)
    return Judge(context.name, settings, policy, context.asker)
